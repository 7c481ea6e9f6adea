"""Measure every genome of a space, failures included, and the best of them again: a landscape to replay searches on."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evokernel.candidate import Body, Candidate, Genome
from evokernel.driver import STOP_POLL_S, Driver
from evokernel.errors import SpaceError
from evokernel.evaluators import Evaluator, Job
from evokernel.landscape import Landscape
from evokernel.measurement import Measurement, Record, score
from evokernel.problem import Problem
from evokernel.reporters import Progress, Reporter
from evokernel.store import Run, Store

AGAIN = 2  # further measurements of each of the best: with the first, a median that one lucky run does not move

Key = tuple[str, str]  # shape class, genome


def genomes(body: Body, problem: Problem, device: Mapping[str, Any]) -> list[tuple[str, Genome]]:
    """List every valid genome of every shape class, in a fixed random order: drift of the machine is no knob's effect.

    SpaceError says why a shape class has none.
    """
    found: list[tuple[str, Genome]] = []
    for shape_class in problem.shape_classes():
        context = problem.context(shape_class, device)
        here = [(shape_class.name, Genome(body, knobs)) for knobs in body.space.enumerate(context)]
        if not here:
            raise SpaceError(f"sweep.knobs in {shape_class.name}: {body.space.why_empty(context)}")
        found += here
    random.Random(0).shuffle(found)
    return found


@dataclass
class Sweep(Driver):
    """One sitting of a sweep. The database is its state, so that a killed sweep goes on where it was."""

    run: Run
    store: Store
    evaluator: Evaluator
    problem: Problem
    grid: list[tuple[str, Genome]]
    reporter: Reporter
    remeasure_share: float = 0.05
    measured: dict[Key, list[Measurement]] = field(default_factory=dict)
    candidates: dict[Key, Candidate] = field(default_factory=dict)
    best: dict[str, tuple[int, float]] = field(default_factory=dict)  # (candidate, score) by shape class

    def __post_init__(self) -> None:
        self.parts = {c.name: self.problem.in_class(c) for c in self.problem.shape_classes()}
        self.sit_down()
        self.in_flight = 0
        self.expected = len(self.grid) + AGAIN * math.ceil(self.remeasure_share * len(self.grid))

    def execute(self) -> str:
        """Measure what the database lacks; returns the status that the run was left with."""
        self.reporter.start(self.run, self.evaluator.slots)
        self.store.set_status(self.run.id, "running")
        status = "failed"
        try:
            self._restore()
            self._measure(self._unmeasured())
            if not self.stopping:
                self._measure(self._best_again())
            status = "stopped" if self.stopping else "finished"
        finally:
            self.save_clock()
            self.store.set_status(self.run.id, status)
        self.reporter.finish(self._progress(), status, self.stopping)
        return status

    def _restore(self) -> None:
        for record in self.store.records(self.run.id):
            self._take(record)
        for candidate in self.store.pending(self.run.id):
            self.candidates[candidate.shape_class, candidate.genome.key] = candidate
        if self.measured:
            self.reporter.note(f"resumed: {len(self.measured)} of {len(self.grid)} genomes are measured")

    def _unmeasured(self) -> Iterator[Candidate]:
        for shape_class, genome in self.grid:
            key = shape_class, genome.key
            if key in self.measured:
                continue
            if key not in self.candidates:
                proposed = Candidate(genome, shape_class, "sweep")
                self.candidates[key] = self.store.add_candidate(self.run.id, proposed)
            yield self.candidates[key]

    def _best_again(self) -> Iterator[Candidate]:
        """Yield the best share of each class, as often as each lacks measurements; round by round, as luck drifts."""
        chosen: list[Key] = []
        for name, part in self.parts.items():
            # By the first measurement alone: what is measured again must not depend on where a sweep was interrupted.
            firsts = {key: score(found[:1], part) for key, found in self.measured.items() if key[0] == name}
            ranked = sorted((-value, key) for key, value in firsts.items() if value is not None)
            chosen += [key for _, key in ranked[: math.ceil(self.remeasure_share * len(ranked))]]
        for number in range(1, 1 + AGAIN):
            yield from [self.candidates[key] for key in chosen if len(self.measured[key]) <= number]

    def _measure(self, waiting: Iterator[Candidate]) -> None:
        while True:
            self.poll()
            while not self.stopping and self.in_flight < self.evaluator.slots:
                candidate = next(waiting, None)
                if candidate is None:
                    break
                self.in_flight += 1
                self.evaluator.submit(Job(candidate, self.parts[candidate.shape_class]))
            if not self.in_flight:
                return
            for job, measurement in self.evaluator.wait(timeout_s=STOP_POLL_S):
                self.in_flight -= 1
                self._stored(self.store.add_measurement(self.run.id, job.candidate, measurement))

    def _stored(self, record: Record) -> None:
        self.add_spending(record.measurement)
        self.reporter.evaluated(record, *self._take(record))
        self.reporter.update(self._progress())

    def _take(self, record: Record) -> tuple[float | None, bool]:
        """Note a measurement; returns the candidate's score over all of its own, and whether it is the best so far."""
        candidate = record.candidate
        key = candidate.shape_class, candidate.genome.key
        self.candidates[key] = candidate
        found = self.measured.setdefault(key, [])
        found.append(record.measurement)
        self.outcomes[record.measurement.outcome] += 1
        value = score(found, self.parts[candidate.shape_class])
        best = self.best.get(candidate.shape_class)
        improved = value is not None and (best is None or value > best[1])
        if value is not None and (improved or (best and best[0] == candidate.id)):
            self.best[candidate.shape_class] = (candidate.id, value)
        return value, improved

    def _progress(self) -> Progress:
        done = self.spent.evaluations
        left_s = self.here_s / self.evaluated_here * max(0, self.expected - done) if self.evaluated_here else None
        return Progress(
            self.spent,
            {"grid": done / self.expected},
            left_s,
            dict(self.outcomes),
            self.per_minute,
            self.busy_share,
            self.in_flight,
            dict(self.best),
        )


def write_landscape(store: Store, run: Run, body: Body, path: Path) -> Landscape:
    """Write what a run measured, and beside it the space as a template, which a campaign that replays it names.

    Each file is replaced at once, so that a reader never meets half of one.
    """
    landscape = Landscape()
    for record in store.records(run.id):
        landscape.append(record)
    unfinished = path.with_name(f".{path.name}.part")
    landscape.save(unfinished)
    os.replace(unfinished, path)
    template = path.with_suffix(".py")
    unfinished.write_text(body.source)
    os.replace(unfinished, template)
    return landscape
