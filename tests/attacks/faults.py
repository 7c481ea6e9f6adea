"""Ways in which a candidate ends or hangs its own process, with the outcome that each must get."""

from __future__ import annotations

from evokernel.measurement import Outcome
from tests.attacks.catalogue import SERVING
from tests.toys import RIGHT

# Statement, outcome; none of them in the compiling call, whose limit is another.
FAULTS: dict[str, tuple[str, Outcome | tuple[Outcome, ...]]] = {
    "loops for ever": ("while True: pass", Outcome.TIMEOUT),
    "sleeps for ever": ("import time; time.sleep(1e6)", Outcome.TIMEOUT),
    "waits for a lock that it holds": ("import threading; x = threading.Lock(); x.acquire(); x.acquire()", Outcome.TIMEOUT),
    "stops itself": ("import os; os.kill(os.getpid(), 19)", Outcome.TIMEOUT),
    "recurses for ever": ("f = lambda g: g(g); f(f)", Outcome.RUNTIME_ERROR),
    "overflows the stack of C": ("import sys; sys.setrecursionlimit(1 << 30); f = lambda: [*map(lambda _: f(), '1')]; f()", Outcome.CRASHED),
    "asks for memory without end": ("hog = [bytes(1 << 26) for _ in range(1 << 20)]", Outcome.RUNTIME_ERROR),
    "forks without end": ("import os\n        while True: os.fork()", Outcome.RUNTIME_ERROR),
    "starts threads without end": ("import threading\n        while True: threading.Thread(target=threading.Event().wait, daemon=True).start()", (Outcome.RUNTIME_ERROR, Outcome.TIMEOUT, Outcome.CRASHED)),
    "opens files without end": ("kept = []\n        while True: kept.append(open('/dev/null'))", Outcome.RUNTIME_ERROR),
    "prints gigabytes": ("while True: print('x' * 1000000)", Outcome.RUNTIME_ERROR),
    "fills a file": ("f = open('big', 'wb')\n        while True: f.write(bytes(1 << 20)); f.flush()", Outcome.RUNTIME_ERROR),
    "raises": ("raise ValueError('no')", Outcome.RUNTIME_ERROR),
    "exits": ("raise SystemExit(0)", Outcome.RUNTIME_ERROR),
    "returns one tensor": ("return q", Outcome.RUNTIME_ERROR),
    "returns the wrong shape": ("return q[..., :1], q[..., 0]", Outcome.RUNTIME_ERROR),
    "leaves at once": ("import os; os._exit(0)", Outcome.CRASHED),
    "is ended by SIGSEGV": ("import ctypes; ctypes.string_at(0)", Outcome.CRASHED),
    "aborts": ("import os; os.abort()", Outcome.CRASHED),
    "is ended by SIGKILL": ("import os; os.kill(os.getpid(), 9)", Outcome.CRASHED),
    "closes its pipe": (f"import gc; {SERVING}.end.close()", Outcome.CRASHED),
    "closes every descriptor": ("import os; os.closerange(0, 256)", Outcome.CRASHED),
    "closes its output": ("import os; os.close(1); os.close(2); raise ValueError('no')", Outcome.RUNTIME_ERROR),
    "ignores the signal that ends it": ("import signal\n        for n in (1, 2, 3, 13, 15): signal.signal(n, signal.SIG_IGN)\n        while True: pass", Outcome.TIMEOUT),
}  # fmt: skip


def faulty(statement: str) -> str:
    """Return a right kernel that does this in every call but the compiling one, whose limit is another."""
    return RIGHT.replace("    group = q", f"    if q.shape[2] != 9:\n        {statement}\n    group = q")


def allowed(fault: str) -> tuple[Outcome, ...]:
    outcome = FAULTS[fault][1]
    return outcome if isinstance(outcome, tuple) else (outcome,)
