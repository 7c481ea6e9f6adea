"""Hold the zygote and its children from the parent's side: start, ask, watch, kill."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evokernel.devices import Device
from evokernel.worker import wire
from evokernel.worker.arena import HostArena

# What a candidate's process may know of the world. No keys, no tokens, no user's home.
KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES")
OUTPUT_BYTES = 8 << 20  # of standard output and error together
MEMORY_BYTES = 4 << 30  # beyond what the zygote has mapped
CPU_S = 600  # of processor time a core: compiling has 60 s, and a timing takes a few
ZYGOTE_START_S = 120.0
ANSWER_BYTES = 65536
DYING_S = 0.5  # that a child whose socket has closed may take to end


class Child:
    """One disposable process. ask() raises wire.Late on a hang and wire.Gone when it died."""

    def __init__(self, zygote: Zygote, pid: int, end: socket.socket, log: int, home: Path) -> None:
        self.zygote = zygote
        self.pid = pid
        self.end = end
        self.log = log
        self.home = home
        self.gone = ""  # what its socket said at the end
        self.status: int | None = None  # once it has been ended
        self.printed = ""  # by then

    def ask(self, op: str, timeout_s: float, **arguments: Any) -> dict[str, Any]:
        try:
            wire.send(self.end, {"op": op, **arguments})
            return wire.receive(self.end, timeout_s)
        except wire.Gone as error:
            self.gone = str(error)
            raise

    def pause(self) -> None:
        """Stop all of its threads; returns before the last has stopped, some microseconds later."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        for target in (-self.pid, self.pid):  # its group, and itself should it have left that
            with contextlib.suppress(ProcessLookupError):  # it died: the next question says so
                os.kill(target, number)

    def spread(self) -> None:
        """Give each thread a core of its own, the main one the first.

        Threads woken after a pause of 5 ms otherwise share a core for a whole scheduler quantum (SDPA on two cores:
        2,950 us, not 1,770). OpenMP's own binding would also hold the compiler to the first core.
        """
        cores = sorted(os.sched_getaffinity(0))
        others = [int(task) for task in _tasks(self.pid) if int(task) != self.pid]
        others.sort(key=lambda task: -_ran_ns(self.pid, task))  # those that work come first; some only wait
        for index, task in enumerate([self.pid, *others]):
            with contextlib.suppress(ProcessLookupError):  # a thread that has ended meanwhile
                os.sched_setaffinity(task, {cores[index % len(cores)]})

    def output(self) -> str:
        """Return the end of what it printed."""
        if self.status is not None:
            return self.printed
        size = os.fstat(self.log).st_size
        return os.pread(self.log, 2000, max(0, size - 2000)).decode(errors="replace").strip()

    def kill(self) -> int:
        """End it and everything it started; returns its exit code, negative for a signal, 0 when we killed it."""
        if self.status is None:
            self.end.close()
            status = self.zygote.reap(self.pid, DYING_S if self.gone == wire.ENDED else 0.0)
            self.printed = self.output()
            self.status = status
            os.close(self.log)
            remove(self.home)
        return self.status


def remove(folder: Path) -> None:
    """Remove what a candidate has written, however deep it lies."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:  # of Python's walk; the tool has none
        subprocess.run(["rm", "-rf", "--", str(folder)], check=False, stderr=subprocess.DEVNULL)


def _tasks(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def _ran_ns(pid: int, task: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
    except (OSError, IndexError):
        return 0


class ForkServer:
    """A process of ours, started by exec, that forks others on request. Its methods may be called by threads."""

    def __init__(self, module: str, arguments: Sequence[str], environment: dict[str, str], start_s: float) -> None:
        self.name = module.rpartition(".")[2].replace("_", " ")
        self.lock = threading.Lock()  # one question at a time
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(start_s)
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, str(theirs.fileno()), *arguments],
            pass_fds=(theirs.fileno(),),
            env=environment,
            stdin=subprocess.DEVNULL,
        )
        theirs.close()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def ask(self, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Return its answer, or raise wire.Gone."""
        with self.lock:
            try:
                socket.send_fds(self.control, [json.dumps(request).encode()], descriptors)
            except OSError as error:
                raise self._lost(str(error)) from None
            return self.receive()

    def receive(self) -> dict[str, Any]:
        try:
            data = self.control.recv(ANSWER_BYTES)
        except OSError as error:
            raise self._lost(str(error)) from None
        if not data:
            raise self._lost("it ended")
        answer: dict[str, Any] = json.loads(data)
        return answer

    def _lost(self, reason: str) -> wire.Gone:
        with contextlib.suppress(subprocess.TimeoutExpired):  # so that `alive` says what the socket said
            self.process.wait(DYING_S)
        return wire.Gone(f"the {self.name}: {reason}")

    def close(self) -> None:
        self.control.close()
        self.process.kill()
        self.process.wait()


class Zygote(ForkServer):
    """A process that forks children on request."""

    def __init__(self, device: Device, threads: int, folder: Path | None = None) -> None:
        self.folder = folder or Path(tempfile.mkdtemp(prefix="evokernel-"))  # the children's homes
        self.device = device
        self.threads = threads
        environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        environment |= {"NUMBA_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads), "PYTHONHASHSEED": "0"}
        environment["OMP_WAIT_POLICY"] = "passive"  # idle threads sleep: a spinning one would slow the other side
        if device.kind == "cuda":
            environment["CUDA_VISIBLE_DEVICES"] = device.uuid
        arguments = [device.kind, str(device.arch), str(self.folder)]
        super().__init__("evokernel.worker.zygote", arguments, environment, ZYGOTE_START_S)

    def fork(self, arena: HostArena | None = None, *, trusted: bool = False) -> Child:
        """Return a new child. A trusted one, ours, lives as long as the worker and needs no limit of time.

        Host memory is handed over here; a GPU's child opens the arena once it has a context.
        """
        ours, theirs = socket.socketpair()
        home = Path(tempfile.mkdtemp(dir=self.folder))
        log = os.open(home / "output", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        request = {
            "op": "fork",
            "home": str(home),
            "threads": self.threads,
            "arena_bytes": arena.size if arena else 0,
            "output_bytes": OUTPUT_BYTES,
            # A CUDA context maps more address space than any limit would grant; memory.py watches those instead.
            "memory_bytes": MEMORY_BYTES if arena else 0,
            "cpu_s": 0 if trusted else CPU_S * self.threads,
            "trusted": trusted,
            "device": asdict(self.device),
        }
        reply = self.ask(request, [theirs.fileno(), log, *([arena.descriptor] if arena else [])])
        theirs.close()
        return Child(self, reply["pid"], ours, log, home)

    def reap(self, pid: int, grace_s: float) -> int:
        try:
            return int(self.ask({"op": "reap", "pid": pid, "grace_s": grace_s}, [])["status"])
        except wire.Gone:
            return 0

    def close(self) -> None:
        super().close()
        remove(self.folder)
