"""Evaluators get candidates measured: in child processes here, under Ray, or from recorded landscapes."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from evokernel.candidate import Candidate
from evokernel.measurement import Fidelity, Measurement
from evokernel.problem import Problem


@dataclass(frozen=True)
class Job:
    """One candidate to be measured on its shape class's part of the problem."""

    candidate: Candidate
    problem: Problem
    fidelity: Fidelity = Fidelity.FULL
    bar: Mapping[str, float] = field(default_factory=dict)  # the incumbent's speedups by workload; none: no early stop


class Evaluator(ABC):
    """Measures jobs asynchronously. Every job submitted comes back exactly once from wait()."""

    slots: int = 1  # jobs worth having in flight

    @abstractmethod
    def submit(self, job: Job) -> None:
        """Accept a job; returns at once."""

    @abstractmethod
    def wait(self, timeout_s: float) -> list[tuple[Job, Measurement]]:
        """Return what has finished, blocking until something has or the time is up."""

    @abstractmethod
    def close(self) -> None:
        """Stop the workers and kill what they run."""

    def now(self) -> float:
        """Read this evaluator's clock in seconds; a replay's is virtual."""
        return time.monotonic()
