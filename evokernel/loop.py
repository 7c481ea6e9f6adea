"""Drive a campaign: propose, submit, store, tell; stop on budget or request; verify the champions; resume is tell."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from evokernel.budget import Budget, Spent
from evokernel.candidate import Candidate
from evokernel.desk import Desk
from evokernel.driver import STOP_POLL_S, Driver
from evokernel.evaluators import Evaluator, Job
from evokernel.measurement import Fidelity, Record
from evokernel.problem import Problem, ShapeClass
from evokernel.reporters import Progress, Reporter
from evokernel.search import Search, SpaceExhausted
from evokernel.store import Run, Store

log = logging.getLogger(__name__)

CHAMPIONS = 3  # candidates of each class that are verified at the end
VERIFICATIONS = 2  # measurements of each, beyond those of the search


@dataclass
class Campaign(Driver):
    """One sitting of a run. The driver is the only writer of the database."""

    run: Run
    store: Store
    search: Search
    evaluator: Evaluator
    problem: Problem
    budget: Budget
    reporter: Reporter
    desk: Desk

    def __post_init__(self) -> None:
        self.classes = {c.name: c for c in self.problem.shape_classes()}
        self.parts = {c.name: self.problem.in_class(c) for c in self.classes.values()}
        self.sit_down()
        self.in_flight: dict[int, Job] = {}
        self.desk.open(self.begin, self.in_flight, lambda: self.stopping)

    def execute(self) -> str:
        """Run to the end of the budget, or until stopped; returns the status that the run was left with."""
        self.reporter.start(self.run, self.evaluator.slots)
        self.store.set_status(self.run.id, "running")
        try:
            self.restore()
            self.explore()
            self.desk.close()
            drained = self.stopping in ("interrupted", "stop requested")
            if not drained:
                self.verify()
            status = "stopped" if drained else "finished"
        except BaseException:
            self.save_clock()
            self.store.set_status(self.run.id, "failed")
            raise
        self.save_clock()
        self.store.set_status(self.run.id, status)
        self.reporter.finish(self.progress(), status, self.stopping)
        return status

    def restore(self) -> None:
        """Tell the search everything known, in completion order, and take up what was in flight."""
        count = 0
        for record in self.store.records(self.run.id):
            self.search.tell(record)
            self.outcomes[record.measurement.outcome] += 1
            count += 1
        unfinished = self.store.pending(self.run.id)
        for candidate in unfinished:
            self.search.announce(candidate)
        for candidate in unfinished:
            self.submit(candidate)
        if count or unfinished:
            self.reporter.note(f"resumed: {count} measurements told again, {len(unfinished)} taken up")

    def explore(self) -> None:
        """Keep the evaluator full until the budget, the space or a request ends the search."""
        while True:
            self.check_stop()
            self.desk.serve()
            while not self.stopping and len(self.in_flight) < self.evaluator.slots and self.start_one():
                self.check_stop()
            if not self.in_flight and (self.stopping or not self.desk.busy):
                return
            self.collect()

    def start_one(self) -> bool:
        """Start a candidate; False when there is none to start now."""
        again = self.search.remeasure()
        if again is not None:
            self.submit(again)
            return True
        try:
            proposal = self.search.propose()
        except SpaceExhausted as end:
            if not self.desk.slow or not (self.in_flight or self.desk.busy):  # a model may open more
                self.stop(str(end))
            return False
        candidate = self.store.add_candidate(self.run.id, proposal)
        self.search.announce(candidate)
        self.submit(candidate)
        return True

    def submit(self, candidate: Candidate, fidelity: Fidelity = Fidelity.FULL) -> None:
        bar = self.search.bar(candidate) if fidelity is Fidelity.FULL else {}
        job = Job(candidate, self.parts[candidate.shape_class], fidelity, bar)
        self.in_flight[candidate.id] = job
        self.evaluator.submit(job)

    def begin(self, candidate: Candidate, fidelity: Fidelity) -> None:
        """Measure what the desk took in, and see whether more may follow."""
        self.submit(candidate, fidelity)
        self.check_stop()

    def collect(self) -> None:
        """Store and tell what has finished."""
        if not self.in_flight:
            self.desk.wait(STOP_POLL_S)
            return
        for job, measurement in self.evaluator.wait(timeout_s=STOP_POLL_S):
            del self.in_flight[job.candidate.id]
            self.tell(self.store.add_measurement(self.run.id, job.candidate, measurement))

    def tell(self, record: Record) -> None:
        measurement = record.measurement
        before = self.search.best(self.classes[record.candidate.shape_class])
        self.search.tell(record)
        after = self.search.best(self.classes[record.candidate.shape_class])
        self.outcomes[measurement.outcome] += 1
        self.add_spending(measurement)
        self.desk.told(record, self.search.score_of(record.candidate))
        improved = after is not None and (before is None or after.score > before.score)
        self.reporter.evaluated(record, record.score(self.parts[record.candidate.shape_class]), improved)
        self.reporter.update(self.progress())
        log.info(
            "measured",
            extra={"candidate": record.candidate.id, "outcome": measurement.outcome, "seconds": measurement.seconds},
        )

    def check_stop(self, *, verifying: bool = False) -> bool:
        """Notice a reached cap or a request from another process; says whether to go on verifying."""
        self.poll()
        # What is in flight counts as spent: a cap on evaluations is exact.
        foreseen = replace(self.spent_now(), evaluations=self.spent.evaluations + len(self.in_flight))
        cap = self.budget.exhausted(foreseen, verifying=verifying)
        if cap and not verifying:
            self.stop(f"budget reached: {cap}")
        return not cap and self.stopping not in ("interrupted", "stop requested")

    def spent_now(self) -> Spent:
        return replace(super().spent_now(), usd=self.desk.ledger.usd, tokens=self.desk.ledger.tokens)

    def verify(self) -> None:
        """Measure each class's leaders again, with more repeats and on held-out workloads, best first."""
        leaders = {c: self.search.leaders(c, CHAMPIONS) for c in self.classes.values()}
        # Rounds over ranks: should time run out, every class has its first champion verified.
        for rank in range(CHAMPIONS):
            for _ in range(VERIFICATIONS if rank == 0 else 1):
                for entries in leaders.values():
                    if rank < len(entries) and self.check_stop(verifying=True):
                        candidate = entries[rank].record.candidate
                        self.submit(candidate, Fidelity.VERIFY)
                        while self.in_flight:  # alone on the machine: these are the numbers that are published
                            self.collect()

    def progress(self) -> Progress:
        spent = self.spent_now()
        return Progress(
            spent=spent,
            used=self.budget.used(spent, verifying=True),
            left_s=self.budget.left_s(spent),
            outcomes=dict(self.outcomes),
            per_minute=self.per_minute,
            busy_share=self.busy_share,
            in_flight=len(self.in_flight),
            best={c.name: self._best(c) for c in self.classes.values()},
        )

    def _best(self, shape_class: ShapeClass) -> tuple[int, float] | None:
        entry = self.search.best(shape_class)
        return (entry.record.candidate.id, entry.score) if entry else None
