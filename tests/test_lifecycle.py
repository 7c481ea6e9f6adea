"""Runs tell whether their driver lives; what is over a cap goes, the longest unused first, and nothing else."""

import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from evokernel import devices, lifecycle, run_folder
from evokernel.errors import EvokernelError
from evokernel.lifecycle import Cache, Piece
from evokernel.store import Store
from tests.toys import PROBLEM, candidate, passed

HOLD = "import sys; from evokernel.run_folder import driving\nwith driving(sys.argv[1]): print('held', flush=True); sys.stdin.read()"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def store():
    return Store.open("sqlite:///evokernel.db")


def driven(name):
    """Start another process that drives a run; returns once it does."""
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert process.stdout.readline() == "held\n"
    return process


def running(store, name="run"):
    run = store.create_run(name, {}, PROBLEM, devices.cpu(), 0)
    store.set_status(run.id, "running")
    return store.run(name)


def test_a_driver_is_alive_until_it_is_killed(store):
    run = running(store)
    assert lifecycle.driver(run) == "unknown"  # driven from elsewhere, for all that is known here
    process = driven("run")
    try:
        assert lifecycle.driver(run) == f"alive ({process.pid})"
    finally:
        process.kill()
        process.communicate()
    assert lifecycle.driver(run) == "dead"
    store.set_status(run.id, "finished")
    assert lifecycle.driver(store.run("run")) == "-"


def test_a_run_has_one_driver():
    process = driven("run")
    try:
        driven_already = f"run run is being driven by process {process.pid}"
        with pytest.raises(EvokernelError, match=driven_already), run_folder.driving("run"):
            pytest.fail("two drivers of one run")
        with run_folder.driving("another"):
            pass
    finally:
        process.kill()
        process.communicate()
    with run_folder.driving("run"):
        assert run_folder.driver("run") == str(os.getpid())
    assert run_folder.driver("run") == ""


def test_who_only_looks_keeps_no_driver_out():
    with run_folder.driving("run"):
        pass
    looking = os.open("runs/run/driver.lock", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    leave = threading.Timer(0.1, os.close, [looking])
    leave.start()
    with run_folder.driving("run"):
        assert run_folder.driver("run") == str(os.getpid())
    leave.join()


def test_states_show_what_each_run_reached(store):
    for name, speedups in (("first", (1.0, 1.5)), ("second", ())):
        run = running(store, name)
        for rows, speedup in enumerate(speedups, 1):
            store.add_measurement(run.id, store.add_candidate(run.id, candidate(rows=rows)), passed(speedup))
    first, second = lifecycle.states(store, "sqlite:///evokernel.db")
    assert (first.run.name, first.evaluations, first.best) == ("first", 2, pytest.approx(1.5))
    assert first.last_measured
    assert (second.evaluations, second.best, second.last_measured) == (0, None, "")


def test_the_longest_unused_goes_first_until_the_rest_fits_the_cap():
    pieces = [Piece(Path(name), size, used) for name, size, used in (("a", 4, 3.0), ("b", 4, 1.0), ("c", 4, 2.0))]
    assert [p.path.name for p in Cache("x", pieces, 12).surplus()] == []
    assert [p.path.name for p in Cache("x", pieces, 11).surplus()] == ["b"]
    assert [p.path.name for p in Cache("x", pieces, 7).surplus()] == ["b", "c"]
    assert [p.path.name for p in Cache("x", pieces, 0).surplus()] == ["b", "c", "a"]


def fill(path, used_s_ago):
    path.mkdir(parents=True)
    (path / "file").write_bytes(bytes(1000))
    moment = time.time() - used_s_ago
    for place in (path / "file", path):
        os.utime(place, (moment, moment))


def test_gc_finds_compiled_kernels_and_sources_but_not_those_of_a_live_run(folder):
    for number in range(3):
        fill(run_folder.COMPILE_CACHE / str(number), used_s_ago=number)
    fill(run_folder.folder("live") / "sources", 5)
    fill(run_folder.folder("over") / "sources", 5)
    (run_folder.folder("over") / "best.py").write_text("")
    with run_folder.driving("live"):
        compiled, sources, _ = lifecycle.caches(compile_cap=12_000, sources_cap=0)
    assert [p.path.name for p in compiled.surplus()] == ["2"]
    assert [p.path.parent.name for p in sources.surplus()] == ["over"]
    for piece in (*compiled.surplus(), *sources.surplus()):
        lifecycle.remove(piece)
    assert sorted(p.name for p in run_folder.COMPILE_CACHE.iterdir()) == ["0", "1"]
    assert (run_folder.folder("over") / "best.py").exists()
    assert not (run_folder.folder("over") / "sources").exists()


def test_gc_finds_the_scratch_of_killed_workers_once_it_is_old(folder, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(folder / "scratch"))
    for name, used_s_ago in (("evokernel-old", 90_000), ("evokernel-new", 60), (f"evokernel-{os.getuid()}", 90_000)):
        fill(folder / "scratch" / name, used_s_ago)
    fill(folder / "scratch" / "others", 90_000)
    *_, scratch = lifecycle.caches(0, 0)
    assert [p.path.name for p in scratch.surplus()] == ["evokernel-old"]
