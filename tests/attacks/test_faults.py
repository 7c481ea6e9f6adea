"""Whatever a candidate does to itself costs that candidate alone, and the next one is timed as ever."""

import sys

import pytest

from evokernel import devices
from evokernel.measurement import Fidelity, Outcome
from evokernel.worker import parent
from evokernel.worker.parent import CpuWorker
from tests.attacks.catalogue import SERVING
from tests.toys import PROBLEM, RIGHT

LIMIT_S = 1.0

# Statement, outcome; none of them in the compiling call, whose limit is another.
FAULTS = {
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
    "leaves at once": ("import os; os._exit(0)", Outcome.CRASHED),
    "is ended by SIGSEGV": ("import ctypes; ctypes.string_at(0)", Outcome.CRASHED),
    "aborts": ("import os; os.abort()", Outcome.CRASHED),
    "is ended by SIGKILL": ("import os; os.kill(os.getpid(), 9)", Outcome.CRASHED),
    "closes its pipe": (f"import gc; {SERVING}.end.close()", Outcome.CRASHED),
    "closes every descriptor": ("import os; os.closerange(0, 256)", Outcome.CRASHED),
    "closes its output": ("import os; os.close(1); os.close(2); raise ValueError('no')", Outcome.RUNTIME_ERROR),
    "ignores the signal that ends it": ("import signal\n        for n in (1, 2, 3, 13, 15): signal.signal(n, signal.SIG_IGN)\n        while True: pass", Outcome.TIMEOUT),
}  # fmt: skip


@pytest.fixture(scope="module")
def worker():
    made = CpuWorker(devices.cpu(), "fp32", ("sdpa",), guarded=False)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def short_limits(monkeypatch):
    monkeypatch.setattr(parent, "CHECK_LIMIT_S", LIMIT_S)


def measure(worker, source):
    return worker.measure(source, "numba", PROBLEM, Fidelity.SCREEN)


@pytest.mark.skipif(sys.platform != "linux", reason="the limits are Linux's")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_candidate_is_lost_and_the_next_is_timed_when_one(worker, fault):
    statement, outcome = FAULTS[fault]
    found = measure(
        worker, RIGHT.replace("    group = q", f"    if q.shape[2] != 9:\n        {statement}\n    group = q")
    )
    assert found.outcome in (outcome if isinstance(outcome, tuple) else (outcome,)), found.message
    assert found.message
    following = measure(worker, RIGHT)
    assert (following.outcome, following.message) == (Outcome.PASSED, "")


def test_an_endless_import_is_a_timeout(worker, monkeypatch):
    monkeypatch.setattr(parent, "COMPILE_LIMIT_S", LIMIT_S)
    found = measure(worker, RIGHT + "\nwhile True: pass\n")
    assert (found.outcome, "compiling" in found.message) == (Outcome.TIMEOUT, True)
    monkeypatch.undo()
    assert measure(worker, RIGHT).outcome is Outcome.PASSED


def test_nothing_is_left_of_a_candidates_folder(worker):
    measure(worker, RIGHT.replace("    group = q", "    open('left', 'w').write('x')\n    group = q"))
    kept = [folder for folder in worker.zygote.folder.iterdir() if (folder / "left").exists()]
    assert kept == []
