"""Run one candidate, or the baselines, on a GPU: eager calls to be checked, replays of a CUDA graph to be timed.

The inputs and outputs lie in memory of the parent's, which writes the ones and reads the others. Candidate and baseline
are in processes of their own, so that nothing a candidate does in its own reaches the baseline's.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import torch

from evokernel.bench import baselines
from evokernel.devices import Device
from evokernel.problem import Workload
from evokernel.worker import sandbox
from evokernel.worker.arena import DeviceArena
from evokernel.worker.child import CaptureError, Serving
from evokernel.worker.compile_zygote import warm_up

Captured = tuple[torch.Tensor, torch.Tensor | None]
FLUSHES = 2  # times the size of the L2 cache that is written before every timed replay
MEMORY_SHARE = 0.3  # of the GPU's memory that a candidate's tensors may take


def prepare(arch: int, folder: str) -> None:
    """Import, in the zygote, what a child needs, and build Triton's helper library; touches no device.

    A compile here leaves in memory what Triton asks of its tools, for no child may start one.
    """
    warm_up(f"cuda:{arch}")
    baselines.import_fa3()
    os.environ["TRITON_CACHE_DIR"] = str(Path(folder) / "utilities")
    from triton.backends.nvidia import driver

    driver.CudaUtils()  # compiles; a child then finds the library in that cache


class GpuServing(Serving):
    """Answers the parent's requests on one GPU."""

    def __init__(self, end: socket.socket, device: Device, *, trusted: bool) -> None:
        super().__init__(end, device, DeviceArena(torch.empty(0, dtype=torch.uint8)))
        self.trusted = trusted
        self.captured: Captured | None = None
        self.kept: dict[str, tuple[torch.cuda.CUDAGraph, Captured, dict[str, torch.Tensor]]] = {}  # baselines'

    def do_start(self, arena: list[Any]) -> None:
        """Make a context, and give up what only that needed."""
        torch.cuda.init()  # type: ignore[no-untyped-call]
        self.arena = DeviceArena.open(arena)
        from triton.runtime import driver

        driver.active.get_current_target()
        properties = torch.cuda.get_device_properties(0)
        self.flush = torch.empty(FLUSHES * properties.L2_cache_size, dtype=torch.uint8, device="cuda")
        self.begin, self.end_event = _event(), _event()
        self.begin.record()
        self.end_event.record()
        torch.cuda.synchronize()
        if not self.trusted:
            torch.cuda.set_per_process_memory_fraction(MEMORY_SHARE)
            sandbox.drop_privileges()
            sandbox.refuse_system_calls()

    def do_import(self, source: str, backend_name: str, entry: str, cache: str) -> None:
        """Load a candidate whose kernels a compile process has left in a cache."""
        os.environ["TRITON_CACHE_DIR"] = cache
        self.do_load(source, backend_name, entry)

    def do_baseline(self, name: str, workload: dict[str, Any]) -> None:
        call = baselines.BASELINES[name](Workload.from_json(workload), torch.device("cuda"))
        self.entry = lambda q, k, v: (call(q, k, v), None)
        self.arguments = {}

    def do_run(self) -> None:
        super().do_run()
        torch.cuda.synchronize()

    def do_run_all(self, calls: list[dict[str, Any]]) -> None:
        super().do_run_all(calls)
        torch.cuda.synchronize()

    def do_recall(self, key: str) -> dict[str, Any]:
        """Take up a call that was captured before, on the same memory; says whether there is one."""
        if key in self.kept:
            self.graph, self.captured, self.bound = self.kept[key]
        return {"found": key in self.kept}

    def do_capture(self, key: str) -> None:
        """Record the call as a graph. What the host does with data, or on other streams, shows here."""
        self.captured = None
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.call()  # whatever a first call does once
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(self.graph, stream=stream):
                captured = self.call()
        except Exception as error:
            raise CaptureError(f"the call cannot be captured in a CUDA graph: {error}") from error
        torch.cuda.synchronize()
        self.captured = captured
        if key:
            self.kept[key] = self.graph, captured, self.bound

    def do_replay(self) -> dict[str, Any]:
        """Replay once with poisoned outputs and a cold cache; returns microseconds between two events around it."""
        assert self.captured is not None
        for tensor in self.captured:
            if tensor is not None:
                tensor.fill_(float("nan"))
        self.flush.zero_()
        self.begin.record()
        self.graph.replay()
        self.end_event.record()
        self.end_event.synchronize()
        return {"us": self.begin.elapsed_time(self.end_event) * 1e3}

    def do_keep(self) -> None:
        """Put what the last replay wrote where the parent reads it; no host code of the candidate's comes between."""
        assert self.captured is not None
        self.keep(*self.captured)
        torch.cuda.synchronize()

    def do_burst(self, count: int) -> None:
        """Replay many times in a row, for the parent's own clock."""
        for _ in range(count):
            self.graph.replay()
        torch.cuda.synchronize()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
