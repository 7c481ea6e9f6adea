"""Operators turn parents into new genomes. One file, one operator; `type: tune` means the one in tune.py."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from evokernel.candidate import Candidate, Genome
from evokernel.llm.conversation import Said
from evokernel.llm.tools import Alone, Tools
from evokernel.measurement import Record
from evokernel.problem import Problem, ShapeClass


class ProposalError(Exception):
    """The operator has nothing to propose now; the search asks another. `said` is what a model was asked in vain."""

    def __init__(
        self, message: str, said: Said | None = None, *, no_model: bool = False, lasting: bool = False
    ) -> None:
        super().__init__(message)
        self.said = said
        self.no_model = no_model  # no model answers, so that asking again soon is in vain
        self.lasting = lasting  # or at all


@dataclass(frozen=True)
class Parent:
    """A candidate that may be built upon, with the score that its measurements give it now."""

    candidate: Candidate
    score: float
    record: Record


@dataclass(frozen=True)
class Plan:
    """What the search asks of an operator: a shape class, parents (best first), and randomness of its own."""

    shape_class: ShapeClass
    problem: Problem  # the shape class's part
    context: Mapping[str, Any]  # names that conditions and constraints may use
    templates: tuple[Genome, ...]  # bodies with their default knobs
    parents: tuple[Parent, ...]
    rng: random.Random
    known: Callable[[Genome], bool] = field(default=lambda genome: False)  # already proposed in this class
    tools: Tools = field(default_factory=Alone)  # the campaign's, for slow operators


@dataclass(frozen=True)
class Proposal:
    """A genome with its ancestry and what it cost to think of."""

    genome: Genome
    parents: tuple[int, ...] = ()
    note: str = ""
    cost_usd: float = 0.0
    tokens: int = 0
    prediction: str = ""  # stored before any measurement
    said: Said | None = None


class Operator(ABC):
    """Turns parents into a new genome."""

    name = "operator"
    slow = False  # takes seconds or minutes: asked in a thread of its own, while the others go on
    tunes = False  # sets the knobs of a body that it is given

    @abstractmethod
    def propose(self, plan: Plan) -> Proposal:
        """Return a genome that is valid in its space, or raise ProposalError. May block."""

    def expect(self, candidate: Candidate) -> None:  # noqa: B027  most operators need not know
        """Called when a candidate is about to be measured, whoever proposed it: its knobs are taken."""

    def learn(self, record: Record, score: float | None) -> None:  # noqa: B027  most operators need not learn
        """Called once per evaluated candidate, whoever proposed it; `score` is None for a failure."""
