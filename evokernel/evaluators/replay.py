"""Answer from a recorded landscape, with a virtual clock: a search of hours is repeated in seconds, on any machine."""

from __future__ import annotations

import heapq
from dataclasses import replace
from pathlib import Path

from evokernel.evaluators import Evaluator, Job
from evokernel.landscape import Landscape
from evokernel.measurement import Measurement, Outcome, failed


class Replay(Evaluator):
    """`workers` simulated workers, each busy with a job for as long as it took when it was recorded.

    A genome that was recorded several times answers with each measurement in turn. The clock advances in wait() alone,
    to the end of the next job: waiting for a simulated worker takes no time, whatever the timeout.
    """

    def __init__(self, landscape: str | Path | Landscape, workers: int = 1) -> None:
        if workers < 1:
            raise ValueError(f"workers is {workers}; at least 1")
        self.landscape = landscape if isinstance(landscape, Landscape) else Landscape.load(Path(landscape))
        self.slots = workers
        self.clock = 0.0
        self.free_at = [0.0] * workers  # a heap
        self.running: list[tuple[float, int, Job, Measurement]] = []  # a heap by end, then by submission
        self.submitted = 0
        self.answered: dict[tuple[str, str], int] = {}

    def submit(self, job: Job) -> None:
        measurement = self._answer(job)
        start = max(self.clock, heapq.heappop(self.free_at))
        end = start + measurement.seconds
        heapq.heappush(self.free_at, end)
        heapq.heappush(self.running, (end, self.submitted, job, measurement))
        self.submitted += 1

    def _answer(self, job: Job) -> Measurement:
        key = (job.candidate.genome.key, job.candidate.shape_class)
        recorded = self.landscape.lookup(*key)
        if not recorded:
            return failed(Outcome.REJECTED, "not in the landscape", fidelity=job.fidelity)
        turn = self.answered.get(key, 0)
        self.answered[key] = turn + 1
        return replace(recorded[turn % len(recorded)], fidelity=job.fidelity)

    def wait(self, timeout_s: float) -> list[tuple[Job, Measurement]]:
        if not self.running:
            return []
        self.clock, _, job, measurement = heapq.heappop(self.running)
        return [(job, measurement)]

    def close(self) -> None:
        self.running.clear()

    def now(self) -> float:
        return self.clock
