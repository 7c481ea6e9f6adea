"""What drives a run, whatever it measures: the clock that it banks, what it has spent, and who may stop it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from evokernel.budget import Spent
from evokernel.evaluators import Evaluator
from evokernel.measurement import Measurement, Outcome
from evokernel.store import Run, Store

STOP_POLL_S = 1.0  # how often the clock is banked, and the database asked whether another process wants this to stop


class Driver:
    """One sitting of a run. Whoever drives is the only writer of the database."""

    run: Run
    store: Store
    evaluator: Evaluator

    def sit_down(self) -> None:
        """Begin where earlier sittings left off."""
        self.spent = self.store.spent(self.run.id)
        self.outcomes: Counter[Outcome] = Counter()
        self.stopping = ""  # why nothing more is started; empty while it goes on
        self.started_at = self.last_saved = self.last_poll = self.evaluator.now()
        self.evaluated_here = 0
        self.busy_s = 0.0

    def stop(self, reason: str) -> None:
        """Start no more; what is in flight is finished and stored."""
        self.stopping = self.stopping or reason

    def add_spending(self, measurement: Measurement) -> None:
        self.evaluated_here += 1
        self.busy_s += measurement.seconds
        self.spent = replace(
            self.spent,
            evaluations=self.spent.evaluations + 1,
            gpu_s=self.spent.gpu_s + measurement.device_seconds,
        )

    def poll(self) -> None:
        """Bank the clock, and notice a request from another process, now and then."""
        now = self.evaluator.now()
        if now - self.last_poll >= STOP_POLL_S:
            self.last_poll = now
            self.save_clock()
            if self.store.stop_requested(self.run.id):
                self.stop("stop requested")

    def save_clock(self) -> None:
        """Bank the wall time so far, so that a killed run resumes with what is left of its budget."""
        now = self.evaluator.now()
        self.store.add_elapsed(self.run.id, now - self.last_saved)
        self.spent = replace(self.spent, wall_s=self.spent.wall_s + now - self.last_saved)
        self.last_saved = now

    def spent_now(self) -> Spent:
        return replace(self.spent, wall_s=self.spent.wall_s + self.evaluator.now() - self.last_saved)

    @property
    def here_s(self) -> float:
        """Return the seconds of this sitting."""
        return max(1e-9, self.evaluator.now() - self.started_at)

    @property
    def per_minute(self) -> float:
        return 60 * self.evaluated_here / self.here_s

    @property
    def busy_share(self) -> float:
        return min(1.0, self.busy_s / self.here_s / self.evaluator.slots)
