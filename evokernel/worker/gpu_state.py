"""Ask nvidia-smi, from time to time, what state the GPU is in and who else uses it."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

POLL_S = 5.0
ANSWER_S = 5.0
FIELDS = {
    "sm_mhz": "clocks.sm",
    "power_w": "power.draw",
    "temperature_c": "temperature.gpu",
    "throttle": "clocks_event_reasons.active",
    "mig": "mig.mode.current",
}
SLOWDOWNS = 0x8 | 0x20 | 0x40 | 0x80  # hardware, thermal by software and by hardware, power brake; not the power cap


class GpuState:
    """The latest sample, taken in a thread; empty where nvidia-smi does not answer."""

    def __init__(self, uuid: str, ours: Callable[[], set[int]]) -> None:
        self.uuid = uuid
        self.ours = ours  # processes that are ours, or whose children are
        self.latest: dict[str, Any] = {}
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._look, name="gpu-state", daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.over.set()
        self.thread.join()

    def _look(self) -> None:
        while True:
            self.latest = sample(self.uuid, self.ours())
            if self.over.wait(POLL_S):
                return


def sample(uuid: str, ours: set[int]) -> dict[str, Any]:
    """Return clocks, power, temperature, whether it is slowed down, and how many processes of others compute on it."""
    line = _ask(uuid, f"--query-gpu={','.join(FIELDS.values())}")
    values = [part.strip() for part in line.split(",")]
    if len(values) != len(FIELDS):
        return {}
    found: dict[str, Any] = dict(zip(FIELDS, values, strict=True))
    for name in ("sm_mhz", "power_w", "temperature_c"):
        found[name] = float(found[name]) if found[name].replace(".", "", 1).isdigit() else found[name]
    reasons = found.pop("throttle")
    found["slowed_down"] = reasons.startswith("0x") and bool(int(reasons, 16) & SLOWDOWNS)
    found["foreign_processes"] = len(_foreign(_ask(uuid, "--query-compute-apps=pid").split(), ours))
    return found


def _foreign(listed: list[str], ours: set[int]) -> list[int]:
    """Return the processes that are neither ours nor our children's; those of another namespace cannot be told."""
    found = []
    for text in listed:
        try:
            parent = int(Path(f"/proc/{text}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue
        if not ours & {int(text), parent}:
            found.append(int(text))
    return found


def _ask(uuid: str, query: str) -> str:
    command = ["nvidia-smi", "-i", uuid, query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=ANSWER_S, env=_plain())
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _plain() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
