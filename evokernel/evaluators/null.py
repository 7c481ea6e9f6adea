"""Answer at once from a made-up landscape: for measuring the driver, and for tests of the loop."""

from __future__ import annotations

import hashlib
from collections import deque

from evokernel.evaluators import Evaluator, Job
from evokernel.measurement import Fidelity, Measurement, Outcome, Timing, failed


class Null(Evaluator):
    """Scores are a function of the knobs: each knob pulls towards one of its values. One genome in ten fails.

    The clock is virtual: every job takes `seconds`, so budgets and paces behave as they would.
    """

    def __init__(self, seconds: float = 1.0, slots: int = 2) -> None:
        self.seconds = seconds
        self.slots = slots
        self.queue: deque[Job] = deque()
        self.clock = 0.0

    def submit(self, job: Job) -> None:
        self.queue.append(job)

    def wait(self, timeout_s: float) -> list[tuple[Job, Measurement]]:
        if not self.queue:
            return []
        self.clock += self.seconds / self.slots
        job = self.queue.popleft()
        return [(job, self.measure(job))]

    def measure(self, job: Job) -> Measurement:
        genome = job.candidate.genome
        if int(genome.key, 16) % 10 == 0:
            return failed(Outcome.INCORRECT, "made up", seconds=self.seconds, fidelity=job.fidelity)
        speedup = 1.0
        for name, values in genome.body.space.knobs.items():
            best = int(hashlib.sha256(name.encode()).hexdigest(), 16) % len(values)
            speedup *= 1 - 0.1 * abs(values.index(genome.knobs[name]) - best)
        chosen = [(w, False) for w in job.problem.workloads]
        if job.fidelity is Fidelity.VERIFY:
            chosen += [(w, True) for w in job.problem.held_out]
        timings = tuple(Timing(w.name, (100.0,) * 3, "null", (100.0 * speedup,) * 3, out) for w, out in chosen)
        return Measurement(Outcome.PASSED, fidelity=job.fidelity, timings=timings, seconds=self.seconds)

    def close(self) -> None:
        self.queue.clear()

    def now(self) -> float:
        return self.clock
