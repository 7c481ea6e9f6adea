"""The dataset holds every run, candidate, measurement and timing, and its tables join."""

from collections import Counter

import pyarrow.parquet as pq
import pytest

from evokernel import dataset, devices
from evokernel.measurement import Measurement, Outcome
from evokernel.store import Store
from tests.toys import PROBLEM, candidate, passed


@pytest.fixture
def store(tmp_path):
    store = Store.open(f"sqlite:///{tmp_path}/evokernel.db")
    for name in ("first", "second"):
        run = store.create_run(name, {"seed": 1}, PROBLEM, devices.cpu(), 1)
        good = store.add_candidate(run.id, candidate())
        for speedup in (1.0, 2.0):
            store.add_measurement(run.id, good, passed(speedup))
        bad = store.add_candidate(run.id, candidate(rows=1, parents=(good.id,)))
        store.add_measurement(run.id, bad, Measurement(Outcome.TIMEOUT, "late"))
        store.add_candidate(run.id, candidate(rows=4))  # in flight when its driver was killed
    return store


def read(folder, name):
    return pq.read_table(folder / f"{name}.parquet").to_pylist()


def test_everything_is_there_once(store, tmp_path):
    counts = dataset.write(store, store.runs(), tmp_path / "data")
    assert counts == {"runs": 2, "bodies": 1, "candidates": 6, "measurements": 6, "timings": 4}
    assert {name: len(read(tmp_path / "data", name)) for name in counts} == counts


def test_the_tables_join_and_the_score_is_that_of_all_measurements(store, tmp_path):
    dataset.write(store, store.runs(), tmp_path)
    candidates = {row["candidate"]: row for row in read(tmp_path, "candidates")}
    measured = Counter(row["candidate"] for row in read(tmp_path, "measurements"))
    assert {number: row["measurements"] for number, row in candidates.items()} == {n: measured[n] for n in candidates}
    assert Counter(row["score"] for row in candidates.values()) == {1.5: 2, None: 4}
    assert {row["measurement"] for row in read(tmp_path, "timings")} <= {
        row["measurement"] for row in read(tmp_path, "measurements")
    }
    (child,) = (row for row in candidates.values() if row["parents"] and row["run"] == "first")
    assert child["parents"][0] in candidates
    assert {row["body"] for row in candidates.values()} == {row["body"] for row in read(tmp_path, "bodies")}


def test_runs_can_be_chosen(store, tmp_path):
    dataset.write(store, [store.run("second")], tmp_path)
    assert {row["run"] for row in read(tmp_path, "measurements")} == {"second"}


def test_a_run_without_measurements_makes_tables_that_can_be_read(tmp_path):
    store = Store.open(f"sqlite:///{tmp_path}/evokernel.db")
    store.create_run("empty", {}, PROBLEM, devices.cpu(), 0)
    assert dataset.write(store, store.runs(), tmp_path)["measurements"] == 0
    assert read(tmp_path, "timings") == []
