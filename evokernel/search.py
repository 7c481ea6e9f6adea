"""Decide what to try next: which shape class, which operator, which parents; learn from every record."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evokernel.archives import Archive, Entry
from evokernel.candidate import Candidate, Genome
from evokernel.measurement import Fidelity, Measurement, Record, partial_score, score, workload_speedups
from evokernel.operators import Operator, Parent, Plan, Proposal, ProposalError
from evokernel.problem import Problem, ShapeClass

PARENTS = 4  # offered to an operator
ROUNDS = 2  # times that every operator is asked before a class counts as exhausted
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
    asked: int = 0  # plans made, or announced by others
    measurements: dict[int, list[Measurement]] = field(default_factory=dict)
    scores: dict[int, float] = field(default_factory=dict)
    records: dict[int, Record] = field(default_factory=dict)  # the latest of each scored candidate
    learnt: set[int] = field(default_factory=set)  # candidates that the operators were told of
    leader: int | None = None

    @property
    def turn(self) -> float:
        """The class with the lowest is asked next: plans per weight of its workloads."""
        weights = [w.weight for w in self.problem.workloads]
        return self.asked * len(weights) / sum(weights)

    def score_again(self, record: Record) -> float | None:
        """Recompute the candidate's score over all its measurements, and who leads."""
        number = record.candidate.id
        found = self.measurements.setdefault(number, [])
        found.append(record.measurement)
        value = score(found, self.problem)
        if value is not None:
            self.scores[number] = value
            self.records[number] = record
        elif number in self.scores:  # disproved
            del self.scores[number], self.records[number]
        if number == self.leader:  # it may have fallen; rare enough to look at all
            self.leader = max(self.scores, key=lambda n: self.scores[n], default=None)
        elif value is not None and (self.leader is None or value > self.scores[self.leader]):
            self.leader = number
        return value


@dataclass(frozen=True)
class Ask:
    """A plan, and the operators in the order in which they are to be tried on it."""

    plan: Plan
    operators: tuple[Operator, ...]

    def answer(self) -> tuple[Operator, Proposal] | None:
        """Return the proposal of the first operator that has an unseen one. May block, so it may run in a thread."""
        for operator in self.operators:
            try:
                proposal = operator.propose(self.plan)
            except ProposalError:
                continue
            if not self.plan.known(proposal.genome):
                return operator, proposal
        return None


class Search:
    """Ask and tell over all shape classes. The lineage is a function of the seed and the order of asks and tells.

    Everything but Ask.answer belongs to one thread, the driver's.
    """

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
        for state in sorted(self.states.values(), key=lambda s: (s.turn, s.shape_class)):
            ask = self.ask(state.shape_class)
            answer = ask.answer()
            if answer is not None:
                return self.candidate(ask, *answer)
        raise SpaceExhausted("every genome that the operators find has been proposed")

    def ask(self, shape_class: ShapeClass) -> Ask:
        """Draw parents and operators for a new candidate of a class."""
        state = self.states[shape_class.name]
        # A stream of its own for every ask, so that a resumed run goes on as it would have.
        rng = random.Random(f"{self.seed}/{shape_class.name}/{state.asked}")
        state.asked += 1
        entries = state.archive.sample(rng, PARENTS)
        plan = Plan(
            shape_class,
            state.problem,
            state.context,
            self.templates,
            tuple(Parent(e.record.candidate, e.score, e.record) for e in entries),
            rng,
            lambda genome: genome.key in state.known,
        )
        return Ask(plan, self._order(rng))

    def _order(self, rng: random.Random) -> tuple[Operator, ...]:
        """Put the seeds first, then draw by weight, so that no operator is left out before it is all given up."""
        order = [operator for operator, weight in self.operators if weight == FIRST]
        for _ in range(ROUNDS):
            left = [(operator, weight) for operator, weight in self.operators if 0 < weight < FIRST]
            while left:
                drawn = rng.choices(range(len(left)), [weight for _, weight in left])[0]
                order.append(left.pop(drawn)[0])
        return tuple(order)

    def candidate(self, ask: Ask, operator: Operator, proposal: Proposal) -> Candidate:
        """Make a candidate of what an operator answered."""
        return Candidate(
            proposal.genome,
            ask.plan.shape_class.name,
            operator.name,
            proposal.parents,
            1 + max((self.generations.get(p, 0) for p in proposal.parents), default=-1),
            proposal.note,
            proposal.cost_usd,
            proposal.tokens,
        )

    def announce(self, candidate: Candidate) -> None:
        """Note a candidate that has been stored and is about to be measured."""
        if candidate.id in self.generations:
            return
        self.generations[candidate.id] = candidate.generation
        state = self.states[candidate.shape_class]
        if candidate.genome.key not in state.known:
            state.known.add(candidate.genome.key)
            state.asked = max(state.asked, len(state.known))  # in a resumed run, the asks of the one before
        for operator, _ in self.operators:
            operator.expect(candidate)

    def tell(self, record: Record) -> None:
        """Learn from a measurement: a candidate's first, or one more of it."""
        candidate = record.candidate
        self.announce(candidate)
        state = self.states[candidate.shape_class]
        scored_before = candidate.id in state.scores
        value = state.score_again(record)
        if value is not None or scored_before:
            state.archive.add(record, value)
        if record.measurement.passed and record.measurement.fidelity is Fidelity.SCREEN:
            value = partial_score(record.measurement, state.problem)  # given up: what is known of it is bad enough
        if candidate.id not in state.learnt and (value is not None or not record.measurement.passed):
            state.learnt.add(candidate.id)
            for operator, _ in self.operators:
                operator.learn(record, value)

    def bar(self, candidate: Candidate) -> dict[str, float]:
        """Return what a candidate must come near: its class's leader by workload, or nothing for the leader itself."""
        state = self.states[candidate.shape_class]
        if state.leader is None or candidate.id in state.scores:
            return {}
        return workload_speedups(state.measurements[state.leader], held_out=False)

    def remeasure(self) -> Candidate | None:
        """Return a leader that too few measurements stand behind, or None. Each is returned once per measurement."""
        for state in self.states.values():
            if state.leader is None or len(state.scores) < SETTLED:
                continue
            full = [m for m in state.measurements[state.leader] if m.fidelity is not Fidelity.SCREEN]
            waiting = (state.leader, len(full))
            if len(full) < BELIEF and waiting not in self.waiting:
                self.waiting.add(waiting)
                return state.records[state.leader].candidate
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

    def evaluations(self, shape_class: ShapeClass) -> int:
        """Count the candidates of a class that were measured."""
        return len(self.states[shape_class.name].measurements)


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
