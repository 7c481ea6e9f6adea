"""Keep the k candidates that together serve the workloads best."""

from __future__ import annotations

import random
from collections.abc import Mapping

from evokernel.archives import Admission, Archive, Entry
from evokernel.archives.elites import ranked_sample
from evokernel.measurement import Measurement, Record, workload_speedups

Speedups = Mapping[str, float]


def best_subset(speedups: Mapping[int, Speedups], size: int, weights: Mapping[str, float] | None = None) -> list[int]:
    """Choose up to `size` candidates so that the weighted sum over workloads of the best speedup among them is large.

    Greedy. The sum of maxima is monotone and submodular, so the greedy choice reaches at least 1 − 1/e of the best
    possible sum (Nemhauser, Wolsey and Fisher, 1978). Ties go to the lower id. A workload without a weight counts 1.
    """
    chosen: list[int] = []
    reached: dict[str, float] = {}
    weights = weights or {}

    def gain(found: Speedups) -> float:
        return sum(weights.get(name, 1.0) * max(0.0, s - reached.get(name, 0.0)) for name, s in found.items())

    while len(chosen) < size:
        gains = {number: gain(found) for number, found in speedups.items() if number not in chosen}
        if not gains or max(gains.values()) <= 0:
            break
        best = min(gains, key=lambda number: (-gains[number], number))
        chosen.append(best)
        for name, value in speedups[best].items():
            reached[name] = max(reached.get(name, 0.0), value)
    return chosen


def dominates(one: Speedups, other: Speedups) -> bool:
    """Say whether a candidate is at least as fast everywhere; the greedy choice never needs what is dominated."""
    return all(one.get(name, 0.0) >= value for name, value in other.items())


class Portfolio(Archive):
    """Keeps the `size` candidates that a dispatcher would want.

    They are chosen anew of all that no other candidate dominates, so best_subset's bound holds for the whole history,
    while few are looked at: with few workloads most candidates are dominated.
    """

    def __init__(self, size: int = 4) -> None:
        if size < 1:
            raise ValueError(f"size is {size}; at least 1")
        self.size = size
        self.front: dict[int, Entry] = {}  # not dominated
        self.measured: dict[int, list[Measurement]] = {}
        self.speedups: dict[int, dict[str, float]] = {}
        self.chosen: list[int] = []

    def add(self, record: Record, score: float | None) -> Admission:
        number = record.candidate.id
        if score is None:
            self._drop(number)
            return Admission.REFUSED
        known, before = self.front.get(number), self.chosen
        measured = [*self.measured.get(number, []), record.measurement]
        speedups = workload_speedups(measured, held_out=False)
        self._drop(number)
        if not any(dominates(other, speedups) for other in self.speedups.values()):
            for other in [n for n, found in self.speedups.items() if dominates(speedups, found)]:
                self._forget(other)
            self.front[number], self.measured[number] = Entry(record, score), measured
            self.speedups[number] = speedups
            self.chosen = best_subset(self.speedups, self.size)
        if number not in self.chosen:
            return Admission.REFUSED
        if number in before and known is not None:
            return Admission.IMPROVED if score > known.score else Admission.REFUSED
        return Admission.NEW if len(self.chosen) > len(before) else Admission.IMPROVED

    def _forget(self, number: int) -> None:
        for kept in (self.front, self.measured, self.speedups):
            kept.pop(number, None)

    def _drop(self, candidate_id: int) -> None:
        if candidate_id in self.front:
            self._forget(candidate_id)
            self.chosen = best_subset(self.speedups, self.size)

    def entries(self) -> list[Entry]:
        return sorted((self.front[number] for number in self.chosen), key=lambda e: -e.score)

    def sample(self, rng: random.Random, count: int) -> list[Entry]:
        return ranked_sample(rng, self.entries(), count)
