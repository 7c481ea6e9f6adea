"""Share a device: many may compile at once, one alone may time."""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evokernel.devices import Device


class Lease:
    """A lock file per device and user, held by flock: the kernel frees it when the holder dies, however it dies."""

    def __init__(self, device: Device) -> None:
        folder = Path(tempfile.gettempdir()) / f"evokernel-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        name = re.sub(r"\W+", "-", device.uuid or device.kind)
        self.descriptor = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold while doing anything that would disturb a timing."""
        fcntl.flock(self.descriptor, fcntl.LOCK_SH)
        try:
            yield
        finally:
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold while timing."""
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)
