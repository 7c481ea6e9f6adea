"""Tensors in memory that parent and child share, so that inputs and outputs cost no copy over a pipe."""

from __future__ import annotations

import mmap
import os
from dataclasses import asdict, dataclass
from typing import Any

import torch

from evokernel.bench.inputs import DTYPES, Layout

ALIGN = 256


@dataclass(frozen=True)
class Place:
    """Where a tensor lies in the arena: enough for the other side to see the same one."""

    offset: int
    dtype: str
    physical: tuple[int, ...]
    shape: tuple[int, ...]
    heads_inside: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Arena:
    """An anonymous shared file, mapped. The parent places tensors; the child maps the same file by descriptor."""

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        self.descriptor = os.memfd_create("arena") if descriptor is None else descriptor
        if descriptor is None:
            os.ftruncate(self.descriptor, size)
        self.size = size
        self.memory = mmap.mmap(self.descriptor, size)
        self.used = 0

    def reset(self) -> None:
        self.used = 0

    def place(self, shape: tuple[int, ...], dtype: str, layout: Layout) -> tuple[Place, torch.Tensor, torch.Tensor]:
        """Reserve a tensor; returns its place, the whole physical tensor, and the logical view of it."""
        physical = layout.padded(shape) if len(shape) == 4 else shape
        place = Place(self.used, dtype, physical, shape, layout.heads_inside)
        whole = self.tensor(place)
        self.used += -(-whole.numel() * whole.element_size() // ALIGN) * ALIGN
        if self.used > self.size:
            raise MemoryError(f"the arena holds {self.size} bytes; {self.used} are needed")
        return place, whole, self.view(place)

    def tensor(self, place: Place) -> torch.Tensor:
        count = 1
        for length in place.physical:
            count *= length
        flat = torch.frombuffer(self.memory, dtype=DTYPES[place.dtype], count=count, offset=place.offset)
        return flat.view(place.physical)

    def view(self, place: Place) -> torch.Tensor:
        whole = self.tensor(place)
        if len(place.shape) != 4:
            return whole
        return Layout("", heads_inside=place.heads_inside).view(whole, place.shape)

    def close(self) -> None:
        os.close(self.descriptor)


def place_from_json(data: dict[str, Any]) -> Place:
    return Place(data["offset"], data["dtype"], tuple(data["physical"]), tuple(data["shape"]), data["heads_inside"])
