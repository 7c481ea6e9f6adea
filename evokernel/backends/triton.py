"""Triton and Gluon candidates: compile ahead of time for any target, with no GPU, by a dry run on meta tensors."""

from __future__ import annotations

import importlib.util
import io
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from evokernel.backends import Backend, CompileError, static_facts
from evokernel.backends.targets import Target, parse
from evokernel.devices import Device
from evokernel.problem import TORCH_NAMES, Problem, Workload

FILE_NAME = "candidate.py"
# Odd lengths that no workload has: what they compile beyond the first call was specialised on a length or a stride.
MORE_QUERIES, MORE_KEYS = 77, 205


class StubDriver:
    """Answers what Triton asks of a driver before it compiles; launching anything through it is an error."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget(self.target.backend, self.target.arch, self.target.warp_size)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("meta")


@dataclass
class DryRun:
    """What the launches inside a dry run compiled: each distinct binary once, with its assembler's log."""

    kernels: dict[str, Any] = field(default_factory=dict)  # by hash, in the order of their first launch
    logs: dict[str, str] = field(default_factory=dict)


@contextmanager
def dry_run(target: Target) -> Iterator[DryRun]:
    """Make every launch inside compile only; afterwards Triton looks for a real driver again."""
    from triton import knobs
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    done = DryRun()
    launch = JITFunction.run

    def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        printed = io.StringIO()
        with redirect_stdout(printed):  # where Triton prints ptxas's log, and the whole PTX when ptxas fails
            kernel = launch(self, *arguments, grid=grid, warmup=True, **options)
        if kernel.hash not in done.kernels:
            build_launcher(kernel, target)
            done.kernels[kernel.hash] = kernel
            done.logs[kernel.hash] = printed.getvalue()
        return kernel

    with knobs.nvidia.scope():
        knobs.nvidia.dump_ptxas_log = True  # asking ptxas again would cost a quarter of the compile
        driver.set_active(StubDriver(target))
        JITFunction.run = compile_only
        try:
            yield done
        finally:
            JITFunction.run = launch
            driver.set_active(None)


def build_launcher(kernel: Any, target: Target) -> None:
    """Build what Triton launches a kernel through, where this machine has the driver's library to link with.

    It goes into the cache beside the kernel, so that the process with the GPU needs no C compiler.
    """
    if target.backend == "cuda" and has_libcuda():
        from triton.backends.nvidia.driver import CudaLauncher

        CudaLauncher(kernel.src, kernel.metadata)


@lru_cache(maxsize=1)
def has_libcuda() -> bool:
    from triton.backends.nvidia.driver import library_dirs

    try:
        return bool(library_dirs())
    except (AssertionError, OSError, subprocess.CalledProcessError):
        return False


def meta_inputs(workload: Workload, dtype: str, heads_inside: bool = False) -> tuple[Any, Any, Any]:
    """Return Q, K and V without memory: shapes, strides (those of B,S,H,D when heads_inside) and a dtype."""
    import torch

    def empty(heads: int, length: int) -> Any:
        batch, head_dim = workload.batch, workload.head_dim
        shape = (batch, length, heads, head_dim) if heads_inside else (batch, heads, length, head_dim)
        tensor = torch.empty(shape, dtype=getattr(torch, TORCH_NAMES[dtype]), device="meta")
        return tensor.transpose(1, 2) if heads_inside else tensor

    return (
        empty(workload.heads, workload.seq_q),
        empty(workload.kv_heads, workload.seq_kv),
        empty(workload.kv_heads, workload.seq_kv),
    )


def variants(problem: Problem) -> list[list[Workload]]:
    """Group the workloads that differ in batch, heads and lengths alone: those that one binary serves."""
    groups: dict[Any, list[Workload]] = {}
    for workload in problem.workloads:
        group = workload.heads // workload.kv_heads
        key = (workload.head_dim, workload.causal, workload.window, workload.softcap, group)
        groups.setdefault(key, []).append(workload)
    return list(groups.values())


def compile_ahead(entry: Callable[..., Any], problem: Problem, target: Target) -> dict[str, Any]:
    """Compile what a problem's workloads launch; returns facts by kernel, and how many binaries each kernel has.

    `extra_binaries` counts those that another length or stride of a variant needed beyond its first call.
    """
    extra: set[str] = set()
    with dry_run(target) as done:

        def launched(workload: Workload, heads_inside: bool = False) -> set[str]:
            before = set(done.kernels)
            tensors = meta_inputs(workload, problem.dtype, heads_inside)
            try:
                entry(*tensors, num_sms=target.num_sms, **workload.arguments())
            except Exception as error:  # the compiler's, or the candidate's host code: its own failure either way
                raise CompileError(_cause(error)) from error
            return set(done.kernels) - before

        for workloads in variants(problem):
            first = workloads[0]
            launched(first)
            longest = max(workloads, key=lambda w: (w.seq_q, w.seq_kv))
            odd = replace(first, seq_q=first.seq_q + MORE_QUERIES, seq_kv=first.seq_kv + MORE_KEYS)
            extra |= launched(longest) | launched(odd, heads_inside=True)
    if not done.kernels:
        raise CompileError("the entry function launched no kernel")
    return {
        "kernels": [static_facts.read(kernel, target, done.logs[key]) for key, kernel in done.kernels.items()],
        "binaries": dict(Counter(kernel.metadata.name for kernel in done.kernels.values())),
        "extra_binaries": len(extra),
    }


def _cause(error: Exception) -> str:
    """Return the error's type, the candidate's own innermost line, and its text."""
    line, trace = 0, error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename.endswith(FILE_NAME):
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"{type(error).__name__}{f' at line {line}' if line else ''}: {error}"


class Triton(Backend):
    """Compiles through Triton's own cache, so that a process with a GPU only loads what this one compiled."""

    name = "triton"
    device_kind = "cuda"
    imports = frozenset({"math", "torch", "triton"})

    def load(self, source: Path, entry: str) -> Callable[..., Any]:
        spec = importlib.util.spec_from_file_location("candidate", source)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["candidate"] = module  # Triton reads the source of jit functions through their module
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # whatever a candidate raises on import is its own failure
            raise CompileError(_cause(error)) from error
        found = getattr(module, entry, None)
        if not callable(found):
            raise CompileError(f"no entry function {entry!r}")
        return found  # type: ignore[no-any-return]

    def compile(self, entry: Callable[..., Any], problem: Problem, device: Device) -> Mapping[str, Any]:
        started = time.perf_counter()
        facts = compile_ahead(entry, problem, parse(f"cuda:{device.arch}"))
        summary = static_facts.summary(facts["kernels"])
        return {"compile_s": time.perf_counter() - started, **summary, **facts}
