"""Start the worker that fits a device."""

from __future__ import annotations

from pathlib import Path

from evokernel.devices import Device
from evokernel.worker.parent import CpuWorker, Worker


def start(
    device: Device, dtype: str, baselines: tuple[str, ...], *, guarded: bool = True, folder: Path | None = None
) -> Worker:
    """Return the worker of a GPU, or one of this machine's cores. `folder` is for what its children write."""
    if device.kind == "cuda":
        from evokernel.worker.gpu import GpuWorker

        return GpuWorker(device, dtype, baselines, guarded=guarded, folder=folder)
    return CpuWorker(device, dtype, baselines, guarded=guarded, folder=folder)
