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
from evokernel.errors import DeviceError


class Lease:
    """A lock file per device and user, held by flock: the kernel frees it when the holder dies, however it dies."""

    def __init__(self, device: Device) -> None:
        self.descriptor = os.open(_folder() / f"{_name(device)}.lock", os.O_RDWR | os.O_CREAT, 0o600)

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


class Ownership:
    """One worker a GPU, for as long as this process lives: two would time beside each other and know nothing of it."""

    def __init__(self, device: Device) -> None:
        path = _folder() / f"{_name(device)}.owner"
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self.descriptor, 32, 0).decode(errors="replace").strip()
            os.close(self.descriptor)
            raise DeviceError(f"{device.model} {device.uuid} is held by another worker (process {holder})") from None
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        os.close(self.descriptor)


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"evokernel-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _name(device: Device) -> str:
    return re.sub(r"\W+", "-", device.uuid or device.kind)
