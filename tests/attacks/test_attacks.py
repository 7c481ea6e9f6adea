"""Every attack of the catalogue gets its verdict: from the guard, and without the guard from what stands behind it."""

import pytest

from evokernel import devices
from evokernel.bench.guard import violation
from evokernel.measurement import Fidelity, Outcome
from evokernel.worker import sandbox
from evokernel.worker.parent import CpuWorker
from tests.attacks.catalogue import ATTACKS, ELSEWHERE, HARMLESS
from tests.toys import PROBLEM, RIGHT

BY_NAME = {attack.name: attack for attack in ATTACKS}
ROWS = 42


@pytest.fixture(scope="module")
def worker():
    made = CpuWorker(devices.cpu(), "fp32", ("sdpa",), guarded=False)
    yield made
    made.close()


def test_every_row_of_the_catalogue_is_an_attack_or_has_a_reason():
    covered = {row for attack in ATTACKS for row in attack.rows}
    assert covered | ELSEWHERE.keys() == set(range(1, ROWS + 1))
    assert len(BY_NAME) == len(ATTACKS)


@pytest.mark.parametrize("name", [a.name for a in ATTACKS if a.guard_rule])
def test_the_guard_names_line_and_rule_when(name):
    attack = BY_NAME[name]
    found = violation(attack.code, "numba")
    assert found is not None
    line, _, rule = found.partition(": ")
    assert attack.guard_rule in rule
    text = attack.code.splitlines()[int(line.removeprefix("line ")) - 1]
    assert text.strip() and text not in RIGHT.splitlines(), "the line is not the attack's"


@pytest.mark.parametrize("name", [a.name for a in ATTACKS if not a.guard_rule])
def test_the_guard_lets_through_what_is_only_wrong_when(name):
    assert violation(BY_NAME[name].code, "numba") is None


@pytest.mark.parametrize("name", BY_NAME)
def test_without_the_guard_nothing_is_gained_when(worker, name):
    attack = BY_NAME[name]
    if "Landlock" in attack.defence and sandbox.landlock_version() < 1:
        pytest.skip("this kernel has no Landlock")
    later = attack.defence in ("every timed answer is judged", "unseen inputs in every call")  # which need calls
    measurement = worker.measure(attack.code, "numba", attack.problem, Fidelity.FULL if later else Fidelity.SCREEN)
    assert measurement.outcome in attack.outcomes, measurement.message
    if attack.outcomes == HARMLESS:
        assert bool(attack.guard_alone) == (attack.defence == "guard")
        if not attack.guard_alone:  # numpy beside torch's SDPA: whoever seems faster has moved a clock
            assert measurement.timings[0].speedup < 1
    elif attack.defence.startswith(("refused system calls", "own folders", "hidden memory", "sealed")):
        assert "PermissionError" in measurement.message  # and no slip of the attack's own
    else:
        assert measurement.message


def test_a_guarded_worker_refuses_before_anything_runs():
    worker = CpuWorker(devices.cpu(), "fp32", ("sdpa",))
    try:
        attack = BY_NAME["a program is run"]
        found = worker.measure(attack.code, "numba", PROBLEM, Fidelity.SCREEN)
        assert found.outcome is Outcome.REJECTED
        assert attack.guard_rule in found.message
        assert worker.measure(RIGHT, "numba", PROBLEM, Fidelity.SCREEN).outcome is Outcome.PASSED
    finally:
        worker.close()
