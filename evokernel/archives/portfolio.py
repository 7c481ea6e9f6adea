"""Keep the k candidates that together serve the workloads best."""

from __future__ import annotations

import random
from collections.abc import Mapping

from evokernel.archives import Admission, Archive, Entry
from evokernel.archives.elites import ranked_sample
from evokernel.measurement import Record, workload_speedups

Speedups = Mapping[str, float]


def best_subset(speedups: Mapping[int, Speedups], size: int) -> list[int]:
    """Choose up to `size` candidates so that the sum over workloads of the best speedup among them is large.

    Greedy. The sum of maxima is monotone and submodular, so the greedy choice reaches at least 1 − 1/e of the best
    possible sum (Nemhauser, Wolsey and Fisher, 1978). Ties go to the lower id.
    """
    chosen: list[int] = []
    reached: dict[str, float] = {}
    while len(chosen) < size:
        gains = {
            number: sum(max(0.0, s - reached.get(name, 0.0)) for name, s in found.items())
            for number, found in speedups.items()
            if number not in chosen
        }
        if not gains or max(gains.values()) <= 0:
            break
        best = min(gains, key=lambda number: (-gains[number], number))
        chosen.append(best)
        for name, value in speedups[best].items():
            reached[name] = max(reached.get(name, 0.0), value)
    return chosen


class Portfolio(Archive):
    """Keeps the `size` candidates that a dispatcher would want, and the best of the rest as parents-in-waiting."""

    def __init__(self, size: int = 4) -> None:
        if size < 1:
            raise ValueError(f"size is {size}; at least 1")
        self.size = size
        self.kept: dict[int, Entry] = {}
        self.speedups: dict[int, dict[str, float]] = {}

    def add(self, record: Record, score: float) -> Admission:
        number = record.candidate.id
        known = self.kept.get(number)
        self.kept[number] = Entry(record, score)
        self.speedups[number] = workload_speedups([record.measurement], held_out=False)
        chosen = best_subset(self.speedups, self.size)
        if number not in chosen:
            del self.kept[number], self.speedups[number]
            return Admission.REFUSED
        full = len(self.kept) > self.size
        for other in list(self.kept):
            if other not in chosen:
                del self.kept[other], self.speedups[other]
        if known is not None:
            return Admission.IMPROVED if score > known.score else Admission.REFUSED
        return Admission.IMPROVED if full else Admission.NEW

    def entries(self) -> list[Entry]:
        return sorted(self.kept.values(), key=lambda e: -e.score)

    def sample(self, rng: random.Random, count: int) -> list[Entry]:
        return ranked_sample(rng, self.entries(), count)
