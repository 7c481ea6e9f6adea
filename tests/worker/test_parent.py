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
from tests.toys import PROBLEM, RIGHT


@pytest.fixture(scope="module")
def worker():
    made = CpuWorker(devices.cpu(), "fp32", ("sdpa",), guarded=False)
    yield made
    made.close()


def measure(worker, source, problem=PROBLEM, fidelity=Fidelity.SCREEN):
    return worker.measure(source, "numba", problem, fidelity)


def broken(old, new):
    assert old in RIGHT
    return RIGHT.replace(old, new)


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


def test_held_out_workloads_are_timed_when_a_champion_is_verified(worker):
    problem = Problem("forward", "fp32", PROBLEM.workloads, (Workload(1, 2, 2, 50, 70, 16, True),))
    measurement = measure(worker, RIGHT, problem, Fidelity.VERIFY)
    assert [t.held_out for t in measurement.timings] == [False, True]


WRONG = {
    "the mask is off by one": ("<= rows, s", "<= rows + 1, s"),
    "the mask is aligned top-left": (" + k.shape[2] - q.shape[2]", ""),
    "the scale is ignored": ("* scale", "* 0.3"),
    "the maximum is not subtracted": ("top = np.where(np.isinf(top), 0.0, top)", "top = np.zeros_like(top)"),
    "the log-sum-exp is in base two": ("top + np.log(", "top + np.log2("),
    "the log-sum-exp lacks the maximum": ("top + np.log(np.where", "0 * top + np.log(np.where"),
    "query heads use the wrong keys": ("np.repeat(x, group, axis=1)", "np.repeat(x[:, ::-1], group, axis=1)"),
    "a far tile of keys is skipped": ("return s\n", "return np.concatenate([s[..., :192], s[..., 192:] - 1e9], -1)\n"),
    "masked rows are not zero": ("np.where(total == 0, 1.0, total)\n", "np.where(total == 0, 1.0, total) + (total == 0)\n"),
    "half precision inside": ("astype(np.float64)", "astype(np.float16)"),
    "one row in a hundred is zero": ("    return torch.tensor(out", "    out[:, :, 100::101] = 0\n    return torch.tensor(out"),
    "nothing is computed": ("    group = q", "    return torch.zeros_like(q), torch.zeros(q.shape[:3])\n    group = q"),
}  # fmt: skip


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_kernel_is_incorrect_when(worker, fault):
    measurement = measure(worker, broken(*WRONG[fault]))
    assert measurement.outcome is Outcome.INCORRECT, measurement.message
    assert measurement.message


def test_an_input_that_was_written_to_is_noticed(worker):
    source = broken("    return torch.tensor(out", "    k.zero_()\n    return torch.tensor(out")
    measurement = measure(worker, source)
    assert measurement.outcome is Outcome.INCORRECT
    assert "the input k was written to" in measurement.message


def test_a_memo_of_the_last_call_is_not_taken_for_an_answer(worker):
    source = RIGHT.replace("def attention(", "def compute(") + (
        "\nMEMO = {}\ndef attention(q, k, v, **rest):\n"
        "    key = (q.shape, k.shape)\n"
        "    if key not in MEMO:\n        MEMO[key] = compute(q, k, v, **rest)\n"
        "    return MEMO[key]\n"
    )
    assert measure(worker, source, fidelity=Fidelity.FULL).outcome is Outcome.INCORRECT


def test_an_answer_that_arrives_after_the_reply_does_not_count(worker):
    source = RIGHT.replace("def attention(", "def compute(") + (
        "\nimport threading, time\ndef attention(q, k, v, **rest):\n"
        "    out, lse = torch.zeros_like(q), torch.zeros(q.shape[:3])\n"
        "    def later():\n        a, b = compute(q, k, v, **rest)\n        out.copy_(a); lse.copy_(b)\n"
        "    threading.Thread(target=later, daemon=True).start()\n    return out, lse\n"
    )
    assert measure(worker, source).outcome is Outcome.INCORRECT


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


def wrapped(code):
    """Return the right kernel under another name, and an entry that does something else with it."""
    return RIGHT.replace("def attention(", "def compute(") + code


ATTACKS = {
    "remembers answers by a fingerprint of the inputs": """
MEMO = {}
def attention(q, k, v, **rest):
    key = (q.shape, k.shape, float(q[0, 0, 0, 0]), float(k[0, 0, 0, 0]), float(v[0, 0, 0, 0]))
    if k.shape != (1, 2, 96, 16):
        return compute(q, k, v, **rest)
    if key not in MEMO and len(MEMO) < 4:
        MEMO[key] = compute(q, k, v, **rest)
    return MEMO.get(key, next(iter(MEMO.values())))
""",
    "is right for its first ten calls of a shape": """
CALLS = {}
def attention(q, k, v, **rest):
    CALLS[q.shape] = CALLS.get(q.shape, 0) + 1
    if CALLS[q.shape] > 10:
        return torch.zeros_like(q), torch.zeros(q.shape[:3])
    return compute(q, k, v, **rest)
""",
    "leaves one row in thirty out of some calls": """
CALLS = {}
def attention(q, k, v, **rest):
    out, lse = compute(q, k, v, **rest)
    CALLS[q.shape] = CALLS.get(q.shape, 0) + 1
    if CALLS[q.shape] > 3:
        out[:, :, 5::30] = 0.0
    return out, lse
""",
    "answers with the memory of an earlier output": """
KEPT = {}
def attention(q, k, v, **rest):
    if q.shape[2] == 96 and "out" in KEPT:
        return KEPT["out"]
    result = compute(q, k, v, **rest)
    if q.shape[2] == 96:
        KEPT["out"] = result
    return result
""",
    "writes the answer after its reply, straight into the shared memory": """
import threading, time
def attention(q, k, v, **rest):
    if q.shape[2] != 96:
        return compute(q, k, v, **rest)
    import gc
    serving = next(x for x in gc.get_objects() if type(x).__name__ == "Serving")
    class Bound(dict):
        def __getitem__(self, name):
            return torch.empty(q.shape) if name == "out" else torch.empty(q.shape[:3]) if name == "lse" else self.get(name)
    real = serving.bound
    if type(real) is dict:
        serving.bound = Bound(real)
    def later():
        time.sleep(0.0005)
        a, b = compute(q, k, v, **rest)
        real["out"].copy_(a); real["lse"].copy_(b)
    threading.Thread(target=later, daemon=True).start()
    return torch.empty(q.shape), torch.empty(q.shape[:3])
""",
    "answers the next requests in advance": """
import gc, threading
def attention(q, k, v, **rest):
    result = compute(q, k, v, **rest)
    if q.shape[2] == 96:
        from evokernel.worker import wire
        serving = next(x for x in gc.get_objects() if type(x).__name__ == "Serving")
        wire.send(serving.end, {})
        wire.send(serving.end, {})
    return result
""",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_time_is_believed_of_a_candidate_that(worker, attack):
    measurement = measure(worker, wrapped(ATTACKS[attack]), fidelity=Fidelity.FULL)
    assert measurement.outcome is Outcome.INCORRECT, measurement.message


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


REFUSED_CALLS = {
    "starts a process": "import os; os.fork()",
    "runs a program": "import subprocess; subprocess.run(['true'])",
    "opens a connection": "import socket; socket.create_connection(('127.0.0.1', 9))",
    "signals its parent": "import os; os.kill(os.getppid(), 9)",
    "leaves its process group": "import os; os.setpgid(0, 0)",
    "reads its parent's environment": "import os; open(f'/proc/{os.getppid()}/environ').read()",
    "reads the memory of another": "import os; open(f'/proc/{os.getppid()}/mem', 'rb')",
    "moves another to one core": "import os; os.sched_setaffinity(os.getppid(), {0})",
}


@pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")
@pytest.mark.parametrize("what", REFUSED_CALLS)
def test_the_kernel_refuses_when_a_candidate(worker, what):
    measurement = measure(worker, RIGHT.replace("    group = q", f"    {REFUSED_CALLS[what]}\n    group = q"))
    assert measurement.outcome is Outcome.COMPILE_ERROR
    assert "PermissionError" in measurement.message


def test_a_baseline_that_dies_is_replaced_and_costs_no_candidate(worker):
    worker.baseline.resume()
    os.kill(worker.baseline.pid, signal.SIGKILL)
    assert measure(worker, RIGHT, fidelity=Fidelity.FULL).outcome is Outcome.PASSED


def test_printed_results_are_believed_by_nobody(worker):
    code = """
def attention(q, k, v, **rest):
    print('{"outcome": "PASSED", "speedup": 100.0}', flush=True)
    return torch.zeros_like(q), torch.zeros(q.shape[:3])
"""
    assert measure(worker, wrapped(code)).outcome is Outcome.INCORRECT


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


def test_a_mask_that_is_wrong_for_ragged_lengths_alone_is_incorrect(worker):
    code = """
def attention(q, k, v, *, scale, causal=False, num_sms=1):
    ragged = k.shape[2] % 32
    if ragged and k.shape[2] > ragged:
        k, v = k.clone(), v.clone()
        k[:, :, -1] = k[:, :, -2]
    return compute(q, k, v, scale=scale, causal=causal)
"""
    assert measure(worker, wrapped(code)).outcome is Outcome.INCORRECT


def test_a_mismatch_names_family_workload_head_row_and_values(worker):
    message = measure(worker, broken("torch.tensor(out.astype", "torch.tensor(1.001 * out.astype")).message
    for word in ("d16_causal/random/", "batch", "head", "row", "exactly"):
        assert word in message


def test_another_dtype_than_the_workers_is_refused(worker):
    with pytest.raises(ValueError, match="bf16"):
        measure(worker, RIGHT, Problem("forward", "bf16", PROBLEM.workloads))


FAULTS = {
    "raises": ("raise ValueError('no')", Outcome.RUNTIME_ERROR),
    "returns one tensor": ("return q", Outcome.RUNTIME_ERROR),
    "returns the wrong shape": ("return q[..., :1], q[..., 0]", Outcome.RUNTIME_ERROR),
    "returns a subclass": ("class Lazy(torch.Tensor): pass\n    return torch.zeros_like(q).as_subclass(Lazy), q[..., 0]", Outcome.RUNTIME_ERROR),
    "exits": ("raise SystemExit(0)", Outcome.RUNTIME_ERROR),
    "leaves at once": ("import os; os._exit(0)", Outcome.CRASHED),
    "kills itself": ("import os; os.kill(os.getpid(), 11)", Outcome.CRASHED),
    "reads address zero": ("import ctypes; ctypes.string_at(0)", Outcome.CRASHED),
    "loops for ever": ("while True: pass", Outcome.TIMEOUT),
    "asks for a terabyte": ("torch.zeros(1 << 37, dtype=torch.float64)", Outcome.RUNTIME_ERROR),
    "prints without end": ("while True: print('x' * 1000000)", Outcome.RUNTIME_ERROR),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_costs_one_candidate_and_the_next_is_measured_when_it(worker, fault):
    statement, outcome = FAULTS[fault]
    # The compiling call has another limit than the checks: let it pass.
    source = RIGHT.replace("    group = q", f"    if q.shape[2] != 9:\n        {statement}\n    group = q")
    if "\n" in statement:
        source = RIGHT.replace("    group = q", f"    {statement}\n    group = q")
    measurement = measure(worker, source)
    expected = {outcome, Outcome.COMPILE_ERROR} if "\n" in statement else {outcome}
    assert measurement.outcome in expected, measurement.message
    assert measure(worker, RIGHT).outcome is Outcome.PASSED


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
