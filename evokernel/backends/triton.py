"""Triton and Gluon candidates: compile ahead of time for any target, with no GPU, by a dry run on meta tensors."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evokernel.backends import Backend, CompileError, static_facts
from evokernel.backends.targets import TARGETS, Target
from evokernel.devices import Device
from evokernel.problem import TORCH_NAMES, Problem, Workload


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


@contextmanager
def dry_run(target: Target) -> Iterator[list[Any]]:
    """Make every launch inside compile only; yields the list of compiled kernels."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    compiled: list[Any] = []
    launch = JITFunction.run

    def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = launch(self, *arguments, grid=grid, warmup=True, **options)
        compiled.append(kernel)
        return kernel

    driver.set_active(StubDriver(target))
    JITFunction.run = compile_only
    try:
        yield compiled
    finally:
        JITFunction.run = launch  # the stub stays: a process that compiles ahead has no driver to go back to


def meta_inputs(workload: Workload, dtype: str) -> tuple[Any, Any, Any]:
    """Return Q, K and V without memory: shapes, strides and a dtype."""
    import torch

    def empty(heads: int, length: int) -> Any:
        shape = (workload.batch, heads, length, workload.head_dim)
        return torch.empty(shape, dtype=getattr(torch, TORCH_NAMES[dtype]), device="meta")

    return (
        empty(workload.heads, workload.seq_q),
        empty(workload.kv_heads, workload.seq_kv),
        empty(workload.kv_heads, workload.seq_kv),
    )


def compile_ahead(entry: Callable[..., Any], problem: Problem, target: Target) -> list[dict[str, Any]]:
    """Compile what every workload of a problem launches; returns the static facts of each distinct binary."""
    with dry_run(target) as compiled:
        for workload in problem.workloads:
            try:
                entry(*meta_inputs(workload, problem.dtype), num_sms=target.num_sms, **workload.arguments())
            except Exception as error:  # the compiler's, or the candidate's host code: its own failure either way
                raise CompileError(f"{type(error).__name__}: {error}") from error
    distinct = {kernel.hash: kernel for kernel in compiled}
    return [static_facts.read(kernel, target) for kernel in distinct.values()]


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
            raise CompileError(f"{type(error).__name__}: {error}") from error
        found = getattr(module, entry, None)
        if not callable(found):
            raise CompileError(f"no entry function {entry!r}")
        return found  # type: ignore[no-any-return]

    def compile(self, entry: Callable[..., Any], problem: Problem, device: Device) -> Mapping[str, Any]:
        started = time.perf_counter()
        kernels = compile_ahead(entry, problem, TARGETS[f"cuda:{device.arch}"])
        return {"compile_s": time.perf_counter() - started, "kernels": kernels}
