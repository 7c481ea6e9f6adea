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
TRIAL = 12  # plans in which a new body is tuned before it is left to its rank
FIRST = float("inf")  # the weight of an operator that is asked before all others: the seeds
BELIEF = 2  # full measurements before a leader is believed
SETTLED = 6  # scored candidates in a class before its leader is measured again: earlier ones are soon replaced


class SpaceExhausted(Exception):
    """No operator finds a genome that has not been proposed."""


@dataclass
class Trial:
    """A body that no template has: an edit is judged by what tuning makes of it, not by its first knobs."""

    asked: int = 0  # plans made for it
    made: int = 0  # candidates of it; in a resumed run, what is left of the plans before
    best: Entry | None = None

    @property
    def open(self) -> bool:
        return self.best is not None and max(self.asked, self.made - 1) < TRIAL


@dataclass
class ClassState:
    """What is known about one shape class."""

    shape_class: ShapeClass
    problem: Problem
    context: Mapping[str, Any]
    archive: Archive
    known: dict[str, int] = field(default_factory=dict)  # genome keys proposed, each with its candidate
    asked: int = 0  # plans made, or announced by others
    measurements: dict[int, list[Measurement]] = field(default_factory=dict)
    scores: dict[int, float] = field(default_factory=dict)
    records: dict[int, Record] = field(default_factory=dict)  # the latest of each scored candidate
    learnt: set[int] = field(default_factory=set)  # candidates that the operators were told of
    trials: dict[str, Trial] = field(default_factory=dict)  # by body
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
        self.template_bodies = {genome.body.digest for genome in templates}
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
                operator, proposal = answer
                return self.candidate(state.shape_class.name, operator.name, proposal)
        raise SpaceExhausted("every genome that the operators find has been proposed")

    def ask(self, shape_class: ShapeClass, *, tuned: bool = True) -> Ask:
        """Draw parents and operators for a new candidate; every second plan tunes a body on trial, if any is."""
        state = self.states[shape_class.name]
        # A stream of its own for every ask, so that a resumed run goes on as it would have.
        rng = random.Random(f"{self.seed}/{shape_class.name}/{state.asked}")
        state.asked += 1
        trial = next((t for t in state.trials.values() if t.open), None) if tuned and state.asked % 2 else None
        entries = state.archive.sample(rng, PARENTS)
        if trial is not None and trial.best is not None:
            trial.asked += 1
            entries = [trial.best]
        plan = Plan(
            shape_class,
            state.problem,
            state.context,
            self.templates,
            tuple(Parent(e.record.candidate, e.score, e.record) for e in entries),
            rng,
            lambda genome: genome.key in state.known,
        )
        return Ask(plan, self._order(rng, tuners_first=trial is not None))

    @property
    def asked(self) -> int:
        """Count the plans made so far."""
        return sum(state.asked for state in self.states.values())

    def plan_for_slow(self) -> Plan | None:
        """Return a plan of the class whose turn it is among those with parents, or None while there are none."""
        ready = [state for state in self.states.values() if state.archive.entries()]
        if not ready:
            return None
        return self.ask(min(ready, key=lambda s: (s.turn, s.shape_class)).shape_class, tuned=False).plan

    def _order(self, rng: random.Random, *, tuners_first: bool) -> tuple[Operator, ...]:
        """Put the seeds first, then draw by weight, so that no operator is left out before it is all given up."""
        seeds = [operator for operator, weight in self.operators if weight == FIRST]
        order: list[Operator] = []
        for _ in range(ROUNDS):
            left = [(o, weight) for o, weight in self.operators if 0 < weight < FIRST and not o.slow]
            while left:
                drawn = rng.choices(range(len(left)), [weight for _, weight in left])[0]
                order.append(left.pop(drawn)[0])
        if tuners_first:
            order.sort(key=lambda operator: not operator.tunes)
        return (*seeds, *order)

    def candidate(self, shape_class: str, operator: str, proposal: Proposal) -> Candidate:
        """Make a candidate of what an operator answered."""
        return Candidate(
            proposal.genome,
            shape_class,
            operator,
            proposal.parents,
            1 + max((self.generations.get(p, 0) for p in proposal.parents), default=-1),
            proposal.note,
            proposal.cost_usd,
            proposal.tokens,
        )

    def number(self, shape_class: str, genome: Genome) -> int | None:
        """Return the candidate that a genome is in a class, if it was proposed."""
        return self.states[shape_class].known.get(genome.key)

    def score_of(self, candidate: Candidate) -> float | None:
        return self.states[candidate.shape_class].scores.get(candidate.id)

    def announce(self, candidate: Candidate) -> None:
        """Note a candidate that has been stored and is about to be measured."""
        if candidate.id in self.generations:
            return
        self.generations[candidate.id] = candidate.generation
        state = self.states[candidate.shape_class]
        if candidate.genome.key not in state.known:
            state.known[candidate.genome.key] = candidate.id
            state.asked = max(state.asked, len(state.known))  # in a resumed run, the asks of the one before
        body = candidate.genome.body.digest
        if body not in self.template_bodies:
            state.trials.setdefault(body, Trial()).made += 1
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
        trial = state.trials.get(candidate.genome.body.digest)
        if trial is not None and value is not None and (trial.best is None or value > trial.best.score):
            trial.best = Entry(record, value)
        if record.measurement.given_up:
            value = partial_score(record.measurement, state.problem)  # what is known of it is bad enough
        if candidate.id not in state.learnt and (value is not None or not record.measurement.passed):
            state.learnt.add(candidate.id)
            for operator, _ in self.operators:
                operator.learn(record, value)

    def bar(self, candidate: Candidate) -> dict[str, float]:
        """Return what a candidate must come near: its class's leader by workload.

        Nothing for the leader itself, and for an edited body that has not been tuned yet.
        """
        state = self.states[candidate.shape_class]
        trial = state.trials.get(candidate.genome.body.digest)
        untuned = trial is not None and (trial.best is None or trial.open)
        if state.leader is None or candidate.id in state.scores or untuned:
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
