"""What a candidate's process can do to the machine around it, guard or no guard: nothing that outlives it."""

import os
import sys
from pathlib import Path

import pytest

from evokernel import devices
from evokernel.backends.targets import parse
from evokernel.measurement import Fidelity, Outcome
from evokernel.problem import Problem, Workload
from evokernel.worker import sandbox
from evokernel.worker.parent import CpuWorker
from tests.toys import PROBLEM, RIGHT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sealed memory, seccomp and Landlock are Linux's")
landlock = pytest.mark.skipif(sandbox.landlock_version() < 1, reason="this kernel has no Landlock")
scopes = pytest.mark.skipif(sandbox.landlock_version() < sandbox.SCOPES_SINCE, reason="Landlock scopes no signals here")


@pytest.fixture(scope="module")
def worker():
    made = CpuWorker(devices.cpu(), "fp32", ("sdpa",), guarded=False)
    yield made
    made.close()


@pytest.fixture(scope="module")
def pool():
    pytest.importorskip("triton")
    from evokernel.worker.compile_pool import CompilePool, Limits

    with CompilePool(parse("cuda:90"), slots=1, limits=Limits(wall_s=20.0)) as made:
        yield made


def measured(worker, statement):
    """Measure a right kernel that does something else first."""
    source = RIGHT.replace("    group = q", f"    {statement}\n    group = q")
    return worker.measure(source, "numba", PROBLEM, Fidelity.SCREEN)


def test_a_child_that_cuts_the_shared_memory_short_does_not_end_the_worker(worker):
    statement = (
        "import gc, os, struct; s = next(x for x in gc.get_objects() if type(x).__name__ == 'Serving'); "
        "os.ftruncate(s.arena.descriptor, 0); s.end.sendall(struct.pack('!I', 2) + b'{}'); os._exit(0)"
    )
    found = measured(worker, f"if q.shape[2] != 9: {statement}")
    assert (found.outcome, "Operation not permitted" in found.message) == (Outcome.RUNTIME_ERROR, True)
    assert measured(worker, "pass").outcome is Outcome.PASSED


PLACES = {
    "the evaluator's own sources": str(Path(sandbox.__file__).parent / "left_behind.py"),
    "the shared memory folder": "/dev/shm/evokernel-left-behind",
    "the folder of all temporary files": "/tmp/evokernel-left-behind",
}


@landlock
@pytest.mark.parametrize("place", PLACES)
def test_nothing_is_left_for_the_next_candidate_in(worker, place):
    found = measured(worker, f"open({PLACES[place]!r}, 'w').write('an answer')")
    assert not Path(PLACES[place]).exists()
    assert (found.outcome, "Permission denied" in found.message) == (Outcome.COMPILE_ERROR, True)


@landlock
def test_a_file_of_others_can_be_neither_cut_nor_removed_nor_replaced(worker, tmp_path):
    victim = tmp_path / "evokernel.db"
    victim.write_text("every measurement so far")
    for deed in (
        f"os.truncate({str(victim)!r}, 0)",
        f"os.remove({str(victim)!r})",
        f"os.rename('output', {str(victim)!r})",
    ):
        assert measured(worker, f"import os; {deed}").outcome is Outcome.COMPILE_ERROR
    assert victim.read_text() == "every measurement so far"


def test_its_own_home_is_writable_and_temporary_files_go_there(worker):
    statement = (
        "import os, tempfile; t = tempfile.NamedTemporaryFile(); assert t.name.startswith(os.environ['HOME']), t.name"
    )
    found = measured(worker, statement)
    assert (found.outcome, found.message) == (Outcome.PASSED, "")


COMPILED = """
import torch, triton
import triton.language as tl

@triton.jit
def copy(x, out, n, W: tl.constexpr):
    i = tl.arange(0, W)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)

def attention(q, k, v, **rest):
    {statement}
    copy[(1,)](q, torch.empty_like(q), q.shape[2], W={width})
"""
COMPILED_PROBLEM = Problem("forward", "bf16", (Workload(1, 2, 2, 256, 256, 64, True),))


def compiled(pool, tmp_path, statement, width=64):
    source = tmp_path / f"candidate_{width}.py"
    source.write_text(COMPILED.format(statement=statement, width=width))
    return pool.submit(source, COMPILED_PROBLEM).result(timeout=60)


@landlock
def test_no_candidate_writes_into_the_binaries_of_another(pool, tmp_path):
    honest = compiled(pool, tmp_path, "pass", 64)
    assert honest.outcome is Outcome.PASSED, honest.message
    files = {p: p.read_bytes() for p in sorted(honest.cache.rglob("*")) if p.is_file()}
    deed = f"import pathlib; [p.write_bytes(b'mine') for p in pathlib.Path({str(honest.cache)!r}).rglob('*') if p.is_file()]"
    found = compiled(pool, tmp_path, deed, 128)
    assert (found.outcome, "Permission denied" in found.message) == (Outcome.COMPILE_ERROR, True)
    assert {p: p.read_bytes() for p in files} == files


def test_a_compiler_patched_by_one_candidate_compiles_the_next_as_ever(pool, tmp_path):
    before = compiled(pool, tmp_path, "pass", 64)
    patch = "triton.compile = triton.compiler.compile = triton.JITFunction.run = None; triton.jit = tl.load = None"
    compiled(pool, tmp_path, patch, 128)
    after = compiled(pool, tmp_path, "pass", 64)
    assert (after.outcome, after.message) == (Outcome.PASSED, "")
    assert binaries(after) == binaries(before)


def binaries(found):
    return sorted(p.read_bytes() for p in found.cache.rglob("*.ptx"))


@scopes
def test_a_compiling_candidate_signals_nobody_but_itself(pool, tmp_path):
    found = compiled(pool, tmp_path, f"import os; os.kill({os.getpid()}, 9)", 256)
    assert (found.outcome, "Operation not permitted" in found.message) == (Outcome.COMPILE_ERROR, True)


@scopes
def test_a_compiling_candidate_connects_to_nobody(pool, tmp_path):
    found = compiled(pool, tmp_path, "import socket; socket.create_connection(('127.0.0.1', 9))", 256)
    assert (found.outcome, "Operation not permitted" in found.message) == (Outcome.COMPILE_ERROR, True)


def test_a_compiling_candidate_locks_nothing_that_others_lock(pool, tmp_path):
    deed = "import fcntl; fcntl.flock(open(__file__), fcntl.LOCK_EX)"
    found = compiled(pool, tmp_path, deed, 256)
    assert (found.outcome, "Operation not permitted" in found.message) == (Outcome.COMPILE_ERROR, True)


def test_folders_deeper_than_a_walk_can_follow_are_removed(worker):
    before = set(worker.zygote.folder.iterdir())
    deed = "import os\n    for _ in range(1200): os.mkdir('d'); os.chdir('d')\n    raise ValueError('made')"
    assert "made" in measured(worker, deed).message
    assert set(worker.zygote.folder.iterdir()) == before
