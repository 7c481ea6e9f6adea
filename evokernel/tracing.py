"""Run a program, count its calls of torch's attention, and weigh each shape by the work that it is."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evokernel.errors import EvokernelError
from evokernel.problem import TORCH_NAMES, Workload

HOOK = Path(__file__).parent / "trace_hook"


@dataclass(frozen=True)
class Trace:
    """Workloads of one dtype, heaviest first, weights adding up to their number; and what could not become one."""

    dtype: str
    workloads: tuple[Workload, ...]
    calls: int
    left_out: dict[str, int]  # reason -> calls
    status: int  # the program's exit code


def trace(command: Sequence[str]) -> Trace:
    """Run a command whose Python interpreters count their calls. EvokernelError when there were none."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "EVOKERNEL_TRACE": folder, "PYTHONPATH": os.pathsep.join(paths)}
        try:
            status = subprocess.run(list(command), env=environment, check=False).returncode
        except OSError as error:
            raise EvokernelError(f"{command[0]}: {error.strerror}") from None
        counts: Counter[str] = Counter()
        for path in Path(folder).glob("*.json"):
            for call, count in json.loads(path.read_text()):
                counts[json.dumps(call, sort_keys=True)] += count
    if not counts:
        raise EvokernelError(
            f"{command[0]}: no call of torch.nn.functional.scaled_dot_product_attention was seen (exit code {status})"
        )
    return _weighed([(json.loads(call), count) for call, count in counts.items()], status)


def _weighed(calls: list[tuple[dict[str, Any], int]], status: int) -> Trace:
    names = {torch: ours for ours, torch in TORCH_NAMES.items()}
    left_out: Counter[str] = Counter()
    work: dict[str, Counter[Workload]] = {}
    for call, count in calls:
        reason = _unusable(call, names)
        if reason:
            left_out[reason] += count
            continue
        workload = _workload(call)
        work.setdefault(names[call["dtype"]], Counter())[workload] += count
    if not work:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in left_out.items())
        raise EvokernelError(f"no call can be searched for: {reasons}")
    dtype = max(work, key=lambda d: sum(w.flops() * count for w, count in work[d].items()))
    for other in work.keys() - {dtype}:
        left_out[f"dtype {other}: trace again with this one alone"] += sum(work[other].values())
    shares = {w: w.flops() * count for w, count in work[dtype].items()}
    unit = sum(shares.values()) / len(shares)
    found = sorted(shares, key=lambda w: -shares[w])
    return Trace(
        dtype,
        tuple(replace(w, weight=max(1e-4, round(shares[w] / unit, 4))) for w in found),
        sum(work[dtype].values()),
        dict(left_out),
        status,
    )


def _unusable(call: dict[str, Any], names: dict[str, str]) -> str:
    q, k, v = call["q"], call["k"], call["v"]
    if call["dtype"] not in names:
        return f"dtype {call['dtype']}"
    if call["mask"]:
        return "an attention mask"
    if call["dropout"]:
        return "dropout"
    if call["own_scale"]:
        return "a scale of its own"
    if not len(q) == len(k) == len(v) == 4 or k != v or q[3] != k[3] or 0 in (*q, *k) or q[1] % k[1]:
        return "a shape that is not B, H, S, D"
    if call["causal"] and q[2] > k[2]:
        return "causal with more queries than keys, aligned top-left"
    return ""


def _workload(call: dict[str, Any]) -> Workload:
    (batch, heads, seq_q, head_dim), (_, kv_heads, seq_kv, _) = call["q"], call["k"]
    if call["causal"]:  # torch aligns top-left: keys beyond the queries are seen by none
        seq_kv = seq_q
    return Workload(batch, heads, kv_heads, seq_q, seq_kv, head_dim, call["causal"])
