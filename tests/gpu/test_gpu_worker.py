"""The GPU worker on a real GPU: right kernels pass, wrong and hostile ones do not, and faults cost one candidate."""

import pytest

from evokernel import devices
from evokernel.errors import DeviceError
from evokernel.measurement import Fidelity, Outcome
from evokernel.worker.lease import Ownership
from tests.attacks.gpu_attacks import ATTACKS, FAULTS, HONEST, PROBLEM

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not devices.gpus(), reason="no NVIDIA GPU answers here")]


@pytest.fixture(scope="module")
def worker():
    from evokernel.worker.gpu import GpuWorker

    made = GpuWorker(devices.find("cuda"), "bf16", ("cudnn", "sdpa_flash"), guarded=False)
    yield made
    made.close()


def measure(worker, source, fidelity=Fidelity.FULL):
    return worker.measure(source, "triton", PROBLEM, fidelity)


def test_a_right_kernel_passes_with_pairs_of_times_on_every_workload(worker):
    measurement = measure(worker, HONEST["plain"])
    assert (measurement.outcome, measurement.message) == (Outcome.PASSED, "")
    assert [t.workload for t in measurement.timings] == [w.name for w in PROBLEM.workloads]
    assert measurement.environment["sm_mhz"]


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_kernel_passes(worker, name):
    assert measure(worker, HONEST[name], Fidelity.SCREEN).outcome is Outcome.PASSED


@pytest.mark.parametrize("attack", [*ATTACKS, *FAULTS], ids=lambda attack: attack.name)
def test_an_attack_gets_its_verdict_and_the_next_candidate_passes(worker, attack):
    assert measure(worker, attack.source).outcome in attack.outcomes
    assert measure(worker, HONEST["plain"], Fidelity.SCREEN).outcome is Outcome.PASSED


def test_a_second_worker_on_the_same_gpu_is_refused(worker):
    with pytest.raises(DeviceError, match="held by another worker"):
        Ownership(worker.device)


def test_a_clearly_slower_candidate_is_given_up_after_the_first_workload(worker):
    bar = {w.name: 100.0 for w in PROBLEM.workloads}
    measurement = worker.measure(HONEST["plain"], "triton", PROBLEM, Fidelity.FULL, bar)
    assert measurement.fidelity is Fidelity.SCREEN
    assert len(measurement.timings) == 1
