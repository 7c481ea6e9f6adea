"""What a device said about a candidate: outcome, errors, latencies beside the baseline; the score is derived."""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evokernel.candidate import Candidate
from evokernel.problem import Problem

# Two processes that run the same kernel differ by less, always (A/A on an H200: 0.05%; on a quiet CPU: 1%).
RESOLUTION = 0.003


class Outcome(enum.StrEnum):
    PASSED = "PASSED"
    REJECTED = "REJECTED"  # the guard or a static limit said no before anything ran
    COMPILE_ERROR = "COMPILE_ERROR"
    RUNTIME_ERROR = "RUNTIME_ERROR"  # the candidate raised
    INCORRECT = "INCORRECT"
    TIMEOUT = "TIMEOUT"
    CRASHED = "CRASHED"  # the candidate's process died
    CHEATED = "CHEATED"


class Fidelity(enum.StrEnum):
    SCREEN = "screen"  # the cheapest workload alone, or given up on the way because clearly worse than the incumbent
    FULL = "full"  # every workload of the class
    VERIFY = "verify"  # again, with more repeats, and on held-out workloads


@dataclass(frozen=True)
class Timing:
    """Interleaved samples of one workload: candidate and fastest baseline, pair by pair, in microseconds."""

    workload: str
    samples_us: tuple[float, ...]
    baseline: str
    baseline_samples_us: tuple[float, ...]
    held_out: bool = False

    @property
    def latency_us(self) -> float:
        return statistics.median(self.samples_us)

    @property
    def baseline_us(self) -> float:
        return statistics.median(self.baseline_samples_us)

    @property
    def speedup(self) -> float:
        """Median of the paired ratios baseline ÷ candidate: drift common to a pair cancels (FACTS: A/A 0.987–1.011)."""
        pairs = zip(self.baseline_samples_us, self.samples_us, strict=True)
        return statistics.median(b / c for b, c in pairs)

    def interval(self, confidence: float = 0.99) -> tuple[float, float] | None:
        """Return an interval of the median paired ratio, whatever its distribution; None when there are too few pairs.

        From the k-th smallest to the k-th largest of n ratios, where the binomial tails beyond leave `confidence`.
        """
        ratios = sorted(b / c for b, c in zip(self.baseline_samples_us, self.samples_us, strict=True))
        n = len(ratios)
        tail, k = 0.0, 0
        while k < n // 2 and tail + math.comb(n, k) / 2**n <= (1 - confidence) / 2:
            tail += math.comb(n, k) / 2**n
            k += 1
        return (ratios[k - 1], ratios[n - k]) if k else None

    def verdict(self) -> str:
        """Say "faster", "slower", or "" when the interval comes within RESOLUTION of equal."""
        interval = self.interval()
        if interval is None:
            return ""
        low, high = interval
        return "faster" if low > 1 + RESOLUTION else "slower" if high < 1 - RESOLUTION else ""

    @property
    def spread(self) -> float:
        """Half the interquartile range of the samples over their median."""
        if len(self.samples_us) < 4:
            return 0.0
        low, _, high = statistics.quantiles(self.samples_us, n=4)
        return (high - low) / 2 / self.latency_us


@dataclass(frozen=True)
class Measurement:
    """What one device said about one candidate at one fidelity. A candidate has many."""

    outcome: Outcome
    message: str = ""  # why it failed; empty when PASSED
    fidelity: Fidelity = Fidelity.FULL
    timings: tuple[Timing, ...] = ()
    errors: Mapping[str, float] = field(default_factory=dict)  # by "workload/input family": share of the tolerance used
    resources: Mapping[str, Any] = field(default_factory=dict)  # registers, spills, shared_bytes, compile_s, ...
    environment: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0  # worker time spent
    device_seconds: float = 0.0  # of it, with the device held
    worker: str = ""

    @property
    def passed(self) -> bool:
        return self.outcome is Outcome.PASSED

    @property
    def given_up(self) -> bool:
        """Whether a full measurement was broken off because it was clearly worse than the incumbent; a check is not."""
        return self.passed and self.fidelity is Fidelity.SCREEN and "stopped_early" in self.resources


@dataclass(frozen=True)
class Record:
    """A candidate with one of its measurements: what is stored, told to the search, and replayed."""

    candidate: Candidate
    measurement: Measurement
    id: int = 0  # the measurement's, given by the store; completion order

    def score(self, problem: Problem) -> float | None:
        """Weighted geometric mean of (fastest baseline ÷ candidate) over the class's search workloads, or None.

        A candidate that was not timed on every workload has no score: a mean over fewer would not compare.
        """
        return score([self.measurement], problem)


DISPROVED = (Outcome.INCORRECT, Outcome.CHEATED)  # once is enough: a lucky pass before or after does not redeem it


def score(measurements: list[Measurement], problem: Problem) -> float | None:
    """Score a candidate over all its passed measurements; the median per workload, so that one lucky run cannot win."""
    if any(m.outcome in DISPROVED for m in measurements):
        return None
    weights = {w.name: w.weight for w in problem.workloads}
    speedups = workload_speedups(measurements, held_out=False)
    if not weights or not weights.keys() <= speedups.keys():
        return None
    return geometric_mean([(speedups[name], weight) for name, weight in weights.items()])


def partial_score(measurement: Measurement, problem: Problem) -> float | None:
    """Score what was timed of a candidate that was given up: no score among others, but a lesson for the operators."""
    weights = {w.name: w.weight for w in problem.workloads}
    timed = [(t.speedup, weights[t.workload]) for t in measurement.timings if t.workload in weights]
    return geometric_mean(timed) if timed else None


def geometric_mean(weighted: Sequence[tuple[float, float]]) -> float:
    """Return the geometric mean of positive values, each given with its weight."""
    return math.exp(sum(w * math.log(value) for value, w in weighted) / sum(w for _, w in weighted))


def workload_speedups(measurements: list[Measurement], held_out: bool) -> dict[str, float]:
    """Return the median speedup of each workload over the measurements that passed."""
    found: dict[str, list[float]] = {}
    for measurement in measurements:
        if measurement.passed and measurement.fidelity is not Fidelity.SCREEN:
            for timing in measurement.timings:
                if timing.held_out is held_out:
                    found.setdefault(timing.workload, []).append(timing.speedup)
    return {name: statistics.median(values) for name, values in found.items()}


def failed(outcome: Outcome, message: str, **facts: Any) -> Measurement:
    """Return a failure, its message cut to what a person or a model can use."""
    return Measurement(outcome, message.strip()[-4000:], **facts)
