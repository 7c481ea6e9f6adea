"""Correct kernels of unusual build pass the guard and the worker: zero false alarms."""

from pathlib import Path

import pytest

from evokernel import devices
from evokernel.bench.guard import violation
from evokernel.measurement import Fidelity, Outcome
from evokernel.problem import Problem, Workload
from evokernel.worker.parent import CpuWorker
from tests.attacks.catalogue import GROUPED
from tests.attacks.honest import HONEST, INTERPRETED
from tests.search_spaces import interpreted

FULL = Problem("forward", "fp32", (Workload(1, 2, 2, 80, 112, 16, False),))
SHAPES = {
    "full": {"shape": (1, 2, 2, 33, 70, 16)},
    "causal, strided, grouped": {"shape": (2, 4, 2, 40, 40, 24), "causal": True, "strided": 8},
    "masked rows": {"shape": (1, 2, 1, 50, 20, 16), "causal": True, "dtype": "fp16"},
    "ascending maxima": {"shape": (1, 1, 1, 17, 130, 16), "ascending": True},
}
ERROR = {"fp32": 1e-5, "fp16": 2e-3}


@pytest.fixture(scope="module")
def worker():
    made = CpuWorker(devices.cpu(), "fp32", ("sdpa",))  # with the guard
    yield made
    made.close()


def test_there_are_more_than_twenty():
    assert len(HONEST) + len(INTERPRETED) >= 20


@pytest.mark.parametrize("name", HONEST)
def test_nobody_is_accused_whose_kernel_has(worker, name):
    problem = FULL if len(name) % 2 else GROUPED
    found = worker.measure(HONEST[name], "numba", problem, Fidelity.SCREEN)
    assert (found.outcome, found.message) == (Outcome.PASSED, "")


@pytest.mark.parametrize("name", INTERPRETED)
def test_the_guard_lets_through_a_triton_kernel_with(name):
    assert violation(INTERPRETED[name], "triton") is None


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    pytest.importorskip("triton")
    folder: Path = tmp_path_factory.mktemp("interpreted")
    cases = {}
    for name, source in INTERPRETED.items():
        path = folder / f"{name[:12].replace(' ', '_')}.py"
        path.write_text(source)
        for shape, case in SHAPES.items():
            cases[f"{name}/{shape}"] = {"source": str(path), **case}
    return interpreted.run(cases)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", INTERPRETED)
def test_interpreted_it_is_exact_too(verdicts, name, shape):
    verdict = verdicts[f"{name}/{shape}"]
    assert "failure" not in verdict, verdict
    assert max(verdict["error"], verdict["lse_error"]) < ERROR[SHAPES[shape].get("dtype", "fp32")]
