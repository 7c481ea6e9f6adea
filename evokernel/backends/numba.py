"""Numba and plain NumPy candidates on the CPU: load the module, compile by small calls of each signature."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from evokernel.backends import Backend, CompileError
from evokernel.devices import Device
from evokernel.problem import TORCH_NAMES, Problem

FILE_NAME = "candidate.py"  # under which the worker stores the source
TINY = (9, 11)  # query and key lengths of the compiling calls


class Numba(Backend):
    """Compiles in the process that calls: Numba binaries do not travel."""

    name = "numba"
    device_kind = "cpu"
    imports = frozenset({"math", "numba", "numpy", "torch"})

    def load(self, source: Path, entry: str) -> Callable[..., Any]:
        spec = importlib.util.spec_from_file_location("candidate", source)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # whatever a candidate raises on import is its own failure
            raise CompileError(f"{type(error).__name__}: {error}") from error
        found = getattr(module, entry, None)
        if not callable(found):
            raise CompileError(f"no entry function {entry!r}")
        return found  # type: ignore[no-any-return]

    def compile(self, entry: Callable[..., Any], problem: Problem, device: Device) -> Mapping[str, Any]:
        import torch

        started = time.perf_counter()
        dtype = getattr(torch, TORCH_NAMES[problem.dtype])
        kinds = {(w.causal, w.window, w.softcap, w.heads // w.kv_heads): w for w in problem.workloads}

        def tensor(heads: int, length: int, heads_inside: bool) -> torch.Tensor:
            if heads_inside:
                return torch.zeros(2, length, heads, workload.head_dim, dtype=dtype).transpose(1, 2)
            return torch.zeros(2, heads, length, workload.head_dim, dtype=dtype)

        for workload in kinds.values():
            tiny = replace(workload, batch=2, seq_q=TINY[0], seq_kv=TINY[1])
            for heads_inside in (False, True):  # Numba has a type for contiguous arrays, and one for all others
                q = tensor(tiny.heads, tiny.seq_q, heads_inside)
                k, v = (tensor(tiny.kv_heads, tiny.seq_kv, heads_inside) for _ in range(2))
                try:
                    entry(q, k, v, num_sms=device.num_sms, **tiny.arguments())
                except Exception as error:
                    raise CompileError(_cause(error)) from error
        return {"compile_s": time.perf_counter() - started}


def _cause(error: Exception) -> str:
    """Return Numba's own words, without the typing dump around them."""
    lines = [line.rstrip() for line in str(error).splitlines() if line.strip()]
    at = _line(error)
    return f"{type(error).__name__}{f' at line {at}' if at else ''}: " + "\n".join(lines[:20])


def _line(error: Exception) -> int:
    """Return the candidate's own innermost line that raised, 0 when none did."""
    found, trace = 0, error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename.endswith(FILE_NAME):
            found = trace.tb_lineno
        trace = trace.tb_next
    return found
