"""Whatever a candidate does to the compiler costs that candidate alone and comes back as an outcome."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("triton")

from evokernel.backends.targets import TARGETS, parse
from evokernel.bench import miscompiles
from evokernel.candidate import Body, find_module
from evokernel.errors import DeviceError
from evokernel.measurement import Outcome
from evokernel.problem import Problem, Workload
from evokernel.worker import compile_pool, sandbox
from evokernel.worker.compile_pool import MESSAGE_BYTES, CompilePool, Limits, cause, too_much

ROOT = Path(__file__).parents[2]
HOPPER = parse("cuda:90")
PROBLEM = Problem("forward", "bf16", (Workload(1, 2, 2, 256, 256, 64, True),))
LIMITS = Limits(wall_s=3.0, memory_bytes=2 << 30, output_bytes=4 << 20, spill_bytes=64)

HEAD = "import torch, triton\nimport triton.language as tl\n"
GOOD = (
    HEAD
    + """
@triton.jit
def copy(x, out, n, stride, W: tl.constexpr):
    i = tl.arange(0, W)
    tl.store(out + i * stride, tl.load(x + i * stride, mask=i < n), mask=i < n)

def attention(q, k, v, **rest):
    copy[(1,)](q, torch.empty_like(q), q.shape[2], 1, W={width})
"""
)


@pytest.fixture(scope="module")
def pool():
    with CompilePool(HOPPER, slots=2, limits=LIMITS) as made:
        yield made


@pytest.fixture(scope="module")
def amd():
    with CompilePool(parse("hip:gfx942"), slots=2) as made:
        yield made


@pytest.fixture
def compiled(pool, tmp_path):
    outcomes = []

    def compile_text(text):
        path = tmp_path / "candidate.py"
        path.write_text(text)
        found = pool.submit(path, PROBLEM).result(timeout=60)
        outcomes.append(found.outcome)
        return found

    yield compile_text
    if outcomes[-1] not in (Outcome.PASSED, Outcome.COMPILE_ERROR):
        assert compile_text(GOOD.format(width=256)).outcome is Outcome.PASSED, "the pool did not survive"


def entry(host):
    return HEAD + f"def attention(q, k, v, **rest):\n    {host}\n"


# Warp specialisation of loads through pointers fails an assertion (triton issue 9728), which MLIR survives.
ASSERTS = (
    HEAD
    + """
@triton.jit
def forward(q, k, v, out, n, BLOCK: tl.constexpr, D: tl.constexpr):
    rows = tl.arange(0, 128)
    dims = tl.arange(0, D)
    tile = tl.load(q + rows[:, None] * D + dims[None, :])
    total = tl.zeros((128, D), tl.float32)
    for start in tl.range(0, n, BLOCK, warp_specialize=True):
        keys = tl.load(k + (start + tl.arange(0, BLOCK))[None, :] * D + dims[:, None])
        values = tl.load(v + (start + tl.arange(0, BLOCK))[:, None] * D + dims[None, :])
        scores = tl.dot(tile, keys)
        total = tl.dot(tl.exp2(scores).to(values.dtype), values, total)
    tl.store(out + rows[:, None] * D + dims[None, :], total.to(tl.bfloat16))

def attention(q, k, v, **rest):
    forward[(1,)](q, k, v, torch.empty_like(q), k.shape[2], BLOCK=64, D=64, num_warps=4, num_stages=3)
"""
)

# LLVM's own abort: assembly that names an operand it does not have.
LLVM_ERROR = (
    HEAD
    + """
@triton.jit
def kernel(q, out):
    i = tl.arange(0, 128)
    x = tl.load(q + i).to(tl.float32)
    y = tl.inline_asm_elementwise("x $5", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(out + i, y)

def attention(q, k, v, **rest):
    kernel[(1,)](q, torch.empty_like(q))
"""
)

FATES = {
    "a syntax error": ("def attention(:\n", Outcome.COMPILE_ERROR, "SyntaxError"),
    "no entry": (HEAD, Outcome.COMPILE_ERROR, "no entry function 'attention'"),
    "a name error in a kernel": (GOOD.format(width="no_such_name"), Outcome.COMPILE_ERROR, "no_such_name"),
    "host code that raises": (entry("raise ValueError('not D=64')"), Outcome.COMPILE_ERROR, "at line 4: not D=64"),
    "host code that exits": (entry("raise SystemExit(3)"), Outcome.COMPILE_ERROR, "SystemExit"),
    "an assertion of the compiler": (ASSERTS, Outcome.COMPILE_ERROR, "Assertion `false' failed"),
    "an LLVM ERROR": (LLVM_ERROR, Outcome.CRASHED, "SIGABRT (status 134)\nLLVM ERROR: Invalid $ operand"),
    "a process that just ends": (entry("import os; os._exit(0)"), Outcome.CRASHED, "ended by itself"),
    "an endless compile": (entry("\n    while True: pass"), Outcome.TIMEOUT, "longer than 3 s"),
    "a memory hog": (entry("hog = [bytes(1 << 20) for _ in range(1 << 20)]"), Outcome.CRASHED, "2048 MiB"),
    "a memory hog in torch": (entry("torch.ones(1 << 36)"), Outcome.CRASHED, "2048 MiB"),
    "a forged reply": (
        entry("import os, gc, socket; [s.sendall(b'\\xff' * 9) for s in gc.get_objects() if isinstance(s, socket.socket)]"),
        Outcome.CRASHED, "a message of",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", FATES)
def test_each_fate_is_an_outcome_with_its_cause(compiled, what):
    text, outcome, words = FATES[what]
    found = compiled(text)
    assert found.outcome is outcome, found.message
    assert words in found.message
    assert len(found.message.encode()) <= MESSAGE_BYTES
    assert found.cache is None and not found.kernels


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_flood_of_output_is_cut_to_the_cause(compiled, stream):
    flood = f"import sys\nfor _ in range(3000): print('%1 = some.operation ' * 50, file=sys.{stream})\n"
    late = f"print('candidate.py:3:4: error: the cause', file=sys.{stream}, flush=True)\n"
    found = compiled(flood + late + entry("raise RuntimeError('PassManager::run failed')"))
    assert found.outcome is Outcome.COMPILE_ERROR
    assert "PassManager::run failed" in found.message
    assert "error: the cause" in found.message
    assert len(found.message.encode()) <= MESSAGE_BYTES


def test_an_endless_flood_fills_no_disk(compiled):
    found = compiled("while True: print('x' * 10_000)\n")
    assert found.outcome is Outcome.COMPILE_ERROR
    assert "File too large" in found.message


def test_a_candidate_that_kills_the_zygote_loses_and_the_others_do_not(compiled, pool):
    found = compiled(entry("import os, signal, time; os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)"))
    if sandbox.landlock_version() >= sandbox.SCOPES_SINCE:  # it cannot even signal it
        assert (found.outcome, "PermissionError" in found.message) == (Outcome.COMPILE_ERROR, True)
    else:
        assert found.outcome is Outcome.CRASHED


def test_a_zygote_that_the_system_killed_is_started_again_and_the_candidate_too(compiled, pool):
    os.kill(pool._zygote.pid, signal.SIGKILL)
    assert compiled(GOOD.format(width=256)).outcome is Outcome.PASSED


def test_nothing_of_a_candidate_outlives_it(compiled, tmp_path):
    found = compiled(entry("import os; os.system('sleep 4242 & sleep 4243')"))
    assert found.outcome is Outcome.TIMEOUT
    commands = [p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if _readable(p)]
    assert not any(b"sleep\x0042" in command for command in commands)


def _readable(path):
    try:
        path.read_bytes()
        return True
    except OSError:
        return False


def test_compiles_run_side_by_side_each_with_its_own_cache(pool, tmp_path):
    meet = """
import time
from os import environ
from pathlib import Path
cache = Path(environ["TRITON_CACHE_DIR"])
(cache / "here").touch()
while len(list(cache.parent.glob("*/here"))) < 2: time.sleep(0.01)
"""
    sources = []
    for number in range(2):
        sources.append(tmp_path / f"{number}.py")
        sources[-1].write_text(meet + GOOD.format(width=64 << number))
    found = pool.compile_all(sources, PROBLEM)  # each waits for the other: one after the other would time out
    assert [c.outcome for c in found] == [Outcome.PASSED] * 2
    assert len({c.cache for c in found}) == 2


def test_too_much_shared_memory_is_rejected_with_both_numbers(amd, tmp_path):
    # The portable default at head_dim 256 on AMD: the space lets it through, for only compiling can tell.
    body = Body.load(find_module("flash_forward_triton", "search_spaces"))
    path = tmp_path / "candidate.py"
    path.write_text(body.render(body.defaults))
    problem = Problem("forward", "bf16", (Workload(1, 2, 2, 256, 256, 256, True),))
    found = amd.submit(path, problem).result(timeout=60)
    assert found.outcome is Outcome.REJECTED
    assert found.message.endswith("needs 81,920 B of shared memory; a block on hip:gfx942 has 65,536 B")
    assert found.facts["shared_bytes"] == 81_920


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, ""),
        ({"shared_bytes": 232_449}, "needs 232,449 B of shared memory"),
        ({"occupancy": 0, "registers": 255, "num_warps": 16}, "needs 255 registers in each of 16 warps"),
        ({"spill_bytes": 65}, "spills 65 B a thread; the limit is 64 B"),
        ({"spill_bytes": 64}, ""),
    ],
)
def test_limits_name_the_kernel_and_the_number(facts, words):
    fits = {"kernel": "k", "shared_bytes": 0, "spill_bytes": 0, "occupancy": 1, "registers": 32, "num_warps": 4}
    reason = too_much([fits, {**fits, **facts}], HOPPER, LIMITS)
    assert words in reason and bool(words) == bool(reason)


def test_a_kernel_that_spills_beyond_the_limit_is_rejected_with_the_number(pool, tmp_path):
    body = Body.load(find_module("flash_forward_triton", "search_spaces"))
    path = tmp_path / "candidate.py"
    path.write_text(body.render({**body.defaults, "block_m": 128, "block_n": 128, "num_warps": 4}))
    problem = Problem("forward", "bf16", (Workload(1, 2, 2, 256, 256, 128, True),))
    found = pool.submit(path, problem).result(timeout=60)
    assert found.outcome is Outcome.REJECTED
    assert found.facts["spill_bytes"] > 64
    assert f"spills {found.facts['spill_bytes']:,} B a thread; the limit is 64 B" in found.message
    assert found.cache is None


READ_BACK = """
import os, sys
from pathlib import Path
from evokernel.backends.triton import Triton, dry_run, meta_inputs
from evokernel.backends.targets import parse
from evokernel.problem import Workload
from triton import knobs

compiled = []
knobs.compilation.listener = lambda **what: compiled.append(what["cache_hit"])
entry = Triton().load(Path(sys.argv[1]), "attention")
workload = Workload(3, 2, 2, 999, 333, 64, True)
with dry_run(parse("cuda:90")):
    entry(*meta_inputs(workload, "bf16"), num_sms=132, **workload.arguments())
print(compiled)
"""


def test_a_process_with_a_gpu_would_find_the_binaries_in_the_cache(pool, tmp_path):
    body = Body.load(find_module("flash_forward_gluon", "search_spaces"))
    path = tmp_path / "candidate.py"
    path.write_text(body.render(body.defaults))
    found = pool.submit(path, PROBLEM).result(timeout=60)
    assert found.outcome is Outcome.PASSED
    elsewhere = tmp_path / "another folder" / "candidate.py"
    elsewhere.parent.mkdir()
    elsewhere.write_text(path.read_text())
    environment = {**os.environ, "TRITON_CACHE_DIR": str(found.cache)}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", READ_BACK, str(elsewhere)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "[True]", done.stderr
    pool.discard(found)
    assert not found.cache.exists()


@pytest.mark.parametrize(
    ("template", "target", "head_dims"),
    [
        ("flash_forward_triton", "cuda:90", (64, 128, 256)),
        ("flash_forward_gluon", "cuda:90", (64, 128, 256)),
        ("flash_forward_triton", "hip:gfx942", (64, 128)),
    ],
)
def test_random_genomes_compile_to_one_binary_a_kernel_or_are_rejected(
    pool, amd, template, target, head_dims, tmp_path
):
    rng = random.Random(template + target)
    body, chosen = Body.load(find_module(template, "search_spaces")), TARGETS[target]
    used = pool if target == "cuda:90" else amd
    futures = []
    for number in range(2):
        workload = Workload(2, 8, 4, 1024, 1024, rng.choice(head_dims), number % 2 == 0)
        problem = Problem("forward", "bf16", (workload,))
        knobs = body.space.sample(rng, problem.context(workload.shape_class("bf16"), chosen.context()))
        path = tmp_path / f"{number}.py"
        path.write_text(body.render(knobs))
        futures.append((knobs, used.submit(path, problem)))
    for knobs, future in futures:
        found = future.result(timeout=120)
        assert found.outcome in (Outcome.PASSED, Outcome.REJECTED), (knobs, found.message)
        assert found.facts["extra_binaries"] == 0, knobs
        assert all(count == 1 for count in found.binaries.values()), knobs
        if found.outcome is Outcome.REJECTED:
            assert any(character.isdigit() for character in found.message)


def test_a_pool_without_a_compiler_is_one_line(monkeypatch, tmp_path):
    # A folder before triton's own on the path, with a triton that lacks the backend
    (tmp_path / "triton/backends").mkdir(parents=True)
    (tmp_path / "triton/__init__.py").write_text("")
    (tmp_path / "triton/backends/__init__.py").write_text("backends = {'amd': None}\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    with pytest.raises(DeviceError, match=r"no backend 'nvidia' for cuda:90; it has amd") as caught:
        CompilePool(HOPPER, slots=1)
    assert "\n" not in str(caught.value)


def test_a_closed_pool_ends_what_is_compiling(tmp_path):
    path = tmp_path / "candidate.py"
    path.write_text("import time\ntime.sleep(3600)\n")
    pool = CompilePool(HOPPER, slots=1, limits=Limits(wall_s=3600.0))
    futures = [pool.submit(path, PROBLEM) for _ in range(3)]
    time.sleep(0.5)
    started = time.monotonic()
    pool.close()
    assert time.monotonic() - started < 5
    assert all(future.done() for future in futures)


def test_the_zygote_has_one_thread(pool):
    assert len(os.listdir(f"/proc/{pool._zygote.pid}/task")) == 1


def test_the_cause_is_the_first_error_and_the_assertion():
    dump = "\n".join(f"%{i} = some.operation" for i in range(100_000))
    text = f"{dump}\nx.py:1:2: error: first\nx.py:1:3: error: second\npython: a.cpp:7: Assertion `x' failed.\n{dump}"
    assert cause(text) == "x.py:1:2: error: first\npython: a.cpp:7: Assertion `x' failed."
    assert cause("nothing telling\nthe last line\n\n") == "the last line"
    assert cause("") == ""
    assert len(cause("error: " + "x" * 100_000)) < MESSAGE_BYTES


def test_a_long_error_keeps_its_beginning_and_its_end():
    text = compile_pool._bounded("first " + "x" * 10_000 + " last", "error: the cause")
    assert text.startswith("first ") and " last\nerror: the cause" in text
    assert len(text.encode()) <= MESSAGE_BYTES


SUSPECT = HEAD + """
@triton.jit
def weights(q, k):
    return tl.exp2(tl.dot(q, k))

@triton.jit
def finish(p, other):
    return tl.dot(p.T, other)

@triton.jit
def backward(q, k, d, x):
    s = tl.dot(q, k)
    p = tl.exp2(s).to(q.dtype)
    a = tl.dot(tl.trans(p), d)
    turned = p.T
    b = tl.dot(turned, d)
    c = tl.dot(tl.trans(weights(q, k)), d)
    e = finish(p, d)
    safe = tl.dot(tl.trans(tl.load(x)), d)
    safe += tl.dot(q, tl.trans(k))
    safe += tl.dot(p, d)
    return a + b + c + e + safe
"""  # fmt: skip


def test_the_miscompiled_pattern_is_found_by_line_and_clean_code_is_not():
    lines = [line for line, _ in miscompiles.warnings(SUSPECT)]
    text = SUSPECT.splitlines()
    assert [text[line - 1].strip() for line in lines] == [
        "return tl.dot(p.T, other)",
        "a = tl.dot(tl.trans(p), d)",
        "b = tl.dot(turned, d)",
        "c = tl.dot(tl.trans(weights(q, k)), d)",
    ]
    for name in ("flash_forward_triton", "flash_forward_gluon"):
        body = Body.load(find_module(name, "search_spaces"))
        assert miscompiles.warnings(body.render(body.defaults)) == []
    assert miscompiles.warnings("def f(:") == []
    assert miscompiles.warnings("x = " + "(" * 5000) == []


@pytest.mark.parametrize(
    ("target", "version", "affected"),
    [
        ("cuda:90", "3.6.0", True), ("cuda:90", "3.7.0", True), ("cuda:90", "3.4.0", True),
        ("cuda:90", "3.7.1", False), ("cuda:90", "3.10.0", False), ("cuda:90", "3.3.1", False),
        ("cuda:100", "3.6.0", False), ("hip:gfx942", "3.6.0", False),
    ],
)  # fmt: skip
def test_only_the_compilers_with_the_bug_are_warned_of(target, version, affected):
    assert miscompiles.affected(target, version) is affected


def test_the_warning_is_among_the_facts(compiled):
    suspicious = """
@triton.jit
def kernel(q, out):
    i = tl.arange(0, 64)
    at = i[:, None] * 64 + i[None, :]
    x = tl.load(q + at)
    tl.store(out + at, tl.dot(tl.trans(tl.dot(x, x).to(x.dtype)), x).to(x.dtype))

def attention(q, k, v, **rest):
    kernel[(1,)](q, torch.empty_like(q))
"""
    found = compiled(HEAD + suspicious)
    assert found.outcome is Outcome.PASSED, found.message
    if miscompiles.affected("cuda:90", __import__("triton").__version__):
        assert "line 9: dot(trans(x), y)" in found.facts["warnings"]
