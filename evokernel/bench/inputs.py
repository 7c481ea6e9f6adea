"""Input families: what random numbers alone would never show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from evokernel.problem import TORCH_NAMES, Workload

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, full) for name, full in TORCH_NAMES.items()}
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _normal(workload: Workload, generator: torch.Generator) -> Tensors:
    def draw(heads: int, length: int) -> torch.Tensor:
        shape = (workload.batch, heads, length, workload.head_dim)
        return torch.randn(shape, generator=generator, device=generator.device)

    return (
        draw(workload.heads, workload.seq_q),
        draw(workload.kv_heads, workload.seq_kv),
        draw(workload.kv_heads, workload.seq_kv),
    )


def outlier(workload: Workload, generator: torch.Generator) -> Tensors:
    """One element in a thousand has a hundred times the variance, as in FlashAttention-3's test (section 4.3)."""

    def spike(x: torch.Tensor) -> torch.Tensor:
        rare = torch.rand(x.shape, generator=generator, device=x.device) < 1e-3
        return x + 10 * torch.randn(x.shape, generator=generator, device=x.device) * rare

    q, k, v = _normal(workload, generator)
    return spike(q), spike(k), spike(v)


def large_logits(workload: Workload, generator: torch.Generator) -> Tensors:
    """Scores of thousands: exp without the row's maximum overflows, in float64 too."""
    q, k, v = _normal(workload, generator)
    return 30 * q, 30 * k, v


def ascending(workload: Workload, generator: torch.Generator) -> Tensors:
    """The maximum grows from key to key, so that every tile rescales."""
    q, k, v = _normal(workload, generator)
    ramp = torch.linspace(0.0, 4.0, workload.seq_kv, device=q.device)[None, None, :, None]
    return q.abs(), k.abs() * 0.2 + ramp, v


def needle(workload: Workload, generator: torch.Generator) -> Tensors:
    """Far keys that decide the result: one in each 64 keys matches the queries, with a large value beside it."""
    q, k, v = _normal(workload, generator)
    direction = torch.randn(workload.head_dim, generator=generator, device=q.device)
    direction /= direction.norm()
    q = 0.3 * q + 6 * direction
    first = int(torch.randint(0, 64, (1,), generator=generator, device=q.device))
    places = torch.arange(0, workload.seq_kv, 64, device=q.device) + first
    places = places[places < workload.seq_kv]
    strength = torch.rand(len(places), generator=generator, device=q.device)[:, None] + 1
    k[:, :, places] = 3 * strength * direction
    v[:, :, places] += 4 * torch.randn(len(places), workload.head_dim, generator=generator, device=q.device)
    return q, k, v


FAMILIES: dict[str, Callable[[Workload, torch.Generator], Tensors]] = {
    "random": _normal,
    "outlier": outlier,
    "large_logits": large_logits,
    "ascending": ascending,
    "needle": needle,
}


def draw(family: str, workload: Workload, dtype: str, seed: int, device: str = "cpu") -> Tensors:
    """Draw Q, K, V (B, H, S, D) of a family, rounded to the dtype."""
    generator = torch.Generator(device).manual_seed(seed)
    q, k, v = FAMILIES[family](workload, generator)
    return q.to(DTYPES[dtype]), k.to(DTYPES[dtype]), v.to(DTYPES[dtype])


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in memory: B,H,S,D or B,S,H,D order, and padding filled with what must never be read."""

    name: str
    heads_inside: bool = False  # B, S, H, D, as most models hold it
    pad: int = 0  # rows and columns beyond the tensor's own
    filler: float = float("nan")

    def padded(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the physical shape for a logical B, H, S, D."""
        b, h, s, d = shape
        return (b, s + self.pad, h, d + self.pad) if self.heads_inside else (b, h, s + self.pad, d + self.pad)

    def filler_for(self, dtype: torch.dtype) -> float:
        """Return the filler, or the largest number that the dtype has."""
        largest = torch.finfo(dtype).max
        return largest if self.filler > largest else self.filler

    def view(self, memory: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        """Return the logical B, H, S, D tensor inside a physical one."""
        _, _, s, d = shape
        if self.heads_inside:
            return memory[:, :s, :, :d].transpose(1, 2)
        return memory[:, :, :s, :d]


PLAIN = Layout("plain")
MODEL = Layout("heads_inside", heads_inside=True)
POISONED = Layout("nan_padding", pad=8)
HUGE = Layout("huge_padding", heads_inside=True, pad=8, filler=1e30)
