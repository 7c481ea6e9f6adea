"""What the guard says of the attacks on a GPU worker, and that their kernels compile: neither needs a GPU."""

import pytest

from evokernel.backends.targets import parse
from evokernel.bench.guard import violation
from evokernel.measurement import Outcome
from evokernel.worker.compile_pool import CompilePool
from tests.attacks.gpu_attacks import ATTACKS, HONEST, PROBLEM, by_name


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_the_guard_refuses_an_attack_by_its_rule_or_cannot_know(attack):
    found = violation(attack.source, "triton")
    if attack.guard_rule:
        assert found is not None
        assert attack.guard_rule in found
    else:
        assert found is None


@pytest.mark.parametrize("name", HONEST)
def test_the_guard_lets_an_honest_kernel_through(name):
    assert violation(HONEST[name], "triton") is None


def test_attacks_and_honest_kernels_compile_so_that_their_verdict_is_not_the_compilers(tmp_path):
    with CompilePool(parse("cuda:90")) as pool:
        futures = {}
        for number, (name, source) in enumerate([*((n, a.source) for n, a in by_name()), *HONEST.items()]):
            path = tmp_path / f"{number}.py"
            path.write_text(source)
            futures[name] = pool.submit(path, PROBLEM)
        failed = {name for name, future in futures.items() if future.result().outcome is not Outcome.PASSED}
    assert failed == {"calls the library"}  # which launches nothing of its own
