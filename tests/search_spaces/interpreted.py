"""Run rendered Triton candidates in Triton's interpreter, in children, against exact attention in float64.

The interpreter must be chosen before triton is imported, cannot share a process with the compiler, and ends
it on an access out of bounds: so cases run in children, and a case that its child did not live to report has
crashed.
"""

import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


def run(cases: Mapping[str, Mapping[str, Any]], children: int = 2) -> dict[str, dict[str, Any]]:
    """Return what `judge` says of each case {source: path, shape, ...}, or its crash, by the case's name."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", __file__]
    names = list(cases)
    running = []
    for first in range(min(children, len(names))):
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        child = subprocess.Popen(command, env=environment, text=True, **pipes)
        running.append((child, {name: dict(cases[name]) for name in names[first::children]}))
    for child, share in running:
        child.stdin.write(json.dumps(share))
        child.stdin.close()
        child.stdin = None
    verdicts: dict[str, dict[str, Any]] = {}
    for child, share in running:
        output, errors = child.communicate()
        verdicts |= {name: {"failure": f"crashed: {errors[-500:]}"} for name in share}
        for line in output.splitlines():
            verdicts |= json.loads(line)
    return verdicts


def exact(q, k, v, scale, causal=False, window=None, softcap=None):
    """Return attention and its log-sum-exp in float64, straight from the definition."""
    group = q.shape[1] // k.shape[1]
    q = q.double()
    k, v = (t.double().repeat_interleave(group, 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    seq_q, seq_kv = scores.shape[-2:]
    rows = torch.arange(seq_q)[:, None] + seq_kv - seq_q
    keys = torch.arange(seq_kv)[None, :]
    left, right = window or (-1, -1)
    hidden = torch.zeros(seq_q, seq_kv, dtype=torch.bool)
    if causal:
        hidden |= keys > rows
    if left >= 0:
        hidden |= keys < rows - left
    if right >= 0:
        hidden |= keys > rows + right
    scores = scores.masked_fill(hidden, -math.inf)
    lse = torch.logsumexp(scores, -1)
    return (scores - lse.masked_fill(lse == -math.inf, 0.0)[..., None]).exp() @ v, lse


def tensor(batch, heads, length, head_dim, dtype, strided):
    """Return random values; strided, they lie in B, S, H, D order among NaN that must not reach a result."""
    values = torch.randn(batch, heads, length, head_dim).to(DTYPES[dtype])
    if not strided:
        return values
    room = torch.full((batch, length + 3, heads, head_dim + strided), math.nan, dtype=values.dtype)
    view = room.transpose(1, 2)[:, :, :length, :head_dim]
    view.copy_(values)
    return view


def judge(attention, shape, dtype="fp32", strided=0, ascending=False, **variant):
    """Return the errors of one call against float64, or how it failed."""
    torch.manual_seed(0)
    batch, heads, kv_heads, seq_q, seq_kv, head_dim = shape
    q = tensor(batch, heads, seq_q, head_dim, dtype, strided)
    k, v = (tensor(batch, kv_heads, seq_kv, head_dim, dtype, strided) for _ in range(2))
    if ascending:  # every block of keys raises the running maximum, by up to 40 in all
        q.fill_(1.0)
        k.copy_(torch.linspace(0.0, 40.0 * head_dim**-0.5, seq_kv)[:, None].expand(seq_kv, head_dim))
    copies = [t.clone() for t in (q, k, v)]
    if "window" in variant:
        variant["window"] = tuple(variant["window"])
    out, lse = attention(q, k, v, scale=head_dim**-0.5, num_sms=3, **variant)
    if not all(torch.equal(t, copy) for t, copy in zip((q, k, v), copies, strict=True)):
        return {"failure": "an input was written to"}
    if out.shape != q.shape or out.dtype != q.dtype or lse.shape != q.shape[:3] or lse.dtype != torch.float32:
        return {"failure": f"returned {out.shape} {out.dtype} and {lse.shape} {lse.dtype}"}
    exact_out, exact_lse = exact(q, k, v, head_dim**-0.5, **variant)
    empty = exact_lse == -math.inf
    if not torch.equal(lse == -math.inf, empty) or out[empty].any() or not out.isfinite().all():
        return {"failure": "fully masked rows must give 0 and -inf, and no others may"}
    lse_error = (lse.double() - exact_lse)[~empty].abs()
    return {
        "error": (out.double() - exact_out).abs().max().item() if out.numel() else 0.0,
        "lse_error": lse_error.max().item() if lse_error.numel() else 0.0,
    }


def load(source: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(source).stem, source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    torch.set_num_threads(1)
    modules: dict[str, Any] = {}
    for name, case in json.load(sys.stdin).items():
        source = case.pop("source")
        if source not in modules:
            modules[source] = load(source)
        try:
            verdict = judge(modules[source].attention, **case)
        except Exception as error:  # the verdict on this case; the others still run
            verdict = {"failure": f"{type(error).__name__}: {error}"}
        print(json.dumps({name: verdict}), flush=True)
