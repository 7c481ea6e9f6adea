"""Tensors in memory that parent and child share, so that inputs and outputs cost no copy over a pipe."""

from __future__ import annotations

import base64
import fcntl
import math
import mmap
import os
from abc import ABC, abstractmethod
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


class Arena(ABC):
    """Memory of one size. The parent places tensors in it; a child sees the same ones."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0

    def reset(self) -> None:
        self.used = 0

    def place(self, shape: tuple[int, ...], dtype: str, layout: Layout) -> tuple[Place, torch.Tensor, torch.Tensor]:
        """Reserve a tensor; returns its place, the whole physical tensor, and the logical view of it."""
        physical = layout.padded(shape) if len(shape) == 4 else shape
        place = Place(self.used, dtype, physical, shape, layout.heads_inside)
        needed = self.used + math.prod(physical) * DTYPES[dtype].itemsize
        if needed > self.size:
            raise MemoryError(f"the arena holds {self.size} bytes; {needed} are needed")
        self.used = -(-needed // ALIGN) * ALIGN
        return place, self.tensor(place), self.view(place)

    def view(self, place: Place) -> torch.Tensor:
        whole = self.tensor(place)
        if len(place.shape) != 4:
            return whole
        return Layout("", heads_inside=place.heads_inside).view(whole, place.shape)

    @abstractmethod
    def tensor(self, place: Place) -> torch.Tensor:
        """Return the whole physical tensor at a place."""

    @abstractmethod
    def settle(self) -> None:
        """Return when what this process has written is there for the other to read."""

    @abstractmethod
    def close(self) -> None:
        """Give the memory back."""


class HostArena(Arena):
    """An anonymous shared file, mapped; the child maps the same file by descriptor."""

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        super().__init__(size)
        if descriptor is None:
            descriptor = os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(descriptor, size)
            # A child that made it shorter would end this process (SIGBUS) at the next tensor.
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self.descriptor = descriptor
        self.memory = mmap.mmap(self.descriptor, size)

    def tensor(self, place: Place) -> torch.Tensor:
        flat = torch.frombuffer(
            self.memory, dtype=DTYPES[place.dtype], count=math.prod(place.physical), offset=place.offset
        )
        return flat.view(place.physical)

    def settle(self) -> None:
        return  # the other side maps the same pages

    def close(self) -> None:
        os.close(self.descriptor)


class DeviceArena(Arena):
    """GPU memory that the parent has allocated; the child opens it by its CUDA IPC handle.

    Nothing but inputs and outputs lies in it: a kernel that reads where it should not finds no answers there.
    """

    def __init__(self, memory: torch.Tensor) -> None:
        super().__init__(memory.numel())
        self.memory = memory

    @classmethod
    def allocate(cls, size: int) -> DeviceArena:
        return cls(torch.empty(size, dtype=torch.uint8, device="cuda"))

    def handle(self) -> list[Any]:
        """Return what open() needs in another process; valid while this one keeps the memory."""
        found = self.memory.untyped_storage()._share_cuda_()  # type: ignore[no-untyped-call]
        return [base64.b64encode(part).decode() if isinstance(part, bytes) else part for part in found]

    @classmethod
    def open(cls, handle: list[Any]) -> DeviceArena:
        parts = [base64.b64decode(part) if isinstance(part, str) else part for part in handle]
        storage = torch.UntypedStorage._new_shared_cuda(*parts)
        return cls(torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage, 0, (storage.nbytes(),), (1,)))

    def tensor(self, place: Place) -> torch.Tensor:
        count = math.prod(place.physical) * DTYPES[place.dtype].itemsize
        flat = self.memory[place.offset : place.offset + count].view(DTYPES[place.dtype])
        return flat.view(place.physical)

    def settle(self) -> None:
        torch.cuda.synchronize()

    def close(self) -> None:
        self.memory = torch.empty(0, dtype=torch.uint8)


def place_from_json(data: dict[str, Any]) -> Place:
    return Place(data["offset"], data["dtype"], tuple(data["physical"]), tuple(data["shape"]), data["heads_inside"])
