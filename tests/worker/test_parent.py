"""The worker tells right from wrong and believes no candidate. Real processes, real clocks, real arithmetic."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evokernel import devices
from evokernel.bench import inputs
from evokernel.candidate import Body, find_module
from evokernel.measurement import Fidelity, Outcome
from evokernel.problem import Problem, Workload
from evokernel.worker.parent import CpuWorker, Trial
from evokernel.worker.session import Bound, Player
from tests.attacks.catalogue import broken, wrapped
from tests.toys import PROBLEM, RIGHT


@pytest.fixture(scope="module")
def worker():
    made = CpuWorker(devices.cpu(), "fp32", ("sdpa",), guarded=False)
    yield made
    made.close()


def measure(worker, source, problem=PROBLEM, fidelity=Fidelity.SCREEN):
    return worker.measure(source, "numba", problem, fidelity)


def test_a_right_kernel_passes_with_pairs_of_times_and_its_share_of_the_tolerance(worker):
    measurement = measure(worker, RIGHT, fidelity=Fidelity.FULL)
    assert (measurement.outcome, measurement.message) == (Outcome.PASSED, "")
    timing = measurement.timings[0]
    assert len(timing.samples_us) == len(timing.baseline_samples_us) >= 7
    assert 0 < max(measurement.errors.values()) <= 1
    assert measurement.environment["evaluator"]


def test_a_real_template_passes_in_a_real_class(worker):
    template = Body.load(find_module("flash_forward_numba", "search_spaces"))
    problem = Problem("forward", "fp32", (Workload(1, 4, 2, 100, 100, 64, True),))
    measurement = measure(worker, template.render(template.defaults), problem)
    assert (measurement.outcome, measurement.message) == (Outcome.PASSED, "")


def test_every_baseline_has_its_record_and_the_fastest_is_the_one_to_beat():
    made = CpuWorker(devices.cpu(), "fp32", ("sdpa", "math"), guarded=False)
    measurement = measure(made, RIGHT)
    made.close()
    (timing,) = measurement.timings
    records = measurement.resources["baselines_us"][timing.workload]
    assert set(records) == {"sdpa", "math"}
    assert timing.baseline == min(records, key=records.get)


def test_held_out_workloads_are_timed_when_a_champion_is_verified(worker):
    problem = Problem("forward", "fp32", PROBLEM.workloads, (Workload(1, 2, 2, 50, 70, 16, True),))
    measurement = measure(worker, RIGHT, problem, Fidelity.VERIFY)
    assert [t.held_out for t in measurement.timings] == [False, True]


def serving(worker, source, problem=PROBLEM):
    """Return a child that has loaded and compiled a candidate, bound to the first workload."""
    player = Player(worker.zygote.fork(worker.arena), 20.0)
    worker._compile(player, Trial(source, "numba", problem, Fidelity.SCREEN, {}))
    bound = Bound.make(worker.arena, problem.workloads[0], "fp32", inputs.PLAIN)
    player.bind(bound, {**problem.workloads[0].arguments(), "num_sms": 1})
    return player, bound


def cpu_ns(pid):
    return sum(int((p / "schedstat").read_text().split()[0]) for p in Path(f"/proc/{pid}/task").iterdir())


def test_a_candidate_computes_only_while_it_is_asked_something(worker):
    burning = RIGHT + (
        "\nimport hashlib, threading\ndef burn():\n    while True:\n        hashlib.sha256(bytes(1 << 20))\n"
        "for _ in range(4):\n    threading.Thread(target=burn, daemon=True).start()\n"
    )
    player, bound = serving(worker, burning)
    time.sleep(0.05)  # a thread that waits for a core stops when it gets one
    before = cpu_ns(player.child.pid)
    time.sleep(0.3)
    assert cpu_ns(player.child.pid) == before
    bound.give(worker.pools.fresh(PROBLEM.workloads[0]))
    player.run()
    assert cpu_ns(player.child.pid) > before
    player.child.kill()


NONSENSE = {
    "no JSON": "b'\\0\\0\\0\\2xx'",
    "deep JSON": "b'\\0\\1\\0\\0' + b'[' * 65536",
    "no object": "b'\\0\\0\\0\\2[]'",
    "a gigabyte": "b'\\x40\\0\\0\\0'",
}


@pytest.mark.parametrize("what", NONSENSE)
def test_a_reply_that_is_nonsense_ends_the_candidate_alone(worker, what):
    code = f"""
import gc
def attention(q, k, v, **rest):
    next(x for x in gc.get_objects() if type(x).__name__ == "Serving").end.sendall({NONSENSE[what]})
    return compute(q, k, v, **rest)
"""
    measurement = measure(worker, wrapped(code))
    assert measurement.outcome is Outcome.CRASHED
    assert "answered with a message" in measurement.message
    assert measure(worker, RIGHT).outcome is Outcome.PASSED


def test_a_baseline_that_dies_is_replaced_and_costs_no_candidate(worker):
    worker.baseline.resume()
    os.kill(worker.baseline.pid, signal.SIGKILL)
    assert measure(worker, RIGHT, fidelity=Fidelity.FULL).outcome is Outcome.PASSED


def test_the_last_words_of_a_process_that_died_are_in_the_message(worker):
    code = "\ndef attention(q, k, v, **rest):\n    import os\n    print('LLVM ERROR: no', flush=True)\n    os.abort()\n"
    measurement = measure(worker, wrapped(code))
    assert measurement.outcome is Outcome.CRASHED
    assert "LLVM ERROR: no" in measurement.message
    assert "SIGABRT" in measurement.message


def test_text_that_a_database_would_refuse_is_cleaned(worker):
    statement = "raise ValueError('a' + chr(0xd800) + chr(0) + 'b')"
    message = measure(worker, RIGHT.replace("    group = q", f"    {statement}\n    group = q")).message
    assert "\x00" not in message
    message.encode()


def test_a_mismatch_names_family_workload_head_row_and_values(worker):
    message = measure(worker, broken("torch.tensor(out.astype", "torch.tensor(1.001 * out.astype")).message
    for word in ("d16_causal/random/", "batch", "head", "row", "exactly"):
        assert word in message


def test_another_dtype_than_the_workers_is_refused(worker):
    with pytest.raises(ValueError, match="bf16"):
        measure(worker, RIGHT, Problem("forward", "bf16", PROBLEM.workloads))


def test_a_module_that_does_not_import_is_a_compile_error_in_its_own_words(worker):
    measurement = measure(worker, RIGHT + "\nimport no_such_module\n")
    assert measurement.outcome is Outcome.COMPILE_ERROR
    assert "no_such_module" in measurement.message


def test_a_candidate_sees_neither_keys_nor_the_users_home(worker, monkeypatch):
    statement = "import os; raise ValueError(os.environ.get('HOME') + ' ' + ' '.join(os.environ))"
    source = RIGHT.replace("    group = q", f"    if q.shape[2] != 9:\n        {statement}\n    group = q")
    message = measure(worker, source).message
    assert "evokernel-" in message
    assert "API_KEY" not in message


def test_bitwise_determinism_is_demanded_where_the_problem_asks_for_it(worker):
    noisy = broken(
        "    return torch.tensor(out", "    out = out + np.random.rand() * 1e-8\n    return torch.tensor(out"
    )
    strict = Problem("forward", "fp32", PROBLEM.workloads, determinism="bitwise")
    assert measure(worker, noisy, strict).outcome is Outcome.INCORRECT
    assert measure(worker, RIGHT, strict).outcome is Outcome.PASSED


def test_no_process_outlives_a_killed_parent():
    code = (
        "import time\nfrom evokernel import devices\nfrom evokernel.worker.parent import CpuWorker\n"
        "w = CpuWorker(devices.cpu(), 'fp32', ('sdpa',))\nprint(w.zygote.process.pid, w.baseline.pid, flush=True)\ntime.sleep(60)\n"
    )
    root = Path(__file__).parents[2]
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=root)
    pids = [int(x) for x in parent.stdout.readline().split()]
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in pids)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
