"""Describe the device that measures: its model, limits and software, and the peaks that bound any kernel on it."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from evokernel.errors import DeviceError
from evokernel.roofline import Roofline


@dataclass(frozen=True)
class Device:
    """One GPU, or the CPU cores of this machine taken together."""

    kind: str  # "cpu" or "cuda"
    model: str
    uuid: str = ""
    num_sms: int = 1
    arch: int = 0  # 90 for sm_90; 0 for a CPU
    shared_bytes: int = 1 << 40  # most that one block may use; no limit on a CPU
    facts: Mapping[str, Any] = field(default_factory=dict)

    def context(self) -> dict[str, Any]:
        return {"shared_bytes": self.shared_bytes, "num_sms": self.num_sms, "arch": self.arch}

    def roofline(self, dtype: str) -> Roofline:
        """Return peaks no kernel can pass: data-sheet figures for GPUs, vector width × cores for a CPU."""
        if self.kind == "cuda":
            for pattern, (dense_16bit, bandwidth) in GPU_PEAKS.items():
                if re.search(pattern, self.model):
                    return Roofline(dense_16bit / (2 if dtype == "fp32" else 1), bandwidth)
            return Roofline(5e15, 16e12)  # faster than any GPU known: the floor is loose, but it is one
        # Two 16-lane FMA units at 6 GHz a core; caches can serve what memory cannot, so traffic bounds little.
        return Roofline(self.num_sms * 2 * 16 * 2 * 6e9, 4e12)


# FLOP/s with 16-bit inputs (dense) and bytes/s, from the makers' data sheets.
GPU_PEAKS: dict[str, tuple[float, float]] = {
    r"H200": (990e12, 4.9e12),
    r"H100.*(PCIe|NVL)": (990e12, 4.0e12),
    r"H100|H800|GH200": (990e12, 4.9e12),
    r"A100|A800": (312e12, 2.1e12),
    r"B200|GB200": (2500e12, 8.1e12),
    r"L40|4090": (370e12, 1.1e12),
}
SHARED_BYTES = {
    80: 166_912,
    86: 101_376,
    89: 101_376,
    90: 232_448,
    100: 232_448,
    120: 101_376,
    942: 65_536,
    950: 163_840,
}


@lru_cache(maxsize=1)
def cpu_model() -> str:
    try:
        names = re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def cpu_count() -> int:
    """Count the cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu() -> Device:
    cores = cpu_count()
    return Device("cpu", f"{cpu_model()} ({cores} cores)", num_sms=cores, facts={"machine": platform.machine()})


def gpus() -> list[Device]:
    """Describe the visible CUDA devices without creating a context in this process (nvidia-smi answers)."""
    import shutil
    import subprocess

    if not shutil.which("nvidia-smi"):
        return []
    query = "--query-gpu=name,uuid,driver_version,compute_cap"
    done = subprocess.run(["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True, check=False)
    found = []
    for line in done.stdout.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 4 and parts[3].replace(".", "").isdigit():
            arch = int(parts[3].replace(".", ""))
            facts = {"driver": parts[2]}
            found.append(
                Device(
                    "cuda",
                    parts[0],
                    parts[1],
                    SMS.get(parts[0], 1),
                    arch,
                    SHARED_BYTES.get(arch, 49_152),
                    facts,
                )
            )
    return found


# Multiprocessors by name: nvidia-smi does not say, and asking CUDA would create a context here. The worker's child
# asks the device itself; this number only fills a space's context.
SMS = {"NVIDIA H200": 132, "NVIDIA H100 80GB HBM3": 132, "NVIDIA A100-SXM4-80GB": 108}


def find(kind: str) -> Device:
    """Return the device that an evaluator is to use: "cpu", "cuda", or "auto" for the first GPU or else the CPU."""
    if kind == "cpu":
        return cpu()
    found = gpus()
    if kind == "auto":
        return found[0] if found else cpu()
    if kind == "cuda":
        if not found:
            raise DeviceError(
                "evaluator.device is 'cuda' but no NVIDIA GPU answers here; choose 'cpu', or run on a GPU machine"
            )
        return found[0]
    raise DeviceError(f"evaluator.device is {kind!r}; choose one of cpu, cuda, auto")


STACK = ("torch", "triton", "numba", "numpy", "llvmlite")


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Return the versions a latency depends on."""
    result = {"python": platform.python_version()}
    for package in STACK:
        try:
            result[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return result
