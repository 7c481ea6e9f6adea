"""Measure candidates on this machine: one worker process per slot, each with children of its own."""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
import time
from collections import deque
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from evokernel.bench import baselines as known_baselines
from evokernel.devices import Device
from evokernel.errors import DeviceError
from evokernel.evaluators import Evaluator, Job
from evokernel.measurement import Measurement, Outcome, failed

RETRIES = 1  # a job whose worker died is given to another once
DEFAULT_SLOTS = 2  # one compiles while the other times


def serve(pipe: Connection, folder: Path, device: Device, dtype: str, baselines: tuple[str, ...]) -> None:
    """Be a worker process: measure jobs from the pipe until it closes."""
    import signal

    from evokernel.worker.parent import Worker
    from evokernel.worker.zygote import die_with_parent

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides what Ctrl-C means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent()
    worker = Worker(device, dtype, baselines, folder=folder)
    try:
        while True:
            job: Job = pipe.recv()
            genome = job.candidate.genome
            pipe.send(worker.measure(genome.source, genome.body.space.backend, job.problem, job.fidelity))
    except (EOFError, BrokenPipeError):
        worker.close()


class Slot:
    """A worker process and the job it holds."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.folder = Path(tempfile.mkdtemp(prefix="evokernel-"))
        self.process: BaseProcess = context.Process(target=serve, args=(theirs, self.folder, *arguments), daemon=True)
        self.process.start()
        theirs.close()
        self.job: Job | None = None
        self.attempts = 0

    def give(self, job: Job, attempts: int) -> None:
        self.job, self.attempts = job, attempts
        self.pipe.send(job)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Local(Evaluator):
    """`slots` workers on one device. A worker that dies costs at most the job in flight, which is tried once more."""

    def __init__(self, device: Device, baselines: tuple[str, ...] = ("sdpa",), slots: int = DEFAULT_SLOTS) -> None:
        if slots < 1:
            raise ValueError(f"slots is {slots}; at least 1")
        if device.kind != "cpu":
            raise DeviceError(
                "evaluator.type 'local' times CPU candidates in this version; set evaluator.device to cpu"
            )
        known_baselines.check_names(baselines)
        self.device = device
        self.baselines = baselines
        self.slots = slots
        self.dtype = ""  # the first job's: workers keep secrets and references of one
        self.workers: list[Slot] = []
        self.queue: deque[tuple[Job, int]] = deque()

    def submit(self, job: Job) -> None:
        self.dtype = self.dtype or job.problem.dtype
        if job.problem.dtype != self.dtype:
            raise ValueError(f"the job's dtype is {job.problem.dtype}; this evaluator's workers measure {self.dtype}")
        self.queue.append((job, 0))
        self._hand_out()

    def _hand_out(self) -> None:
        while self.queue:
            job, attempts = self.queue[0]
            free = next((slot for slot in self.workers if slot.job is None), None)
            if free is None and len(self.workers) < self.slots:
                free = Slot((self.device, job.problem.dtype, self.baselines))
                self.workers.append(free)
            if free is None:
                return
            self.queue.popleft()
            try:
                free.give(job, attempts)
            except (BrokenPipeError, OSError):
                continue  # its death is seen, and the job saved, by wait()

    def wait(self, timeout_s: float) -> list[tuple[Job, Measurement]]:
        finished: list[tuple[Job, Measurement]] = []
        deadline = time.monotonic() + timeout_s
        while not finished and any(slot.job for slot in self.workers):
            busy = {slot.pipe: slot for slot in self.workers if slot.job}
            ready = wait(list(busy), timeout=max(0.0, deadline - time.monotonic()))
            for pipe in ready:
                slot = busy[pipe]  # type: ignore[index]
                assert slot.job is not None
                try:
                    finished.append((slot.job, slot.pipe.recv()))
                    slot.job = None
                except (EOFError, OSError):
                    self._replace(slot, finished)
            self._hand_out()
            if not ready and time.monotonic() >= deadline:
                break
        return finished

    def _replace(self, slot: Slot, finished: list[tuple[Job, Measurement]]) -> None:
        """Drop a worker that died; its job is tried once more, then given up."""
        assert slot.job is not None
        self.workers.remove(slot)
        slot.kill()
        if slot.attempts < RETRIES:
            self.queue.appendleft((slot.job, slot.attempts + 1))
        else:
            finished.append((slot.job, failed(Outcome.CRASHED, "two workers died while measuring it")))

    def close(self) -> None:
        for slot in self.workers:
            slot.kill()
        self.workers.clear()
