"""What is to be computed: an op, a variant, workloads with weights, and shape classes to search in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
TORCH_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
OPS = ("forward",)
ENTRY_BY_OP = {"forward": "attention"}

# Upper ends of the length bands, by query length. Kernels change character between them: launch and tail
# effects rule the first, the L2 cache the last.
LENGTH_BANDS = (("short", 1024), ("medium", 4096), ("long", math.inf))


@dataclass(frozen=True, order=True)
class ShapeClass:
    """Workloads that one genome is meant to serve: the unit of the search."""

    head_dim: int
    causal: bool
    dtype: str
    band: str

    @property
    def name(self) -> str:
        return f"d{self.head_dim}_{'causal' if self.causal else 'full'}_{self.dtype}_{self.band}"


@dataclass(frozen=True)
class Workload:
    """One attention shape. Layout is B, H, S, D; causal and window are aligned bottom-right."""

    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_kv: int
    head_dim: int
    causal: bool
    window: tuple[int, int] | None = None  # (left, right), inclusive, as in FlashAttention
    softcap: float | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads} is no multiple of kv_heads={self.kv_heads}")

    @property
    def name(self) -> str:
        parts = [f"b{self.batch}", f"h{self.heads}"]
        if self.kv_heads != self.heads:
            parts.append(f"kv{self.kv_heads}")
        parts.append(f"s{self.seq_q}")
        if self.seq_kv != self.seq_q:
            parts.append(f"x{self.seq_kv}")
        parts += [f"d{self.head_dim}", "causal" if self.causal else "full"]
        if self.window:
            parts.append(f"w{self.window[0]}.{self.window[1]}")
        if self.softcap:
            parts.append(f"cap{self.softcap:g}")
        return "_".join(parts)

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)

    def shape_class(self, dtype: str) -> ShapeClass:
        band = next(name for name, longest in LENGTH_BANDS if self.seq_q <= longest)
        return ShapeClass(self.head_dim, self.causal, dtype, band)

    def visible_pairs(self) -> int:
        """Count (query, key) pairs that the mask lets through, for one head."""
        offset = self.seq_kv - self.seq_q
        left, right = self.window or (-1, -1)
        total = 0
        for i in range(self.seq_q):
            last = self.seq_kv - 1
            if self.causal:
                last = min(last, i + offset)
            if right >= 0:
                last = min(last, i + offset + right)
            first = max(0, i + offset - left) if left >= 0 else 0
            total += max(0, last - first + 1)
        return total

    def flops(self) -> int:
        """Count 4·D operations for each visible pair and query head (FlashAttention's convention)."""
        if self.window is None and self.seq_q == self.seq_kv:  # the usual halving, no diagonal counted twice
            pairs = self.seq_q * self.seq_kv // (2 if self.causal else 1)
        else:
            pairs = self.visible_pairs()
        return 4 * self.batch * self.heads * pairs * self.head_dim

    def compulsory_bytes(self, dtype: str) -> int:
        """Count the bytes that any kernel must move: Q, K, V and O once, and the log-sum-exp in float32."""
        q_and_out = 2 * self.heads * self.seq_q
        k_and_v = 2 * self.kv_heads * self.seq_kv
        lse = 4 * self.batch * self.heads * self.seq_q
        return DTYPE_BYTES[dtype] * self.batch * (q_and_out + k_and_v) * self.head_dim + lse

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of the entry function; a variant's are passed only when it asks for them."""
        arguments: dict[str, Any] = {"scale": self.scale, "causal": self.causal}
        if self.window is not None:
            arguments["window"] = self.window
        if self.softcap is not None:
            arguments["softcap"] = self.softcap
        return arguments

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Workload:
        window = data.get("window")
        return cls(**{**data, "window": tuple(window) if window else None})


@dataclass(frozen=True)
class Problem:
    """An op on a dtype, the workloads that steer the search, and those held out from it."""

    op: str
    dtype: str
    workloads: tuple[Workload, ...]
    held_out: tuple[Workload, ...] = ()
    accuracy: str = "same-dtype"  # errors at most twice those of a same-dtype reference (bench/correctness.py)
    determinism: str = "spread"  # "bitwise", or "spread": run-to-run differences under a tenth of the tolerance
    extra: Mapping[str, Any] = field(default_factory=dict)  # tensors of later variants, by argument name

    @property
    def entry(self) -> str:
        return ENTRY_BY_OP[self.op]

    def shape_classes(self) -> list[ShapeClass]:
        return sorted({w.shape_class(self.dtype) for w in self.workloads})

    def in_class(self, shape_class: ShapeClass) -> Problem:
        """Return the part of this problem that one shape class stands for, cheapest workload first."""

        def members(workloads: Iterable[Workload]) -> tuple[Workload, ...]:
            chosen = [w for w in workloads if w.shape_class(self.dtype) == shape_class]
            return tuple(sorted(chosen, key=lambda w: (w.flops(), w.name)))

        return replace(self, workloads=members(self.workloads), held_out=members(self.held_out))

    def context(self, shape_class: ShapeClass, device: Mapping[str, Any]) -> dict[str, Any]:
        """Return the names that a space's conditions and constraints may use beside its knobs."""
        workloads = self.in_class(shape_class).workloads
        return {
            "head_dim": shape_class.head_dim,
            "dtype": self.dtype,
            "dtype_bytes": DTYPE_BYTES[self.dtype],
            "causal": shape_class.causal,
            "group": max((w.heads // w.kv_heads for w in workloads), default=1),
            "seq": max((w.seq_q for w in workloads), default=0),
            **device,
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "op": self.op,
            "dtype": self.dtype,
            "workloads": [w.to_json() for w in self.workloads],
            "held_out": [w.to_json() for w in self.held_out],
            "accuracy": self.accuracy,
            "determinism": self.determinism,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Problem:
        return cls(
            **{
                **data,
                "workloads": tuple(Workload.from_json(w) for w in data["workloads"]),
                "held_out": tuple(Workload.from_json(w) for w in data["held_out"]),
            }
        )
