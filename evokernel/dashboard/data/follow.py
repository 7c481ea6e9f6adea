"""Follow runs as they grow: each look reads only what is new, so that 100,000 candidates are as quick as ten."""

from __future__ import annotations

import json
import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from evokernel.errors import StoreError
from evokernel.measurement import DISPROVED, Fidelity, Outcome, geometric_mean
from evokernel.problem import Problem
from evokernel.store import Run, Store
from evokernel.store.following import Gain, NewCandidate, NewMeasurement, NewTiming, decoded, gained

PENDING = "PENDING"
BODY = "body"  # an axis beside the knobs: which module a candidate is a setting of
BASELINES = "baselines_us"  # in the resources: every baseline's record by workload, where there are several
DISPROVING = frozenset(outcome.value for outcome in DISPROVED)


@dataclass(eq=False, slots=True)
class Entry:
    """A candidate with all that was measured of it so far; score and speedups as in evokernel.measurement.score."""

    row: NewCandidate
    knobs: dict[str, Any]
    parents: tuple[int, ...] = ()
    children: list[int] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)  # one a measurement
    timings: list[NewTiming] = field(default_factory=list)  # of full and verifying measurements that passed
    facts: dict[str, float] = field(default_factory=dict)  # numbers that the compiler and the worker told last
    verified: bool = False
    score: float | None = None
    held_out: float | None = None

    @property
    def id(self) -> int:
        return self.row.id

    @property
    def outcome(self) -> str:
        """Return what the candidate counts as: disproved once is disproved, else passed once is passed."""
        for deciding in (Outcome.CHEATED.value, Outcome.INCORRECT.value, Outcome.PASSED.value):
            if deciding in self.outcomes:
                return deciding
        return self.outcomes[-1] if self.outcomes else PENDING

    def add(self, measurement: NewMeasurement, timings: list[NewTiming]) -> None:
        self.outcomes.append(measurement.outcome)
        self.verified = self.verified or measurement.fidelity == Fidelity.VERIFY.value
        if measurement.outcome == Outcome.PASSED.value and measurement.fidelity != Fidelity.SCREEN.value:
            self.timings += timings
        if told := decoded(measurement.resources_json):
            self.facts = {name: value for name, value in told.items() if isinstance(value, int | float)}

    def speedups(self, held_out: bool = False) -> dict[str, float]:
        return _medians(self.timings, held_out)


def _medians(timings: Sequence[NewTiming], held_out: bool) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for timing in timings:
        if timing.held_out is held_out and timing.speedup > 0:
            found.setdefault(timing.workload, []).append(timing.speedup)
    return {name: values[0] if len(values) == 1 else statistics.median(values) for name, values in found.items()}


class Step(NamedTuple):
    """A change of a shape class's best: a new leader, or a truer score of the same one."""

    evaluation: int  # from 1, in completion order within the run
    best: float
    leader: int


@dataclass
class Yielded:
    """What an operator was good for so far."""

    proposed: int = 0
    led: int = 0
    device_s: float = 0.0
    cost_usd: float = 0.0


@dataclass
class Part:
    """One shape class: its candidates in the order of proposal, and which knobs they have and vary."""

    weights: dict[str, float]
    entries: list[Entry] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    leader: Entry | None = None
    first: dict[str, Any] = field(default_factory=dict)  # each knob's first value
    varied: set[str] = field(default_factory=set)


class Snapshot:
    """All of one run, in memory. `take` adds what is new; `version` grows when there was any.

    What pages show of all evaluations is summed up as they come in, so that a look costs the same at any size.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.version = 0
        self.entries: dict[int, Entry] = {}
        self.parts = {c.name: Part(_weights(run.problem.in_class(c))) for c in run.problem.shape_classes()}
        self.baselines: dict[str, dict[str, list[float]]] = {}  # workload -> baseline -> medians, in microseconds
        self.operators: dict[str, Yielded] = {}
        # One item an evaluation: whose, the outcome, and what had been spent once it was in.
        self.evaluated: list[Entry] = []
        self.outcomes: list[str] = []
        self.wall_s: list[float] = []  # since the run's start
        self.device_s: list[float] = []
        self.usd: list[float] = []
        self.tokens = 0
        self.pending = 0
        self.last_candidate = 0
        self.last_measurement = 0
        self.memo: dict[Any, Any] = {}
        self.slow: dict[Any, tuple[int, Any]] = {}  # with the number of evaluations it was made of

    @property
    def shape_classes(self) -> list[str]:
        return list(self.parts)

    def workloads(self, shape_class: str) -> list[str]:
        return list(self.parts[shape_class].weights)

    def leader(self, shape_class: str) -> Entry | None:
        return self.parts[shape_class].leader

    def remember(self, key: Any, make: Callable[[], Any], slack: float = 0.0) -> Any:
        """Return make(), kept until the run gains something, or with slack until it has grown by that share."""
        if key in self.memo:
            return self.memo[key]
        size, kept = self.slow.get(key, (0, None)) if slack else (0, None)
        if not slack or not size or len(self.evaluated) > size * (1 + slack):
            kept = make()
            if slack:
                self.slow[key] = (len(self.evaluated), kept)
        self.memo[key] = kept
        return kept

    def take(self, gain: Gain) -> None:
        """Add what a run has gained."""
        for row in gain.candidates:
            self._propose(row, gain.parents.get(row.id, ()))
            self.last_candidate = row.id
        for measurement in gain.measurements:
            self._measure(measurement, gain.timings.get(measurement.id, []))
            self.last_measurement = measurement.id
        if gain.candidates or gain.measurements:
            self.version += 1
            self.memo.clear()

    def _propose(self, row: NewCandidate, parents: tuple[int, ...]) -> None:
        entry = self.entries[row.id] = Entry(row._replace(knobs_json=""), decoded(row.knobs_json), parents)
        for parent in parents:
            if parent in self.entries:
                self.entries[parent].children.append(row.id)
        part = self.parts.setdefault(row.shape_class, Part({}))
        part.entries.append(entry)
        for name, value in (*entry.knobs.items(), (BODY, row.body)):
            if name not in part.varied and part.first.setdefault(name, value) != value:
                part.varied.add(name)
        operator = self.operators.setdefault(row.operator, Yielded())
        operator.proposed += 1
        operator.cost_usd += row.cost_usd
        self.tokens += row.tokens
        self.pending += 1

    def _measure(self, measurement: NewMeasurement, timings: list[NewTiming]) -> None:
        entry = self.entries[measurement.candidate_id]
        new = not entry.outcomes
        self.pending -= new
        entry.add(measurement, timings)
        for timing in timings:
            self.baselines.setdefault(timing.workload, {}).setdefault(timing.baseline, []).append(timing.baseline_us)
        if BASELINES in measurement.resources_json:  # rarely there, and dear to decode
            self._note_slower_baselines(json.loads(measurement.resources_json)[BASELINES], timings)
        self.operators[entry.row.operator].device_s += measurement.device_seconds
        self.evaluated.append(entry)
        self.outcomes.append(measurement.outcome)
        self.wall_s.append((measurement.created_at - self.run.started_at).total_seconds())
        self.device_s.append((self.device_s[-1] if self.device_s else 0.0) + measurement.device_seconds)
        self.usd.append((self.usd[-1] if self.usd else 0.0) + (entry.row.cost_usd if new else 0.0))
        part = self.parts[entry.row.shape_class]
        self._score(part, entry)
        if part.leader is None or part.leader.score is None:
            return
        before = part.steps[-1] if part.steps else None
        if before is None or (before.best, before.leader) != (part.leader.score, part.leader.id):
            part.steps.append(Step(len(self.evaluated), part.leader.score, part.leader.id))
            if before is None or before.leader != part.leader.id:
                self.operators[part.leader.row.operator].led += 1

    def _note_slower_baselines(self, found: Mapping[str, Mapping[str, float]], timings: list[NewTiming]) -> None:
        """Add what the baselines took that were not timed beside the candidate because another is faster."""
        fastest = {timing.workload: timing.baseline for timing in timings}
        for workload, latencies_us in found.items():
            for name, latency_us in latencies_us.items():
                if name != fastest.get(workload):
                    self.baselines.setdefault(workload, {}).setdefault(name, []).append(latency_us)

    def _score(self, part: Part, entry: Entry) -> None:
        """Give the entry its score, and its class the leader that follows from it."""
        before = entry.score
        disproved = not DISPROVING.isdisjoint(entry.outcomes)
        entry.score = None if disproved else _score(entry.speedups(), part.weights)
        held_out = {} if disproved else entry.speedups(held_out=True)
        entry.held_out = _score(held_out, {t.workload: t.weight for t in entry.timings if t.held_out})
        if entry is part.leader and (entry.score is None or (before is not None and entry.score < before)):
            scored = [e for e in part.entries if e.score is not None]
            part.leader = max(scored, key=lambda e: e.score or 0.0, default=None)
        elif entry.score is not None and (part.leader is None or entry.score > (part.leader.score or 0.0)):
            part.leader = entry


def _weights(part: Problem) -> dict[str, float]:
    return {workload.name: workload.weight for workload in part.workloads}


def _score(speedups: Mapping[str, float], weights: Mapping[str, float]) -> float | None:
    if not weights or not weights.keys() <= speedups.keys():
        return None
    return _mean(speedups, weights)


def _mean(speedups: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Return the weighted geometric mean."""
    return geometric_mean([(speedups[name], weight) for name, weight in weights.items()])


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
