"""Measure candidates on this machine: worker processes on its cores, or one for its GPU."""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from evokernel.bench import baselines as known_baselines
from evokernel.devices import Device
from evokernel.evaluators import Evaluator, Job
from evokernel.measurement import Measurement, Outcome, failed

RETRIES = 1  # a job whose worker died is given to another once
DEFAULT_SLOTS = {"cpu": 2, "cuda": 10}  # one times while the others compile, or wait for their turn


def serve(
    pipe: Connection, folder: Path, together: int, device: Device, dtype: str, baselines: tuple[str, ...]
) -> None:
    """Be a worker process: measure jobs from the pipe, up to `together` at once, until it closes."""
    import signal

    from evokernel.worker.start import start
    from evokernel.worker.zygote import die_with_parent

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides what Ctrl-C means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent()
    worker = start(device, dtype, baselines, folder=folder)
    sending = threading.Lock()

    def answer(number: int, job: Job) -> None:
        genome = job.candidate.genome
        try:
            found: Any = worker.measure(genome.source, genome.body.space.backend, job.problem, job.fidelity, job.bar)
        except Exception as error:  # ours: the driver is to see it
            found = error
        with sending:
            pipe.send((number, found))

    threads = ThreadPoolExecutor(together) if together > 1 else None
    try:
        while True:
            number, job = pipe.recv()
            if threads:
                threads.submit(answer, number, job)
            else:
                answer(number, job)
    except (EOFError, BrokenPipeError):
        worker.close()


class Slot:
    """A worker process and the jobs it holds."""

    def __init__(self, together: int, arguments: tuple[Any, ...]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.folder = Path(tempfile.mkdtemp(prefix="evokernel-"))
        self.process: BaseProcess = context.Process(
            target=serve, args=(theirs, self.folder, together, *arguments), daemon=True
        )
        self.process.start()
        theirs.close()
        self.together = together
        self.jobs: dict[int, tuple[Job, int]] = {}  # by number, with the attempts before
        self.given = 0

    @property
    def free(self) -> bool:
        return len(self.jobs) < self.together

    def give(self, job: Job, attempts: int) -> None:
        self.given += 1
        self.jobs[self.given] = (job, attempts)
        self.pipe.send((self.given, job))

    def take(self) -> tuple[Job, Measurement]:
        """Return what it has finished; EOFError or OSError when it has died."""
        number, found = self.pipe.recv()
        job, _ = self.jobs.pop(number)
        if isinstance(found, Exception):
            raise found
        return job, found

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Local(Evaluator):
    """`slots` jobs at once on one device: a worker process each on the cores of this machine, one for all on a GPU.

    A worker that dies costs at most the jobs it held, and each of those is tried once more.
    """

    def __init__(self, device: Device, baselines: tuple[str, ...] = ("sdpa",), slots: int | None = None) -> None:
        self.slots = DEFAULT_SLOTS[device.kind] if slots is None else slots
        if self.slots < 1:
            raise ValueError(f"slots is {slots}; at least 1")
        known_baselines.check_names(baselines, device.kind)
        self.device = device
        self.baselines = baselines
        self.together = self.slots if device.kind == "cuda" else 1
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
            free = next((slot for slot in self.workers if slot.free), None)
            if free is None and len(self.workers) * self.together < self.slots:
                free = Slot(self.together, (self.device, job.problem.dtype, self.baselines))
                self.workers.append(free)
            if free is None:
                return
            self.queue.popleft()
            try:
                free.give(job, attempts)
            except (BrokenPipeError, OSError):
                return  # its death is seen, and the job saved, by wait()

    def wait(self, timeout_s: float) -> list[tuple[Job, Measurement]]:
        finished: list[tuple[Job, Measurement]] = []
        deadline = time.monotonic() + timeout_s
        while not finished and any(slot.jobs for slot in self.workers):
            busy = {slot.pipe: slot for slot in self.workers if slot.jobs}
            ready = wait(list(busy), timeout=max(0.0, deadline - time.monotonic()))
            for pipe in ready:
                slot = busy[pipe]  # type: ignore[index]
                try:
                    finished.append(slot.take())
                except (EOFError, OSError):
                    self._replace(slot, finished)
            self._hand_out()
            if not ready and time.monotonic() >= deadline:
                break
        return finished

    def _replace(self, slot: Slot, finished: list[tuple[Job, Measurement]]) -> None:
        """Drop a worker that died; its jobs are tried once more, then given up."""
        self.workers.remove(slot)
        slot.kill()
        for job, attempts in reversed(slot.jobs.values()):
            if attempts < RETRIES:
                self.queue.appendleft((job, attempts + 1))
            else:
                finished.append((job, failed(Outcome.CRASHED, "two workers died while measuring it")))

    def close(self) -> None:
        for slot in self.workers:
            slot.kill()
        self.workers.clear()
