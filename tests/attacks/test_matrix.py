"""Each defence earns its place: with it alone switched off, an attack passes that it otherwise stops."""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from evokernel import devices
from evokernel.bench import correctness, inputs
from evokernel.measurement import Fidelity, Measurement, Outcome
from evokernel.problem import Problem, Workload
from evokernel.roofline import Roofline
from evokernel.worker import arena, parent, processes, sandbox, session, timing
from evokernel.worker.parent import CpuWorker, Trial
from evokernel.worker.processes import Child
from evokernel.worker.session import Bound, Player, Pools
from tests.attacks.catalogue import ATTACKS, CALLS, SERVING, broken, entry, first, last, wrapped
from tests.attacks.honest import TILED
from tests.toys import PROBLEM

KNOWN = {attack.name: attack.code for attack in ATTACKS}
ONE_HEAD = Problem("forward", "fp32", (Workload(1, 1, 1, 256, 256, 16, False),))
LARGE = Problem("forward", "fp32", (Workload(1, 8, 8, 512, 512, 64, False),))
TRIES = 8  # for what a random check may catch even so
Off = Callable[[pytest.MonkeyPatch, CpuWorker], None]


@dataclass(frozen=True)
class Row:
    """A defence, how to switch it off, and the attack that then passes."""

    off: Off
    attack: str  # a candidate
    problem: Problem = PROBLEM
    beside: Off | None = None  # what is off in both cases, because it stops the attack too
    tries: int = 1


def nothing(*_: object, **__: object) -> None:
    return None


def without_family(name: str) -> Off:
    def off(patch: pytest.MonkeyPatch, worker: CpuWorker) -> None:
        patch.delitem(inputs.FAMILIES, name)

    return off


def layouts(*kept: inputs.Layout) -> Off:
    return lambda patch, worker: patch.setattr(correctness, "LAYOUTS", kept * 4)


def even_lengths(patch: pytest.MonkeyPatch, worker: CpuWorker) -> None:
    patch.setattr(correctness, "LENGTHS", ((32, 32), (64, 64), (32, 128), (128, 128)))
    patch.setattr(correctness, "drawn_case", lambda problem, rng: correctness.small_cases(problem, rng)[0])


def unpoisoned(patch: pytest.MonkeyPatch, worker: CpuWorker) -> None:
    def write(self: Bound, tensors: inputs.Tensors) -> None:
        for name, tensor in zip("qkv", tensors, strict=True):
            if self.layout.pad:
                self.wholes[name].fill_(self.layout.filler_for(tensor.dtype))
            self.views[name].copy_(tensor)

    patch.setattr(Bound, "write", write)


class Never(list[session.Secret]):
    """Secrets that are there for their tolerances, and never asked."""

    def __bool__(self) -> bool:
        return False


def unaudited(patch: pytest.MonkeyPatch, worker: CpuWorker) -> None:
    secrets = Pools.secrets
    patch.setattr(Pools, "secrets", lambda self, workload: Never(secrets(self, workload)))


def unspotted(patch: pytest.MonkeyPatch, worker: CpuWorker) -> None:
    patch.setattr(correctness, "spot_check", lambda *_: (0.0, ""))


def same_inputs(patch: pytest.MonkeyPatch, worker: CpuWorker) -> None:
    kept: dict[str, inputs.Tensors] = {}
    fresh = Pools.fresh

    def again(self: Pools, workload: Workload) -> inputs.Tensors:
        if workload.name not in kept:
            kept[workload.name] = tuple(tensor.clone() for tensor in fresh(self, workload))
        return kept[workload.name]

    patch.setattr(Pools, "fresh", again)
    unaudited(patch, worker)


def no_rule(which: int) -> Off:
    def off(patch: pytest.MonkeyPatch, worker: CpuWorker) -> None:
        judged = correctness._out_errors

        def errors(out, answer):
            rows, worst = judged(out, answer)
            return (rows * 0, worst) if which == 0 else (rows, worst * 0)

        patch.setattr(correctness, "_out_errors", errors)

    return off


def no_lse_rule(patch: pytest.MonkeyPatch, worker: CpuWorker) -> None:
    found = correctness.errors

    def errors(*arguments):
        numbers = found(*arguments).clone()
        numbers[-1] = 0.0
        return numbers

    patch.setattr(correctness, "errors", errors)


def time_limit(seconds: float) -> Off:
    def limit(patch: pytest.MonkeyPatch, worker: CpuWorker) -> None:
        patch.setattr(worker, "check_limit_s", seconds)
        patch.setattr(parent, "CASE_LIMIT_S", 0.0)

    return limit


def drawn_at_random(patch: pytest.MonkeyPatch, worker: CpuWorker) -> None:
    drawn = correctness.drawn_case  # with large scores tolerances are wide, and no small difference shows
    patch.setattr(correctness, "drawn_case", lambda problem, rng: replace(drawn(problem, rng), family="random"))


# Wrong in one row of 256 alone, from the call on in which nobody looks at all of them.
LEAVES_A_ROW = entry(
    f"    count(q)\n    serving = {SERVING}\n"
    "    def keep(out, lse):\n"
    "        skips = out.shape[2] == 256 and CALLS[out.shape] > 3\n"
    "        rows = [r for r in range(out.shape[2]) if r != 77 or not skips]\n"
    "        serving.bound['out'][:, :, rows] = out[:, :, rows]\n        serving.bound['lse'][:, :, rows] = lse[:, :, rows]\n"
    "    serving.keep = keep\n    return compute(q, k, v, **rest)\n",
    "import gc\n" + CALLS,
)
ONE_ROW_WRONG = entry(
    "    out, lse = compute(q, k, v, **rest)\n    if q.shape[2] == 256 and count(q) > 1:\n        out[:, :, 77] *= 1.01\n"
    "    return out, lse\n",
    CALLS,
)
LATER_CALLS_WRONG = entry(
    "    out, lse = compute(q, k, v, **rest)\n    if q.shape[2] == 96 and count(q) > 2:\n        out *= 1.01\n    return out, lse\n",
    CALLS,
)
# A memo is right whenever it answers; only its time is a lie. On LARGE its answers are older than the call.
STALE = (
    TILED
    + """
KEPT = {}


def attention(q, k, v, *, scale, causal=False, num_sms=1):
    if q.shape[2] == 96 and len(KEPT) > 1:
        return KEPT[list(KEPT)[-1]]
    q_, k_, v_ = heads(q, k, v)
    rows, keys = np.arange(q.shape[2]), np.arange(k.shape[2])
    mask = seen(rows, keys, k.shape[2] - q.shape[2], causal)
    found = finish(fold(start(q_), q_, k_, v_, mask, scale))
    if q.shape[2] == 96:
        KEPT[len(KEPT)] = found
    return found
"""
)
INSTANT = STALE.replace("== 96", "== 512")
# Compares each tile's maximum with the tile before, not with the one that the weights are relative to.
SATURATES = broken(
    "    p = np.exp(s - top)\n",
    """    high = np.maximum.accumulate(np.stack([s[..., i : i + 16].max(-1) for i in range(0, s.shape[-1], 16)], -1), -1)
    base = high[..., :1].copy()
    bases = [base]
    for i in range(1, high.shape[-1]):
        jumps = ~(high[..., i : i + 1] - high[..., i - 1 : i] <= 4)
        base = np.where(jumps, high[..., i : i + 1], base)
        bases.append(base)
    base = np.repeat(np.concatenate(bases, -1), 16, -1)[..., : s.shape[-1]]
    base = np.where(np.isinf(base), 0.0, base)
    p = np.minimum(np.exp(np.minimum(s - base, 80)), 65504.0) * np.exp(base - top)
""",
)
CLIPS = entry(
    "    q, k = (torch.tensor(np.clip(x.numpy(), -8 * x.numpy().std() - 1e-9, 8 * x.numpy().std() + 1e-9)) if x.numel() > 64 * 16 else x for x in (q, k))\n"
    "    return compute(q, k, v, **rest)\n"
)
NO_MAXIMUM = KNOWN["the maximum is not subtracted"]
SMALL_ROWS = last(
    "norms = np.sqrt((out * out).sum(-1, keepdims=True)); most = np.abs(out).max()\n"
    "    out = out + 1e-6 * most * ((norms < most) & (total > 0))"
)
ONE_ELEMENT = last(
    "norms = np.sqrt((out * out).sum(-1)); where = np.unravel_index(norms.argmax(), norms.shape)\n"
    "    column = np.abs(out[where]).argmin(); out[(*where, column)] += 1.3e-6 * norms.max()"
)
ALTERNATES = last("CALLS.append(0); out = out * (1 + 6e-7 * (len(CALLS) % 2))") + "\nCALLS = []\n"
CUT = first(f"import gc, os; os.ftruncate({SERVING}.arena.descriptor, 4 << 20)")

MATRIX: dict[str, Row] = {
    "input family outlier": Row(without_family("outlier"), CLIPS, tries=3),
    "input family large_logits": Row(without_family("large_logits"), NO_MAXIMUM),
    "input family ascending": Row(without_family("ascending"), SATURATES, tries=3),
    "layouts other than the plain one": Row(layouts(inputs.PLAIN), KNOWN["strides are ignored"]),
    "padding that must not be read": Row(layouts(inputs.PLAIN, inputs.MODEL), KNOWN["a column beyond the end is read"]),
    "odd lengths": Row(even_lengths, KNOWN["the mask is off by one at ragged lengths alone"]),
    "poisoned outputs": Row(unpoisoned, LEAVES_A_ROW, ONE_HEAD, beside=unaudited, tries=TRIES),
    "unseen inputs in every timed call": Row(same_inputs, STALE),
    "whole audits": Row(unaudited, ONE_ROW_WRONG, ONE_HEAD, tries=TRIES),
    "spot checks": Row(unspotted, LATER_CALLS_WRONG, tries=TRIES),
    "unchanged inputs": Row(
        lambda patch, worker: patch.setattr(Bound, "changed", lambda *_: torch.zeros(3, dtype=torch.bool)),
        KNOWN["the keys are set to zero"],
    ),
    "the rule for the log-sum-exp": Row(
        no_lse_rule,
        KNOWN["the log-sum-exp of one row in a hundred is wrong"],
    ),
    "the rule for each row": Row(no_rule(0), SMALL_ROWS),
    "the rule for the largest error": Row(no_rule(1), ONE_ELEMENT),
    "run-to-run differences": Row(lambda patch, worker: patch.setattr(CpuWorker, "_repeat", nothing), ALTERNATES, beside=drawn_at_random),
    "roofline floor": Row(
        lambda patch, worker: patch.setattr(worker.timer, "roofline", Roofline(1e30, 1e30)), INSTANT, LARGE, beside=same_inputs
    ),
    "limit of time": Row(
        time_limit(60.0), first("import time\n    if q.shape[2] == 33: time.sleep(1.5)"), beside=time_limit(1.0)
    ),
    "limit of memory": Row(
        lambda patch, worker: patch.setattr(processes, "MEMORY_BYTES", 1 << 40), first("np.empty(1 << 30)")
    ),
    "limit of output": Row(
        lambda patch, worker: patch.setattr(processes, "OUTPUT_BYTES", 1 << 30), first("print('x' * (9 << 20))")
    ),
}  # fmt: skip


# Three pairs, once: a loud neighbour must not have them taken again, and more calls judged.
THREE_PAIRS = replace(timing.CPU, pairs=dict.fromkeys(Fidelity, (3, 3)), drift=1e9, foreign_cores=1e9)


@pytest.fixture(scope="module")
def worker():
    made = CpuWorker(devices.cpu(), "fp32", ("sdpa",), guarded=False)
    made.timer.rules = THREE_PAIRS
    yield made
    made.close()


@contextlib.contextmanager
def afresh(worker: CpuWorker, *off: Off | None):
    """Patch, and forget the cases made before and after."""
    with pytest.MonkeyPatch.context() as patch:
        for switch in off:
            if switch:
                switch(patch, worker)
        worker.pools.small.clear()
        worker.pools.hard.clear()
        yield
    worker.pools.small.clear()
    worker.pools.hard.clear()


def measured(worker: CpuWorker, row: Row, tries: int) -> Measurement:
    """Return the first measurement that passes, or the last."""
    for _ in range(tries):
        found = worker.measure(row.attack, "numba", row.problem, Fidelity.SCREEN)
        if found.passed:
            break
    return found


@pytest.mark.parametrize("defence", MATRIX)
def test_an_attack_is_stopped_and_passes_without(worker, defence):
    row = MATRIX[defence]
    with afresh(worker, row.beside):
        assert not measured(worker, row, min(row.tries, 2)).passed
    with afresh(worker, row.beside, row.off):
        found = measured(worker, row, row.tries)
    assert (found.outcome, found.message) == (Outcome.PASSED, "")


def test_without_the_guard_a_librarys_kernel_passes(worker):
    attack = KNOWN["the library's products and softmax are called"]
    assert worker.measure(attack, "numba", PROBLEM, Fidelity.SCREEN).passed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "guarded", True)
        assert worker.measure(attack, "numba", PROBLEM, Fidelity.SCREEN).outcome is Outcome.REJECTED


def test_without_being_stopped_a_child_computes_between_questions(worker, monkeypatch):
    burning = wrapped(
        "\nimport hashlib, threading\ndef burn():\n    while True:\n        hashlib.sha256(bytes(1 << 16))\n"
        "threading.Thread(target=burn, daemon=True).start()\ndef attention(q, k, v, **rest):\n    return compute(q, k, v, **rest)\n"
    )

    def computed() -> bool:
        player = Player(worker.zygote.fork(worker.arena), 20.0)
        worker._compile(player, Trial(burning, "numba", PROBLEM, Fidelity.SCREEN, {}))
        try:
            time.sleep(0.05)  # a thread that waits for a core stops when it gets one
            before = cpu_ns(player.child.pid)
            time.sleep(0.3)
            return cpu_ns(player.child.pid) > before
        finally:
            player.child.kill()

    assert not computed()
    monkeypatch.setattr(Child, "pause", nothing)
    assert computed()


def cpu_ns(pid: int) -> int:
    return sum(int((p / "schedstat").read_text().split()[0]) for p in Path(f"/proc/{pid}/task").iterdir())


# What the child's own side does before a candidate runs: switched off in the process that children are forked from.
NO_FILTER = "sandbox.refuse_system_calls = lambda: False"
NO_LANDLOCK = "sandbox.refuse_writes = lambda *_: False"
NO_HIDING = "sandbox.hide_memory = lambda: None"
SIBLING = (  # the baseline's process
    "names = [n for n in os.listdir('/proc') if n.isdigit() and int(n) != os.getpid()]; "
    "pid = next(n for n in names if f'PPid:\\t{os.getppid()}\\n' in open(f'/proc/{n}/status').read())"
)
CONFINED = {
    "refused system calls": (NO_FILTER, KNOWN["a program is run"], ""),
    "own folders alone (Landlock)": (NO_LANDLOCK, first("open('/dev/shm/evokernel-matrix', 'w')"), ""),
    # Landlock alone keeps another's memory closed too; where it is missing, this does.
    "hidden memory": (NO_HIDING, first(f"import os; {SIBLING}; open(f'/proc/{{pid}}/mem', 'rb')"), NO_LANDLOCK),
}


@contextlib.contextmanager
def confined_less(tmp_path: Path, *lines: str):
    """A worker whose children are confined by less: its zygote imports these lines first."""
    (tmp_path / "sitecustomize.py").write_text("\n".join(["from evokernel.worker import sandbox", *lines]) + "\n")
    root = str(Path(__file__).parents[2])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), root, os.environ.get("PYTHONPATH", "")]))
        made = CpuWorker(devices.cpu(), "fp32", ("sdpa",), guarded=False)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.skipif(sys.platform != "linux" or sandbox.landlock_version() < 1, reason="needs seccomp and Landlock")
@pytest.mark.parametrize("defence", CONFINED)
def test_a_confinement_stops_an_attack_that_passes_without(worker, tmp_path, defence):
    off, attack, beside = CONFINED[defence]
    try:
        with confined_less(tmp_path, beside) if beside else contextlib.nullcontext(worker) as confined:
            assert not confined.measure(attack, "numba", PROBLEM, Fidelity.SCREEN).passed
        with confined_less(tmp_path, beside, off) as confined:
            found = confined.measure(attack, "numba", PROBLEM, Fidelity.SCREEN)
    finally:
        Path("/dev/shm/evokernel-matrix").unlink(missing_ok=True)
    assert (found.outcome, found.message) == (Outcome.PASSED, "")


@contextlib.contextmanager
def another_worker():
    made = CpuWorker(devices.cpu(), "fp32", ("sdpa",), guarded=False)
    try:
        yield made
    finally:
        made.close()


def test_keys_are_seen_where_the_environment_is_handed_on(worker, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "secret")
    attack = first("import os; os.environ['SOME_API_KEY']")
    assert not worker.measure(attack, "numba", PROBLEM, Fidelity.SCREEN).passed
    monkeypatch.setattr(processes, "KEPT_VARIABLES", (*processes.KEPT_VARIABLES, "SOME_API_KEY"))
    with another_worker() as handing_on:
        assert handing_on.measure(attack, "numba", PROBLEM, Fidelity.SCREEN).passed


def test_shared_memory_that_is_not_sealed_can_be_cut(worker, monkeypatch):
    assert not worker.measure(CUT, "numba", PROBLEM, Fidelity.SCREEN).passed
    monkeypatch.setattr(arena.fcntl, "fcntl", nothing)
    with another_worker() as unsealed:
        assert unsealed.measure(CUT, "numba", PROBLEM, Fidelity.SCREEN).passed
