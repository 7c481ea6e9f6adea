"""The worker of one GPU: candidates compile side by side, and take turns on the device."""

from __future__ import annotations

import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from evokernel.backends.targets import parse
from evokernel.devices import Device
from evokernel.measurement import Fidelity, Measurement, Outcome, failed
from evokernel.problem import Problem
from evokernel.worker import timing
from evokernel.worker.arena import DeviceArena
from evokernel.worker.compile_pool import CompilePool
from evokernel.worker.gpu_state import GpuState
from evokernel.worker.lease import Ownership
from evokernel.worker.memory import MemoryWatch
from evokernel.worker.parent import Facts, Trial, Worker
from evokernel.worker.processes import Child, remove
from evokernel.worker.session import GpuPeer, GpuPlayer, Player
from evokernel.worker.timing import Timer

ARENA_BYTES = 4 << 30
HOST_BYTES = 8 << 30  # of one child, resident; a context and the libraries take about one
START_LIMIT_S = 60.0
LOAD_LIMIT_S = 20.0
SPARES = 2  # children with a context, ready before they are needed


class GpuWorker(Worker):
    """One for each GPU. measure() may be called from several threads: what they do beside the GPU overlaps."""

    player_type = GpuPlayer
    check_limit_s = 2.0  # milliseconds, but for the first, which loads the kernels

    def __init__(self, device: Device, *arguments: Any, folder: Path | None = None, **options: Any) -> None:
        self.ownership = Ownership(device)
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            os.environ["CUDA_VISIBLE_DEVICES"] = device.uuid
        self.cores = torch.cuda.get_device_properties(0).multi_processor_count
        self.turn = threading.Lock()
        self.watch = MemoryWatch(HOST_BYTES)
        self.sources = Path(tempfile.mkdtemp(prefix="candidates-", dir=folder))
        super().__init__(device, *arguments, folder=folder, **options)
        self.pool = CompilePool(parse(f"cuda:{device.arch}"), cache_root=self.sources / "caches")
        self.spares = Spares(self._start, SPARES)
        self.state = GpuState(device.uuid, lambda: {os.getpid(), self.zygote.process.pid})

    def close(self) -> None:
        self.state.close()
        self.spares.close()
        self.pool.close()
        super().close()
        self.watch.close()
        remove(self.sources)
        self.ownership.release()

    def make_arena(self) -> DeviceArena:
        return DeviceArena.allocate(ARENA_BYTES)

    def make_timer(self) -> Timer:
        roofline = self.device.roofline(self.dtype)
        return Timer(self.arena, self.pools, roofline, self.baseline_names, self.rng, timing.GPU, GpuPeer)

    def start_baseline(self) -> Child:
        return self._start(trusted=True)

    def _start(self, trusted: bool = False) -> Child:
        """Return a child that has a context and sees the arena."""
        assert isinstance(self.arena, DeviceArena)
        child = self.zygote.fork(trusted=trusted)
        if not trusted:
            self.watch.add(child.pid)
        Player(child, START_LIMIT_S).ask("start", arena=self.arena.handle())
        return child

    def tried(self, trial: Trial) -> Measurement:
        source = Path(tempfile.mkdtemp(dir=self.sources)) / "candidate.py"
        source.write_text(trial.source)
        compiled = self.pool.submit(source, _all_launched(trial)).result()
        if compiled.outcome is not Outcome.PASSED:
            return failed(compiled.outcome, compiled.message, resources=compiled.facts)

        def load(player: Player) -> Facts:
            player.limit_s = LOAD_LIMIT_S
            names = {"backend_name": trial.backend, "entry": trial.problem.entry}
            player.ask("import", source=str(source), cache=str(compiled.cache), **names)
            return dict(compiled.facts)

        self._calibrate_for(trial)
        child = self.spares.take()
        try:
            return self.judged(child, load, trial)
        finally:
            self.watch.remove(child.pid)
            self.pool.discard(compiled)
            remove(source.parent)

    def _calibrate_for(self, trial: Trial) -> None:
        """Time the baselines of new workloads, while no candidate's code is loaded in this trial."""
        with self.turn:
            for workload, _ in trial.chosen():
                if workload.name not in self.timer.fastest:
                    self.calibrate(workload)

    def checking(self) -> AbstractContextManager[Any]:
        return self.turn

    def timing(self) -> AbstractContextManager[None]:
        return nullcontext()  # the turn is held from the first check on

    def surroundings(self) -> Facts:
        return self.state.latest

    def ending(self, child: Child, status: int) -> str:
        if self.watch.killed(child.pid):
            return f"the process took more than {HOST_BYTES >> 30} GiB of memory"
        return super().ending(child, status)


def _all_launched(trial: Trial) -> Problem:
    """Return the problem with all workloads that will be timed, so that nothing is left to compile by then."""
    if trial.fidelity is not Fidelity.VERIFY:
        return trial.problem
    return replace(trial.problem, workloads=trial.problem.workloads + trial.problem.held_out)


class Spares:
    """Children started ahead of need, in threads: a context takes a third of a second and the GPU does not wait."""

    def __init__(self, start: Callable[[], Child], count: int) -> None:
        self.start = start
        self.threads = ThreadPoolExecutor(count, thread_name_prefix="spare")
        self.lock = threading.Lock()
        self.ready: deque[Future[Child]] = deque(self.threads.submit(start) for _ in range(count))

    def take(self) -> Child:
        """Return a child that no candidate has seen."""
        with self.lock:
            self.ready.append(self.threads.submit(self.start))
            first = self.ready.popleft()
        return first.result()

    def close(self) -> None:
        self.threads.shutdown(wait=True)
        for future in self.ready:
            if future.exception() is None:
                future.result().kill()
