"""Decide what to try next: which shape class, which operator, which parents; learn from every record."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evokernel.archives import Archive, Entry
from evokernel.candidate import Candidate, Genome
from evokernel.measurement import Fidelity, Measurement, Record, score
from evokernel.operators import Operator, Parent, Plan, ProposalError
from evokernel.problem import Problem, ShapeClass

PARENTS = 4  # offered to an operator
ATTEMPTS = 8  # operators asked before the space counts as exhausted
FIRST = float("inf")  # the weight of an operator that is asked before all others: the seeds
BELIEF = 2  # full measurements before a leader is believed
SETTLED = 6  # scored candidates in a class before its leader is measured again: earlier ones are soon replaced


class SpaceExhausted(Exception):
    """No operator finds a genome that has not been proposed."""


@dataclass
class ClassState:
    """What is known about one shape class."""

    shape_class: ShapeClass
    problem: Problem
    context: Mapping[str, Any]
    archive: Archive
    known: set[str] = field(default_factory=set)  # genome keys proposed
    measurements: dict[int, list[Measurement]] = field(default_factory=dict)
    scores: dict[int, float] = field(default_factory=dict)
    records: dict[int, Record] = field(default_factory=dict)  # the latest of each scored candidate
    leader: int | None = None
    announced: int = 0

    def score_again(self, record: Record) -> float | None:
        """Recompute the candidate's score over all its measurements, and who leads."""
        number = record.candidate.id
        found = self.measurements.setdefault(number, [])
        found.append(record.measurement)
        value = score(found, self.problem)
        if value is None:
            return None
        self.scores[number] = value
        self.records[number] = record
        if self.leader is None or value >= self.scores[self.leader]:
            self.leader = number
        elif number == self.leader:  # it fell by its new measurement
            self.leader = max(self.scores, key=lambda n: self.scores[n])
        return value


class Search:
    """Ask and tell over all shape classes. The lineage is a function of the seed and the order of asks and tells."""

    def __init__(
        self,
        problem: Problem,
        templates: Sequence[Genome],
        operators: Sequence[tuple[Operator, float]],
        archive: Callable[[], Archive],
        device_context: Mapping[str, Any],
        seed: int = 0,
    ) -> None:
        self.templates = tuple(templates)
        self.operators = list(operators)
        self.seed = seed
        self.states = {
            c.name: ClassState(c, problem.in_class(c), problem.context(c, device_context), archive())
            for c in problem.shape_classes()
        }
        self.generations: dict[int, int] = {}
        self.waiting: set[tuple[int, int]] = set()  # (candidate, measurements) handed out to be measured again

    def propose(self) -> Candidate:
        """Return a new candidate, not yet stored, or raise SpaceExhausted."""
        # A class that has nothing left to propose leaves its turn to the others.
        for state in sorted(self.states.values(), key=lambda s: (s.announced, s.shape_class)):
            candidate = self._propose_in(state)
            if candidate is not None:
                return candidate
        raise SpaceExhausted("every genome that the operators find has been proposed")

    def _propose_in(self, state: ClassState) -> Candidate | None:
        # A stream of its own for every ask, so that a resumed run goes on as it would have.
        rng = random.Random(f"{self.seed}/{state.shape_class.name}/{len(state.known)}")
        first = [operator for operator, weight in self.operators if weight == FIRST]
        for _ in range(ATTEMPTS):
            operator = first.pop(0) if first else self._draw(rng)
            plan = self._plan(state, rng)
            try:
                proposal = operator.propose(plan)
            except ProposalError:
                continue
            if proposal.genome.key in state.known:
                continue
            return Candidate(
                proposal.genome,
                state.shape_class.name,
                operator.name,
                proposal.parents,
                1 + max((self.generations.get(p, 0) for p in proposal.parents), default=-1),
                proposal.note,
                proposal.cost_usd,
                proposal.tokens,
            )
        return None

    def _draw(self, rng: random.Random) -> Operator:
        weighted = [(operator, weight) for operator, weight in self.operators if 0 < weight < FIRST]
        return rng.choices([o for o, _ in weighted], [w for _, w in weighted])[0]

    def _plan(self, state: ClassState, rng: random.Random) -> Plan:
        entries = state.archive.sample(rng, PARENTS)
        parents = tuple(Parent(e.record.candidate, e.score, e.record) for e in entries)
        return Plan(
            state.shape_class,
            state.problem,
            state.context,
            self.templates,
            parents,
            rng,
            lambda genome: genome.key in state.known,
        )

    def announce(self, candidate: Candidate) -> None:
        """Note a candidate that has been stored and is about to be measured."""
        state = self.states[candidate.shape_class]
        if candidate.genome.key not in state.known:
            state.known.add(candidate.genome.key)
            state.announced += 1
        self.generations[candidate.id] = candidate.generation

    def tell(self, record: Record) -> None:
        """Learn from a measurement: a candidate's first, or one more of it."""
        self.announce(record.candidate)
        state = self.states[record.candidate.shape_class]
        first = record.candidate.id not in state.measurements
        value = state.score_again(record)
        if value is not None:
            state.archive.add(record, value)
        if first:
            for operator, _ in self.operators:
                operator.learn(record, value)

    def remeasure(self) -> Candidate | None:
        """Return a leader that too few measurements stand behind, or None. Each is returned once per measurement."""
        for state in self.states.values():
            if state.leader is None or len(state.scores) < SETTLED:
                continue
            full = [m for m in state.measurements[state.leader] if m.fidelity is not Fidelity.SCREEN]
            record = state.records[state.leader]
            waiting = (state.leader, len(full))
            if len(full) < BELIEF and waiting not in self.waiting:
                self.waiting.add(waiting)
                return record.candidate
        return None

    def best(self, shape_class: ShapeClass) -> Entry | None:
        state = self.states[shape_class.name]
        if state.leader is None:
            return None
        return Entry(state.records[state.leader], state.scores[state.leader])

    def leaders(self, shape_class: ShapeClass, count: int) -> list[Entry]:
        """Return the best candidates of a class, best first."""
        state = self.states[shape_class.name]
        ranked = sorted(state.scores, key=lambda n: -state.scores[n])[:count]
        return [Entry(state.records[n], state.scores[n]) for n in ranked]


def best_by_class(
    candidates: Iterable[tuple[Candidate, list[Measurement]]], parts: Mapping[str, Problem]
) -> dict[str, tuple[Candidate, list[Measurement]]]:
    """Return each class's champion. One that was verified comes before any that was not: luck does not survive that."""
    best: dict[str, tuple[tuple[bool, float], tuple[Candidate, list[Measurement]]]] = {}
    for candidate, found in candidates:
        value = score(found, parts[candidate.shape_class])
        if value is None:
            continue
        rank = (any(m.passed and m.fidelity is Fidelity.VERIFY for m in found), value)
        if candidate.shape_class not in best or rank > best[candidate.shape_class][0]:
            best[candidate.shape_class] = (rank, (candidate, found))
    return {name: chosen for name, (_, chosen) in best.items()}
