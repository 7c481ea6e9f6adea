"""Whatever a candidate does to itself costs that candidate alone, and the next one is timed as ever."""

import sys

import pytest

from evokernel import devices
from evokernel.measurement import Fidelity, Outcome
from evokernel.worker import parent
from evokernel.worker.parent import CpuWorker
from tests.attacks.faults import FAULTS
from tests.toys import PROBLEM, RIGHT

LIMIT_S = 1.0


@pytest.fixture(scope="module")
def worker():
    made = CpuWorker(devices.cpu(), "fp32", ("sdpa",), guarded=False)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def short_limits(monkeypatch):
    monkeypatch.setattr(CpuWorker, "check_limit_s", LIMIT_S)


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
