"""Compile candidates ahead of time, several at once; each in a process that may abort, hang or flood.

Whatever it does comes back as a value. What cannot run (shared memory, registers) or spills too much is rejected here,
before it waits for a GPU.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evokernel import devices
from evokernel.backends import static_facts
from evokernel.backends.targets import Target
from evokernel.bench import miscompiles
from evokernel.errors import DeviceError
from evokernel.measurement import Outcome
from evokernel.problem import Problem
from evokernel.worker import wire
from evokernel.worker.processes import DYING_S, ForkServer, remove
from evokernel.worker.said import plain_facts, printable

KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV")
KEPT_TOOLS = tuple(f"TRITON_{tool}_PATH" for tool in ("PTXAS", "PTXAS_BLACKWELL", "NVDISASM", "CUOBJDUMP"))
START_S = 180.0
STARTS = 3  # of the zygote for one candidate: another candidate, or the system, may have ended it
MESSAGE_BYTES = 2000
KERNELS = 64  # of one candidate, whose facts are kept
FACT_CHARACTERS = 400
TELLING = re.compile(r"\berror:|\bError\b|LLVM ERROR|fatal|bad_alloc|out of memory", re.IGNORECASE)
ASSERTION = re.compile(r"Assertion .*failed|UNREACHABLE executed|LLVM ERROR")


@dataclass(frozen=True)
class Limits:
    """What one candidate's compile may take, and what its kernels may need."""

    wall_s: float = 60.0
    memory_bytes: int = 4 << 30  # of address space, beyond what the zygote has mapped
    output_bytes: int = 32 << 20  # of standard output and error together, and of each file
    spill_bytes: int = 512  # a thread


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Compiled:
    """What compiling one candidate gave."""

    outcome: Outcome  # PASSED, REJECTED, COMPILE_ERROR, TIMEOUT or CRASHED
    message: str = ""  # why not PASSED, at most 2 kB
    facts: Mapping[str, Any] = field(default_factory=dict)  # of the candidate, one number or word each
    kernels: tuple[Mapping[str, Any], ...] = ()  # of each binary
    binaries: Mapping[str, int] = field(default_factory=dict)  # by kernel; one per variant when nothing is specialised
    cache: Path | None = None  # to be the TRITON_CACHE_DIR of the process that launches; None unless PASSED
    seconds: float = 0.0


class CompilePool:
    """Compiles up to `slots` candidates at once for one target."""

    def __init__(
        self,
        target: Target,
        slots: int | None = None,
        cache_root: Path | None = None,  # for the candidates' caches, which then outlive the pool
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.target = target
        self.slots = slots or devices.cpu_count()
        self.limits = limits
        self._scratch = Path(tempfile.mkdtemp(prefix="evokernel-compile-"))
        self.cache_root = cache_root or self._scratch / "caches"
        self.cache_root.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._closed = False
        try:
            self._zygote = _Zygote(target)
        except DeviceError:
            remove(self._scratch)
            raise
        self._threads = ThreadPoolExecutor(self.slots, thread_name_prefix="compile")

    def submit(self, source: Path, problem: Problem, entry: str | None = None) -> Future[Compiled]:
        """Compile a rendered candidate for all variants of the problem. The future raises for faults of ours alone."""
        return self._threads.submit(self._compile, Path(source), problem, entry or problem.entry)

    def compile_all(self, sources: Iterable[Path], problem: Problem, entry: str | None = None) -> list[Compiled]:
        futures = [self.submit(source, problem, entry) for source in sources]
        return [future.result() for future in futures]

    def discard(self, compiled: Compiled) -> None:
        """Remove a candidate's cache once nobody will launch it from there."""
        if compiled.cache:
            remove(compiled.cache)

    def cpu_s(self) -> float:
        """Return the processor time of all compiles that have ended, of their tools too."""
        return self._zygote.children_cpu_s()

    def close(self) -> None:
        """End what is still compiling, and forget the caches unless the caller named their folder."""
        with self._lock:
            self._closed = True
            self._zygote.close()
        self._threads.shutdown(wait=True, cancel_futures=True)
        remove(self._scratch)

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _compile(self, source: Path, problem: Problem, entry: str) -> Compiled:
        started = time.monotonic()
        for _ in range(STARTS):
            cache = Path(tempfile.mkdtemp(dir=self.cache_root))
            home = Path(tempfile.mkdtemp(dir=self._scratch))
            zygote = self._living_zygote()
            try:
                outcome, message, reply = self._in_child(zygote, source, problem, entry, cache, home)
            finally:
                remove(home)
            if outcome is not Outcome.CRASHED or zygote.alive:
                break
            remove(cache)  # its zygote ended, by whosever fault: once more
        kernels = tuple(reply.get("kernels", ()))
        binaries = reply.get("binaries", {})
        facts: dict[str, Any] = {}
        if outcome is Outcome.PASSED:
            facts = self._facts(kernels, binaries, reply["extra_binaries"], source)
            if reason := too_much(kernels, self.target, self.limits):
                outcome, message = Outcome.REJECTED, reason
        if outcome is not Outcome.PASSED:
            remove(cache)
        seconds = time.monotonic() - started
        facts["compile_s"] = round(seconds, 3)
        kept = cache if outcome is Outcome.PASSED else None
        return Compiled(outcome, message, facts, kernels, binaries, kept, seconds)

    def _facts(
        self, kernels: tuple[Mapping[str, Any], ...], binaries: Mapping[str, int], extra: int, source: Path
    ) -> dict[str, Any]:
        facts = {**static_facts.summary(kernels), "binaries": sum(binaries.values()), "extra_binaries": extra}
        if miscompiles.affected(self.target.name, devices.versions().get("triton", "0")):
            found = miscompiles.warnings(source.read_text())
            if found:
                facts["warnings"] = "; ".join(f"line {line}: {rule}" for line, rule in found[:5])
        return facts

    def _living_zygote(self) -> _Zygote:
        with self._lock:
            if self._closed:
                raise RuntimeError("the compile pool is closed")
            if not self._zygote.alive:
                self._zygote.close()
                self._zygote = _Zygote(self.target)
            return self._zygote

    def _in_child(
        self, zygote: _Zygote, source: Path, problem: Problem, entry: str, cache: Path, home: Path
    ) -> tuple[Outcome, str, dict[str, Any]]:
        """Return the outcome, its cause and, when PASSED, the facts."""
        ours, theirs = socket.socketpair()
        log = os.open(home / "output", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        gone, status, pid = "", 0, 0
        request = {"source": str(source.resolve()), "entry": entry, "problem": problem.to_json(), "cache": str(cache)}
        try:
            with contextlib.closing(ours):
                with contextlib.closing(theirs):
                    pid = zygote.fork(home, cache, self.limits, theirs.fileno(), log)
                try:
                    wire.send(ours, request)
                    reply = wire.receive(ours, self.limits.wall_s)
                    if "error" not in reply:
                        return Outcome.PASSED, "", _plain(reply)
                except wire.Late:
                    return Outcome.TIMEOUT, f"compiling took longer than {self.limits.wall_s:g} s", {}
                except wire.Gone as error:
                    gone, reply = str(error), {}
            if gone:
                status = zygote.reap(pid, DYING_S if gone == wire.ENDED else 0.0)
                pid = 0
            return self._failure(reply, gone, status, cause(_read(log, self.limits.output_bytes)))
        except wire.Gone as error:
            return Outcome.CRASHED, str(error), {}
        finally:
            os.close(log)
            if pid:
                with contextlib.suppress(wire.Gone):
                    zygote.reap(pid, 0.0)

    def _failure(
        self, reply: Mapping[str, Any], gone: str, status: int, printed: str
    ) -> tuple[Outcome, str, dict[str, Any]]:
        if gone:
            text = _ending(status, gone)
        elif reply.get("memory"):
            text = f"compiling needed more than the {self.limits.memory_bytes >> 20} MiB allowed: {reply['error']}"
        else:
            return Outcome.COMPILE_ERROR, _bounded(printable(str(reply["error"])), printed), {}
        return Outcome.CRASHED, _bounded(printable(text), printed), {}


class _Zygote(ForkServer):
    """The process that compile processes are forked from, for one target."""

    def __init__(self, target: Target) -> None:
        environment = {name: os.environ[name] for name in (*KEPT_VARIABLES, *KEPT_TOOLS) if name in os.environ}
        # One thread: what forks must have no other, and the pool's slots use the cores.
        environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        # Nothing here may hold a device, or its memory, while candidates are timed.
        environment |= {"PYTHONHASHSEED": "0", "CUDA_VISIBLE_DEVICES": "-1"}
        super().__init__("evokernel.worker.compile_zygote", [target.name], environment, START_S)
        try:
            ready = self.receive()
        except wire.Gone as error:
            self.close()
            raise DeviceError(f"the compile process for {target.name} did not start: {error}") from None
        if "error" in ready:
            self.close()
            raise DeviceError(ready["error"])

    def fork(self, home: Path, cache: Path, limits: Limits, end: int, log: int) -> int:
        """Return the id of a new process that serves the socket `end`, prints into `log` and writes to two folders."""
        request = {
            "op": "fork",
            "home": str(home),
            "cache": str(cache),
            "output_bytes": limits.output_bytes,
            "memory_bytes": limits.memory_bytes,
            "cpu_s": math.ceil(limits.wall_s) + 5,  # for a tool that outlives its candidate
            "device": {"kind": "cuda"},
        }
        return int(self.ask(request, [end, log])["pid"])

    def reap(self, pid: int, grace_s: float) -> int:
        """End a process and all it started; returns its exit code, negative for a signal, 0 when we ended it."""
        return int(self.ask({"op": "reap", "pid": pid, "grace_s": grace_s}, [])["status"])

    def children_cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")  # cutime and cstime


def too_much(kernels: Iterable[Mapping[str, Any]], target: Target, limits: Limits) -> str:
    """Return what a kernel needs and the target, or the limits, do not give; "" when all fit."""
    for kernel in kernels:
        name, shared, spills = kernel["kernel"], kernel["shared_bytes"], kernel["spill_bytes"]
        if shared > target.shared_bytes:
            return f"{name} needs {shared:,} B of shared memory; a block on {target.name} has {target.shared_bytes:,} B"
        if kernel["occupancy"] < 1:
            needs = f"{kernel['registers']} registers in each of {kernel['num_warps']} warps"
            return f"{name} needs {needs}; no multiprocessor of {target.name} has as many"
        if spills > limits.spill_bytes:
            return f"{name} spills {spills:,} B a thread; the limit is {limits.spill_bytes:,} B"
    return ""


def cause(text: str) -> str:
    """Cut a compiler's output to its first error and the assertion that ended it, or else to its last line."""
    first = assertion = last = ""
    for line in text.splitlines():
        if line.strip():
            last = line
        if not first and TELLING.search(line):
            first = line
        if ASSERTION.search(line):
            assertion = line
    lines = [first, assertion if assertion != first else ""] if first or assertion else [last]
    return "\n".join(line.strip()[: MESSAGE_BYTES // 3] for line in lines if line)


def _bounded(message: str, printed: str) -> str:
    """Join an error and what was printed; a long error keeps its beginning and its end, where the cause stands."""
    room = MESSAGE_BYTES - len(printed.encode()) - 1
    data = message.strip().encode()
    if len(data) > room:
        data = data[: room // 3] + b"\n...\n" + data[len(data) - (room - room // 3 - 5) :]
    return f"{data.decode(errors='ignore')}\n{printed}".strip()


def _read(log: int, limit: int) -> str:
    return printable(os.pread(log, limit, 0).decode(errors="replace"))


def _ending(status: int, gone: str) -> str:
    if gone != wire.ENDED:
        return f"the compile process answered with {gone}"
    if status < 0:
        return f"the compile process was ended by {signal.Signals(-status).name} (status {128 - status})"
    return f"the compile process ended by itself (status {status})"


def _plain(reply: Mapping[str, Any]) -> dict[str, Any]:
    """Check the shape of what a candidate's process reports: numbers and short words; wire.Gone when it is another."""
    try:
        kernels = [plain_facts(kernel, FACT_CHARACTERS) for kernel in reply["kernels"][:KERNELS]]
        static_facts.summary(kernels)
        binaries = {printable(str(name))[:200]: int(count) for name, count in reply["binaries"].items()}
        return {"kernels": kernels, "binaries": binaries, "extra_binaries": int(reply["extra_binaries"])}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise wire.Gone("facts of another form") from None
