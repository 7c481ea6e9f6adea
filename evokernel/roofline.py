"""The least time a workload can take on a device: what is faster is not believed (trust rule 5)."""

from __future__ import annotations

from dataclasses import dataclass

from evokernel.problem import Workload


@dataclass(frozen=True)
class Roofline:
    """Peak arithmetic and memory rates, each above anything measured on the device."""

    flops_per_s: float
    bytes_per_s: float

    def floor_us(self, workload: Workload, dtype: str) -> float:
        """Return the larger of the arithmetic and the traffic bound, in microseconds."""
        arithmetic = workload.flops() / self.flops_per_s
        traffic = workload.compulsory_bytes(dtype) / self.bytes_per_s
        return max(arithmetic, traffic) * 1e6
