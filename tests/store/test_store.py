"""The store loses nothing that was finished, and says in one line what it cannot open."""

import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from evokernel import devices
from evokernel.errors import StoreError
from evokernel.measurement import Measurement, Outcome
from evokernel.store import Store, queries
from tests.toys import PROBLEM, candidate, passed, timing

ROOT = Path(__file__).parents[2]


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/deep/evokernel.db"


@pytest.fixture
def store(url):
    return Store.open(url)


@pytest.fixture
def run(store):
    return store.create_run("first", {"seed": 3}, PROBLEM, devices.cpu(), 3)


def test_a_run_comes_back_as_it_was_created(store, run):
    assert store.run("first") == run
    assert (run.problem, run.config, run.seed, run.status) == (PROBLEM, {"seed": 3}, 3, "created")


def test_the_latest_run_is_meant_when_no_name_is_given(store, run):
    later = store.create_run("second", {}, PROBLEM, devices.cpu(), 0)
    assert store.run(None) == later


def test_records_come_back_exactly_and_in_completion_order(store, run):
    first, second = (store.add_candidate(run.id, candidate(rows=rows)) for rows in (1, 2))
    child = store.add_candidate(run.id, replace(candidate(rows=4), parents=(second.id, first.id), note="a hope"))
    written = [
        store.add_measurement(run.id, second, Measurement(Outcome.INCORRECT, "wrong at row 3", errors={"a": 2.5})),
        store.add_measurement(run.id, child, passed(1.5, resources={"compile_s": 2.0}, environment={"device": "x"})),
        store.add_measurement(run.id, first, passed(1.25)),
    ]
    assert list(store.records(run.id)) == written
    assert list(Store.open(str(store.engine.url)).records(run.id)) == written


def test_a_candidate_without_a_measurement_is_pending(store, run):
    done, waiting = (store.add_candidate(run.id, candidate(rows=rows)) for rows in (1, 2))
    store.add_measurement(run.id, done, passed(1.0))
    assert store.pending(run.id) == [waiting]


def test_what_was_spent_is_summed_over_sittings(store, run):
    one = store.add_candidate(run.id, replace(candidate(), cost_usd=0.5, tokens=100))
    store.add_measurement(run.id, one, passed(1.0, device_seconds=2.0))
    store.add_elapsed(run.id, 10)
    store.add_elapsed(run.id, 5)
    spent = store.spent(run.id)
    assert (spent.wall_s, spent.evaluations, spent.gpu_s, spent.usd, spent.tokens) == (15, 1, 2.0, 0.5, 100)


def test_another_process_can_ask_a_run_to_stop(store, run, url):
    Store.open(url).request_stop(run.id)
    assert store.stop_requested(run.id)
    store.clear_stop(run.id)
    assert not store.stop_requested(run.id)


def test_a_submission_is_claimed_once(store, run):
    number = store.add_submission(run.id, "source", None, None, "try this")
    assert [s.id for s in store.claim_submissions(run.id)] == [number]
    assert store.claim_submissions(run.id) == []


def test_the_leaderboard_derives_scores_from_timings(store, run, url):
    one = store.add_candidate(run.id, candidate())
    store.add_measurement(run.id, one, passed(1.5))
    measured = Measurement(Outcome.PASSED, timings=(timing(1.5), timing(0.9, "elsewhere", held_out=True)))
    store.add_measurement(run.id, one, measured)
    columns, rows, more = queries.query(url, "SELECT candidate, score, held_out_score, measurements FROM leaderboard")
    assert columns == ["candidate", "score", "held_out_score", "measurements"]
    assert rows == [[one.id, pytest.approx(1.5), pytest.approx(0.9), 2]]
    assert not more


@pytest.mark.parametrize("name", queries.SAVED)
def test_every_saved_query_answers(store, run, url, name):
    one = store.add_candidate(run.id, candidate())
    store.add_measurement(run.id, one, passed(1.5))
    assert queries.query(url, queries.SAVED[name])[0]


HOSTILE = "'; DROP TABLE run; --\x00 <script>alert(1)</script> \u202e"


def test_hostile_text_is_kept_as_text(store, run):
    one = store.add_candidate(run.id, replace(candidate(), note=HOSTILE.replace("\x00", "")))
    store.add_measurement(run.id, one, Measurement(Outcome.RUNTIME_ERROR, HOSTILE))
    (record,) = store.records(run.id)
    assert "<script>" in record.measurement.message
    assert store.runs()


@pytest.mark.parametrize("sql", ["DELETE FROM run", "CREATE TABLE x (y)", "PRAGMA query_only = OFF; DELETE FROM run"])
def test_a_query_cannot_write(store, run, url, sql):
    with pytest.raises(StoreError):
        queries.query(url, sql)
    assert store.runs()


def test_a_query_that_takes_too_long_is_ended(store, url):
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT COUNT(*) FROM c"
    with pytest.raises(StoreError, match=r"longer than 0\.2 s"):
        queries.query(url, endless, timeout_s=0.2)


def test_rows_beyond_the_limit_are_left_and_said_so(store, url):
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 50) SELECT x FROM c"
    assert queries.query(url, endless, limit=10)[1:] == ([[i] for i in range(1, 11)], True)


def test_a_taken_name_is_refused_and_the_run_is_kept(store, run):
    with pytest.raises(StoreError, match="a run named 'first' exists"):
        store.create_run("first", {}, PROBLEM, devices.cpu(), 0)
    assert store.run("first") == run


def test_an_unknown_run_names_those_there_are(store, run):
    with pytest.raises(StoreError, match=r"no run named 'frist'; runs: first"):
        store.run("frist")


def test_a_newer_database_is_refused_untouched(store, run, url):
    path = store.engine.url.database
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreError, match=r"schema 9999, newer.*upgrade evokernel"):
        Store.open(url)


def test_a_database_of_somebody_else_is_left_alone(tmp_path):
    with sqlite3.connect(tmp_path / "other.db") as raw:
        raw.execute("CREATE TABLE customers (id INTEGER)")
    with pytest.raises(StoreError, match=r"holds other tables \(customers\)"):
        Store.open(f"sqlite:///{tmp_path}/other.db")


@pytest.mark.parametrize("url", ["nonsense", "nosuch://x/y"])
def test_a_url_that_means_nothing_is_said_in_one_line(url):
    with pytest.raises(StoreError) as error:
        Store.open(url)
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_database_is_said_in_one_line(tmp_path):
    (tmp_path / "text.db").write_text("not a database, but long enough to be read as one" * 100)
    with pytest.raises(StoreError, match="not a database"):
        Store.open(f"sqlite:///{tmp_path}/text.db")


def test_reading_where_nothing_is_makes_no_file(tmp_path):
    with pytest.raises(StoreError, match="no database"):
        Store.open(f"sqlite:///{tmp_path}/none.db", create=False)
    assert not (tmp_path / "none.db").exists()


def test_a_killed_writer_loses_no_measurement_it_had_stored(store, run, url):
    code = (
        "import os, signal, sys\nfrom evokernel.store import Store\nfrom tests.toys import candidate, passed\n"
        f"store = Store.open({url!r})\n"
        "for i in range(30):\n"
        f"    c = store.add_candidate({run.id}, candidate())\n    store.add_measurement({run.id}, c, passed(1.0))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert len(list(store.records(run.id))) == 30
