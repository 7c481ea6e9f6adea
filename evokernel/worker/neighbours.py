"""Tell how much of our cores others used meanwhile: on a shared machine that is what spoils a timing."""

from __future__ import annotations

import os
import time
from pathlib import Path

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
IDLE_COLUMNS = (3, 4)  # idle and iowait; time stolen by a hypervisor counts as busy


class Neighbours:
    """From construction to cores(), what the kernel accounts to anyone but the processes named."""

    def __init__(self, ours: list[int]) -> None:
        self.ours = ours
        self.started = time.monotonic()
        self.before_s = self._foreign_s()

    def cores(self) -> float:
        """Return how many cores others kept busy on average; 0 where the kernel does not say."""
        elapsed_s = time.monotonic() - self.started
        return max(0.0, self._foreign_s() - self.before_s) / elapsed_s if elapsed_s > 0 else 0.0

    def _foreign_s(self) -> float:
        try:
            return _busy_s() - sum(_used_s(pid) for pid in self.ours)
        except (OSError, IndexError, ValueError):
            return 0.0


def _busy_s() -> float:
    """Return the busy seconds of the cores this process may use, since boot."""
    names = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    ticks = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *columns = line.split()
        if name in names:  # guest time, from the ninth column on, is part of user time
            ticks += sum(int(c) for i, c in enumerate(columns[:8]) if i not in IDLE_COLUMNS)
    return ticks * TICK_S


def _used_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S
