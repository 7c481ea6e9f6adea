"""Queries on SQLite touch no file: neither the database nor another beside it."""

import pytest

from evokernel import devices
from evokernel.errors import StoreError
from evokernel.store import Store, queries
from tests.toys import PROBLEM


@pytest.fixture
def url(tmp_path):
    found = f"sqlite:///{tmp_path}/evokernel.db"
    Store.open(found).create_run("first", {}, PROBLEM, devices.cpu(), 0)
    return found


@pytest.mark.parametrize(
    "sql",
    [
        "VACUUM INTO '{folder}/copy.db'",
        "ATTACH 'file:{folder}/new.db?mode=rwc' AS other",
        "PRAGMA query_only = OFF",
        "PRAGMA journal_mode = DELETE",
        "UPDATE run SET name = 'mine'",
        "DROP VIEW leaderboard",
        "CREATE TEMP TABLE x (y)",
        "WITH x AS (SELECT 1) DELETE FROM run",
        "SELECT load_extension('{folder}/x.so')",
    ],
)
def test_no_statement_makes_or_changes_a_file(url, tmp_path, sql):
    before = sorted(path.name for path in tmp_path.iterdir() if not path.name.endswith(("-wal", "-shm")))
    with pytest.raises(StoreError):
        queries.query(url, sql.format(folder=tmp_path))
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.endswith(("-wal", "-shm"))) == before
    assert queries.query(url, "SELECT name FROM run")[1] == [["first"]]


def test_a_statement_without_rows_says_that_only_queries_are_answered(url):
    with pytest.raises(StoreError, match="only queries are answered"):
        queries.query(url, "-- nothing")


def test_a_missing_database_is_not_made_by_asking(tmp_path):
    with pytest.raises(StoreError, match="no database"):
        queries.query(f"sqlite:///{tmp_path}/none.db", "SELECT 1")
    assert list(tmp_path.iterdir()) == []


def test_time_spent_fetching_counts_too(url):
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c WHERE x < 0"
    with pytest.raises(StoreError, match=r"longer than 0\.1 s"):
        queries.query(url, endless, timeout_s=0.1)


def test_a_query_works_while_the_driver_holds_the_write_lock(url):
    import sqlite3

    with sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE run SET name = 'unfinished'")
        assert queries.query(url, "SELECT name FROM run", timeout_s=1)[1] == [["first"]]
        writer.execute("ROLLBACK")
