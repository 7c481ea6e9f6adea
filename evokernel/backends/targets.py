"""What a kernel can be compiled for, on any machine: architectures with their limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from evokernel.devices import SHARED_BYTES
from evokernel.errors import DeviceError


@dataclass(frozen=True)
class Target:
    """A GPU architecture as Triton names it."""

    backend: str  # cuda or hip
    arch: int | str  # 90, or gfx942
    warp_size: int
    num_sms: int  # of the usual device, for a space's context
    registers: int = 65_536  # 32-bit, a multiprocessor
    threads: int = 2_048

    @property
    def name(self) -> str:
        return f"{self.backend}:{self.arch}"

    @property
    def number(self) -> int:
        return int(str(self.arch).removeprefix("gfx"))

    @property
    def shared_bytes(self) -> int:
        return SHARED_BYTES[self.number]

    def context(self) -> dict[str, Any]:
        """Return the names that a space's constraints read about the device."""
        return {"shared_bytes": self.shared_bytes, "num_sms": self.num_sms, "arch": self.number}


TARGETS = {
    t.name: t
    for t in (
        Target("cuda", 80, 32, 108),
        Target("cuda", 90, 32, 132),
        Target("cuda", 100, 32, 148),
        Target("cuda", 120, 32, 170, threads=1_536),
        Target("hip", "gfx942", 64, 304, registers=131_072),
        Target("hip", "gfx950", 64, 256, registers=131_072),
    )
}


def parse(name: str) -> Target:
    """Return the target of that name, or raise DeviceError with the choices."""
    if name not in TARGETS:
        raise DeviceError(f"--target is {name!r}; choose one of {', '.join(TARGETS)}")
    return TARGETS[name]
