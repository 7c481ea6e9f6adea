"""Kill a child that takes too much host memory, where no limit of the system's can: a CUDA context maps terabytes."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

POLL_S = 0.1
PAGE = os.sysconf("SC_PAGE_SIZE")


class MemoryWatch:
    """A thread that looks at the resident memory of the processes it was told of."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.watched: dict[int, bool] = {}  # process -> whether it was killed
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._look, name="memory-watch", daemon=True)
        self.thread.start()

    def add(self, pid: int) -> None:
        with self.lock:
            self.watched[pid] = False

    def killed(self, pid: int) -> bool:
        """Say whether a process took too much."""
        with self.lock:
            return self.watched.get(pid, False)

    def remove(self, pid: int) -> None:
        """Forget a process, before its number can be another's."""
        with self.lock:
            self.watched.pop(pid, None)

    def close(self) -> None:
        self.over.set()
        self.thread.join()

    def _look(self) -> None:
        while not self.over.wait(POLL_S):
            with self.lock:
                for pid in self.watched:
                    if resident_bytes(pid) > self.limit_bytes:
                        self.watched[pid] = True
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)


def resident_bytes(pid: int) -> int:
    """Return the anonymous and shared memory of a process, without the files it maps; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * PAGE
