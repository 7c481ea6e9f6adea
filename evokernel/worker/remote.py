"""The far end of a distributed evaluator: say what a node offers, hold one of its devices, measure on it."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evokernel import devices
from evokernel.devices import Device
from evokernel.errors import DeviceError
from evokernel.measurement import Fidelity, Measurement, Outcome
from evokernel.problem import Problem
from evokernel.worker.provenance import evaluator_version

if TYPE_CHECKING:
    from evokernel.worker.homes import Home
    from evokernel.worker.parent import Worker


@dataclass(frozen=True)
class Machine:
    """What a node has, and the software that it measures with."""

    host: str
    cpu: Device
    gpus: tuple[Device, ...]
    versions: Mapping[str, str]
    evaluator: str

    def of_kind(self, kind: str) -> tuple[Device, ...]:
        return self.gpus if kind == "cuda" else (self.cpu,)

    def difference(self, other: Machine) -> str:
        """Say in which software this node differs from another; empty where latencies are comparable."""
        names = sorted(self.versions.keys() | other.versions.keys())
        pairs = [(name, self.versions.get(name, "none"), other.versions.get(name, "none")) for name in names]
        found = [f"{name} {here}, not {there}" for name, here, there in pairs if here != there]
        if self.evaluator != other.evaluator:
            found.append(f"evaluator sources {self.evaluator}, not {other.evaluator}")
        return "; ".join(found)


def survey() -> Machine:
    """Describe the machine this runs on, without touching a device."""
    return Machine(platform.node(), devices.cpu(), tuple(devices.gpus()), devices.versions(), evaluator_version())


def own_device(kind: str) -> Device:
    """Return the device given to this process: the CPU, or the one GPU that CUDA_VISIBLE_DEVICES names.

    An index is replaced by the GPU's UUID. Indices mean one thing to nvidia-smi and another to CUDA, which may put the
    fastest first; the lease, the record and the children must mean the same GPU.
    """
    if kind == "cpu":
        return devices.cpu()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    for index, gpu in enumerate(devices.gpus()):
        if visible in (str(index), gpu.uuid):
            os.environ["CUDA_VISIBLE_DEVICES"] = gpu.uuid
            return gpu
    raise DeviceError(f"CUDA_VISIBLE_DEVICES is {visible!r}, which names no one GPU of {platform.node()}")


class Remote:
    """A worker that is built in three steps, so that one that is refused has loaded nothing and touched no device."""

    def __init__(self, kind: str, dtype: str, baselines: tuple[str, ...]) -> None:
        self.device = own_device(kind)
        self.dtype = dtype
        self.baselines = baselines
        self.worker: Worker | None = None
        self.home: Home | None = None

    def describe(self) -> tuple[Device, int]:
        """Return the device held and this process's id."""
        return self.device, os.getpid()

    def start(self) -> None:
        from evokernel.worker.homes import Home
        from evokernel.worker.start import start

        with contextlib.suppress(PermissionError):  # Ray starts workers nice; only root may take that back
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        self.home = Home()
        self.worker = start(self.device, self.dtype, self.baselines, folder=self.home.folder)

    def alive(self) -> bool:
        """Answer: what is asked next is begun by a process that lived."""
        return True

    def measure(
        self, source: str, backend: str, problem: Problem, fidelity: Fidelity, bar: Mapping[str, float]
    ) -> Measurement:
        """Measure as the worker does; raise when it was the worker that broke."""
        assert self.worker is not None, "start() comes first"
        measurement = self.worker.measure(source, backend, problem, fidelity, bar)
        if measurement.outcome is Outcome.CRASHED and self.worker.zygote.process.poll() is not None:
            raise RuntimeError("the process that starts the children has died, and the candidate's with it")
        return measurement

    def close(self) -> None:
        if self.worker and self.home:
            self.worker.close()
            self.home.close()
