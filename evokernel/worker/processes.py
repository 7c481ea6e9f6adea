"""Hold the zygote and its children from the parent's side: start, ask, watch, kill."""

from __future__ import annotations

import glob
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evokernel.devices import Device
from evokernel.worker import wire
from evokernel.worker.arena import Arena

# What a candidate's process may know of the world. No keys, no tokens, no user's home.
KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES")
OUTPUT_BYTES = 8 << 20  # of standard output and error together
MEMORY_BYTES = 4 << 30  # beyond what the zygote has mapped
ZYGOTE_START_S = 120.0


class Child:
    """One disposable process. ask() raises wire.Late on a hang and wire.Gone when it died."""

    def __init__(self, zygote: Zygote, pid: int, end: socket.socket, log: int, home: Path) -> None:
        self.zygote = zygote
        self.pid = pid
        self.end = end
        self.log = log
        self.home = home

    def ask(self, op: str, timeout_s: float, **arguments: Any) -> dict[str, Any]:
        wire.send(self.end, {"op": op, **arguments})
        return wire.receive(self.end, timeout_s)

    def cpu_s(self) -> float:
        """Return the CPU seconds that its threads have used."""
        total = 0
        for path in glob.glob(f"/proc/{self.pid}/task/*/schedstat"):
            try:
                total += int(Path(path).read_text().split()[0])
            except (OSError, IndexError):
                continue  # a thread that ended in between
        return total * 1e-9

    def output(self) -> str:
        """Return the end of what it printed."""
        size = os.fstat(self.log).st_size
        return os.pread(self.log, 2000, max(0, size - 2000)).decode(errors="replace")

    def kill(self) -> int:
        """End it and everything it started; returns its exit code, negative for a signal, 0 when we killed it."""
        self.end.close()
        status = self.zygote.reap(self.pid)
        os.close(self.log)
        shutil.rmtree(self.home, ignore_errors=True)
        return status


class Zygote:
    """A process that forks children on request."""

    def __init__(self, device: Device, threads: int) -> None:
        self.device = device
        self.threads = threads
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.settimeout(ZYGOTE_START_S)
        environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        environment |= {"NUMBA_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads), "PYTHONHASHSEED": "0"}
        environment["OMP_WAIT_POLICY"] = "passive"  # idle threads sleep: a spinning one would slow the other side
        self.control = control
        self.process = subprocess.Popen(
            [sys.executable, "-m", "evokernel.worker.zygote", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            env=environment,
            stdin=subprocess.DEVNULL,
        )
        theirs.close()

    def fork(self, arena: Arena) -> Child:
        ours, theirs = socket.socketpair()
        home = Path(tempfile.mkdtemp(prefix="evokernel-"))
        log = os.open(home / "output", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        request = {
            "op": "fork",
            "home": str(home),
            "threads": self.threads,
            "arena_bytes": arena.size,
            "output_bytes": OUTPUT_BYTES,
            "memory_bytes": MEMORY_BYTES,
            "cores": sorted(os.sched_getaffinity(0)),
            "device": asdict(self.device),
        }
        reply = self._ask(request, [theirs.fileno(), arena.descriptor, log])
        theirs.close()
        return Child(self, reply["pid"], ours, log, home)

    def reap(self, pid: int) -> int:
        try:
            return int(self._ask({"op": "reap", "pid": pid}, [])["status"])
        except wire.Gone:
            return 0

    def _ask(self, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        try:
            socket.send_fds(self.control, [json.dumps(request).encode()], descriptors)
            reply = self.control.recv(65536)
        except OSError as error:
            raise wire.Gone(f"the zygote: {error}") from None
        if not reply:
            raise wire.Gone("the zygote ended")
        answer: dict[str, Any] = json.loads(reply)
        return answer

    def close(self) -> None:
        self.control.close()
        self.process.kill()
        self.process.wait()
