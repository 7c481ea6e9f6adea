"""Follow runs as they grow: each look reads only what is new, so that 100,000 candidates are as quick as ten."""

from __future__ import annotations

import math
import statistics
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from evokernel.errors import StoreError
from evokernel.measurement import DISPROVED, Fidelity, Outcome
from evokernel.problem import Problem
from evokernel.store import Run, Store
from evokernel.store.following import Gain, NewCandidate, NewMeasurement, NewTiming, decoded, gained

PENDING = "PENDING"
DISPROVING = frozenset(outcome.value for outcome in DISPROVED)


@dataclass(eq=False)
class Entry:
    """A candidate with all that was measured of it so far; score and speedups as in evokernel.measurement.score."""

    row: NewCandidate
    parents: tuple[int, ...] = ()
    children: list[int] = field(default_factory=list)
    measurements: list[NewMeasurement] = field(default_factory=list)
    timings: list[NewTiming] = field(default_factory=list)  # of full and verifying measurements that passed
    score: float | None = None
    held_out: float | None = None

    @property
    def id(self) -> int:
        return self.row.id

    @cached_property
    def knobs(self) -> dict[str, Any]:
        return decoded(self.row.knobs_json)

    @property
    def resources(self) -> dict[str, Any]:
        """Return what the compiler and the worker told last; empty before any measurement."""
        return next((found for m in reversed(self.measurements) if (found := decoded(m.resources_json))), {})

    @property
    def outcome(self) -> str:
        """Return what the candidate counts as: disproved once is disproved, else passed once is passed."""
        outcomes = [m.outcome for m in self.measurements]
        for deciding in (Outcome.CHEATED.value, Outcome.INCORRECT.value, Outcome.PASSED.value):
            if deciding in outcomes:
                return deciding
        return outcomes[-1] if outcomes else PENDING

    @property
    def verified(self) -> bool:
        return any(m.fidelity == Fidelity.VERIFY.value for m in self.measurements)

    def speedups(self, held_out: bool = False) -> dict[str, float]:
        return _medians(self.timings, held_out)


def _medians(timings: Sequence[NewTiming], held_out: bool) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for timing in timings:
        if timing.held_out is held_out and timing.speedup > 0:
            found.setdefault(timing.workload, []).append(timing.speedup)
    return {name: values[0] if len(values) == 1 else statistics.median(values) for name, values in found.items()}


@dataclass(frozen=True)
class Evaluation:
    """One measurement in completion order, with what was known once it was in."""

    number: int  # from 1, within the run
    entry: Entry
    outcome: str
    at: datetime
    seconds: float
    device_seconds: float
    cost_usd: float  # of the candidate, at its first measurement
    best: float | None  # the best score of the candidate's shape class, as it stood then
    leader: int | None  # whose it was


class Snapshot:
    """All of one run, in memory. `refresh` takes up what is new; `version` grows when there was any."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.version = 0
        self.entries: dict[int, Entry] = {}
        self.evaluations: list[Evaluation] = []
        self.baselines: dict[str, dict[str, list[float]]] = {}  # workload -> baseline -> medians, in microseconds
        self.last_candidate = 0
        self.last_measurement = 0
        self.memo: dict[Any, Any] = {}
        self._weights = {c.name: _weights(run.problem.in_class(c)) for c in run.problem.shape_classes()}
        self._leaders: dict[str, Entry] = {}

    @property
    def shape_classes(self) -> list[str]:
        return list(self._weights)

    def workloads(self, shape_class: str) -> list[str]:
        return list(self._weights.get(shape_class, ()))

    def leader(self, shape_class: str) -> Entry | None:
        return self._leaders.get(shape_class)

    def in_class(self, shape_class: str | None) -> list[Entry]:
        """Return the candidates of a shape class, or all of them, in the order in which they were proposed."""
        return [e for e in self.entries.values() if shape_class is None or e.row.shape_class == shape_class]

    def remember(self, key: Any, make: Any) -> Any:
        """Return make(), kept until the run gains something."""
        if key not in self.memo:
            self.memo[key] = make()
        return self.memo[key]

    def take(self, gain: Gain) -> None:
        """Add what a run has gained."""
        for row in gain.candidates:
            entry = self.entries[row.id] = Entry(row, gain.parents.get(row.id, ()))
            for parent in entry.parents:
                if parent in self.entries:
                    self.entries[parent].children.append(row.id)
            self.last_candidate = row.id
        for measurement in gain.measurements:
            self._measure(measurement, gain.timings.get(measurement.id, []))
            self.last_measurement = measurement.id
        if gain.candidates or gain.measurements:
            self.version += 1
            self.memo.clear()

    def _measure(self, measurement: NewMeasurement, timings: list[NewTiming]) -> None:
        entry = self.entries[measurement.candidate_id]
        first = not entry.measurements
        entry.measurements.append(measurement)
        if measurement.outcome == Outcome.PASSED.value and measurement.fidelity != Fidelity.SCREEN.value:
            entry.timings += timings
        for timing in timings:
            self.baselines.setdefault(timing.workload, {}).setdefault(timing.baseline, []).append(timing.baseline_us)
        self._score(entry)
        leader = self._leaders.get(entry.row.shape_class)
        self.evaluations.append(
            Evaluation(
                len(self.evaluations) + 1,
                entry,
                measurement.outcome,
                measurement.created_at,
                measurement.seconds,
                measurement.device_seconds,
                entry.row.cost_usd if first else 0.0,
                leader.score if leader else None,
                leader.id if leader else None,
            )
        )

    def _score(self, entry: Entry) -> None:
        """Give the entry its score, and its class the leader that follows from it."""
        before, name = entry.score, entry.row.shape_class
        disproved = any(m.outcome in DISPROVING for m in entry.measurements)
        entry.score = None if disproved else _score(entry.speedups(), self._weights.get(name, {}))
        held_out = {} if disproved else entry.speedups(held_out=True)
        entry.held_out = _score(held_out, {t.workload: t.weight for t in entry.timings if t.held_out})
        leader = self._leaders.get(name)
        if entry is leader and (entry.score is None or (before is not None and entry.score < before)):
            scored = [e for e in self.entries.values() if e.row.shape_class == name and e.score is not None]
            if scored:
                self._leaders[name] = max(scored, key=lambda e: e.score or 0.0)
            else:
                del self._leaders[name]
        elif entry.score is not None and (leader is None or entry.score > (leader.score or 0.0)):
            self._leaders[name] = entry


def _weights(part: Problem) -> dict[str, float]:
    return {workload.name: workload.weight for workload in part.workloads}


def _score(speedups: Mapping[str, float], weights: Mapping[str, float]) -> float | None:
    if not weights or not weights.keys() <= speedups.keys():
        return None
    return _mean(speedups, weights)


def _mean(speedups: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Return the weighted geometric mean."""
    return math.exp(sum(w * math.log(speedups[name]) for name, w in weights.items()) / sum(weights.values()))


class Follower:
    """The database as the pages see it: runs by name, each a snapshot that is brought up to date when it is asked."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.snapshots: dict[int, Snapshot] = {}
        self.lock = threading.RLock()

    def runs(self) -> list[Run]:
        """Return every run, the latest first."""
        return self.store.runs()[::-1]

    def snapshot(self, name: str | None = None) -> Snapshot | None:
        """Return the run of that name, or the latest, as of now; None when there is no such run."""
        runs = self.runs()
        found = next((run for run in runs if name is None or run.name == name), None)
        return self.follow(found) if found else None

    def follow(self, run: Run) -> Snapshot:
        with self.lock:
            snapshot = self.snapshots.get(run.id)
            if snapshot is None:
                snapshot = self.snapshots[run.id] = Snapshot(run)
            snapshot.run = run
            snapshot.take(gained(self.store.engine, run.id, snapshot.last_candidate, snapshot.last_measurement))
            return snapshot

    def of_candidate(self, candidate_id: int) -> tuple[Snapshot, Entry] | None:
        """Return a candidate with its run; None when there is none of that number."""
        try:
            self.store.candidate(candidate_id)
        except StoreError:
            return None
        snapshot = self.follow(self.store.run_of(candidate_id))
        return snapshot, snapshot.entries[candidate_id]
