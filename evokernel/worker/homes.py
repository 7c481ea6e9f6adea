"""Folders that outlive no worker: one claimed by a process that is killed is removed by the next that claims one."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Home:
    """A new folder, held by flock for as long as this process lives; the kernel frees it however that ends."""

    def __init__(self) -> None:
        with _alone() as root:
            _sweep(root)
            self.folder = Path(tempfile.mkdtemp(dir=root))
            self.descriptor = os.open(self.folder, os.O_RDONLY)
            fcntl.flock(self.descriptor, fcntl.LOCK_EX)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self.descriptor)


def sweep() -> None:
    """Remove the folders whose holders are dead."""
    with _alone() as root:
        _sweep(root)


@contextmanager
def _alone() -> Iterator[Path]:
    """Hold the folder of folders: one that is made but not yet held would look abandoned."""
    user = Path(tempfile.gettempdir()) / f"evokernel-{os.getuid()}"
    user.mkdir(mode=0o700, exist_ok=True)
    root = user / "homes"
    root.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield root
    finally:
        os.close(descriptor)


def _sweep(root: Path) -> None:
    for folder in root.iterdir():
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            continue  # its holder lives
        finally:
            os.close(descriptor)
