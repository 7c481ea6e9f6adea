"""The folder of a run on this machine: its log, its products, and a lock that tells whether its driver is alive."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evokernel.errors import EvokernelError

RUNS = Path("runs")
COMPILE_CACHE = RUNS / ".cache" / "compile"  # no run can have this name: names begin with a letter or a digit
LOCK = "driver.lock"
LOG = "log.jsonl"
SOURCES = "sources"
LOOK_S = 0.5


def folder(run: str) -> Path:
    return RUNS / run


@contextmanager
def driving(run: str) -> Iterator[None]:
    """Hold the run's lock while driving it, or raise in one line: a run has one driver.

    The kernel frees the lock when its holder ends, however it ends, so a file that nobody locks is a driver's that died
    or has finished.
    """
    folder(run).mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder(run) / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not _locked(descriptor):
            raise EvokernelError(
                f"run {run} is being driven by process {_read(descriptor)}; stop that first: evokernel stop {run}"
            )
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    """Take the lock, with patience for those who only look: driver() holds it for a moment."""
    deadline = time.monotonic() + LOOK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)


def driver(run: str) -> str | None:
    """Return the number of the process that drives a run, "" when none does, None when this machine cannot tell."""
    try:
        descriptor = os.open(folder(run) / LOCK, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _read(descriptor)
    else:
        return ""
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> str:
    return os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "?"
