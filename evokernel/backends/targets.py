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
    registers: int = 65_536  # 32-bit, a multiprocessor; beside it as many threads and blocks as follow
    threads: int = 2_048
    blocks: int = 32

    @property
    def name(self) -> str:
        return f"{self.backend}:{self.arch}"

    @property
    def number(self) -> int:
        return int(str(self.arch).removeprefix("gfx"))

    @property
    def shared_bytes(self) -> int:
        return SHARED_BYTES[self.number]

    @property
    def reserved_shared_bytes(self) -> int:
        """Return what the system takes of shared memory for each block."""
        return 1_024 if self.backend == "cuda" else 0

    @property
    def assembler(self) -> str:
        return "ptxas-blackwell" if self.number >= 100 else "ptxas"

    def context(self) -> dict[str, Any]:
        """Return the names that a space's constraints read about the device."""
        return {"shared_bytes": self.shared_bytes, "num_sms": self.num_sms, "arch": self.number}


TARGETS = {
    t.name: t
    for t in (
        Target("cuda", 80, 32, 108),
        Target("cuda", 86, 32, 84, threads=1_536, blocks=16),
        Target("cuda", 89, 32, 142, threads=1_536, blocks=24),
        Target("cuda", 90, 32, 132),
        Target("cuda", 100, 32, 148),
        Target("cuda", 120, 32, 170, threads=1_536, blocks=24),
        Target("hip", "gfx942", 64, 304, registers=131_072),
        Target("hip", "gfx950", 64, 256, registers=131_072),
    )
}


def parse(name: str) -> Target:
    """Return the target of that name, or raise DeviceError with the choices."""
    if name not in TARGETS:
        raise DeviceError(f"unknown target {name!r}; choose one of {', '.join(TARGETS)}")
    return TARGETS[name]


def nvidia_tool(name: str) -> str:
    """Return the path of one of NVIDIA's tools: triton's own, or the one that TRITON_<NAME>_PATH names."""
    from triton import knobs

    try:
        return str(getattr(knobs.nvidia, name.replace("-", "_")).path)
    except RuntimeError:
        raise DeviceError(f"{name} is missing from this triton; its Linux wheel carries it") from None


def require_compiler(target: Target) -> None:
    """Raise DeviceError unless this machine can compile for the target."""
    try:
        from triton.backends import backends
    except ImportError as error:
        raise DeviceError(f"compiling for {target.name} needs triton: {error}") from None
    name = "nvidia" if target.backend == "cuda" else "amd"
    if name not in backends:
        raise DeviceError(f"this triton has no backend {name!r} for {target.name}; it has {', '.join(backends)}")
    if target.backend == "cuda":
        nvidia_tool(target.assembler)
        nvidia_tool("nvdisasm")
