"""Say before a campaign whether it is worth it: how far the libraries are from the roofline, and what it will cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evokernel.budget import Budget
from evokernel.problem import Problem, Workload
from evokernel.roofline import Roofline

LITTLE = 0.85  # of the roofline; kernels at that share leave little to win


@dataclass(frozen=True)
class Outlook:
    """What a workload's fastest baseline leaves to be won."""

    workload: Workload
    latencies_us: Mapping[str, float]  # of each baseline that serves it
    floor_us: float

    @property
    def fastest(self) -> str:
        return min(self.latencies_us, key=lambda name: self.latencies_us[name])

    @property
    def share(self) -> float:
        """Return the fastest baseline's share of the roofline."""
        return self.floor_us / self.latencies_us[self.fastest]

    @property
    def worth_it(self) -> bool:
        return self.share < LITTLE


@dataclass(frozen=True)
class Estimate:
    """What a budget buys, at the pace of one trial candidate."""

    classes: int
    candidate_s: float  # between two candidates, with all slots busy
    candidates: int
    wall_s: float
    cost: float  # of the device, in the unit of the hourly price


def outlook(workload: Workload, latencies_us: Mapping[str, float], roofline: Roofline, dtype: str) -> Outlook:
    return Outlook(workload, latencies_us, roofline.floor_us(workload, dtype))


def estimate(problem: Problem, budget: Budget, candidate_s: float, price_per_hour: float) -> Estimate:
    """Foresee a campaign's length from its caps and the seconds that a candidate takes."""
    caps_s = [cap for cap in (budget.wall_s, budget.gpu_s) if cap is not None]
    if budget.evaluations is not None:
        caps_s.append(budget.evaluations * candidate_s)
    wall_s = min(caps_s)
    searching_s = wall_s * (1 - budget.verify_share)
    candidates = int(searching_s / candidate_s)
    return Estimate(len(problem.shape_classes()), candidate_s, candidates, wall_s, wall_s / 3600 * price_per_hour)
