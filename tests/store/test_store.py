"""The store on SQLite and PostgreSQL; on SQLite it loses nothing that was finished, and says what it cannot open."""

import os
import sqlite3
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from alembic import command

from evokernel import devices
from evokernel.errors import StoreError
from evokernel.store import Store, queries
from evokernel.store.engine import engine_for, migrations, parse
from tests.contracts.store_contract import StoreContract
from tests.toys import PROBLEM, passed

ROOT = Path(__file__).parents[2]
SERVER = os.environ.get("EVOKERNEL_TEST_POSTGRESQL")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "deep" / "odd # name" / "evokernel.db"


@pytest.fixture
def sqlite_url(file):
    return f"sqlite:///{file}"


class TestSQLite(StoreContract):
    @pytest.fixture
    def url(self, sqlite_url):
        return sqlite_url


@pytest.mark.skipif(not SERVER, reason="EVOKERNEL_TEST_POSTGRESQL names no server")
class TestPostgreSQL(StoreContract):
    @pytest.fixture
    def url(self):
        """Give each test a database of its own on the server."""
        from sqlalchemy import create_engine, text

        server = create_engine(SERVER, isolation_level="AUTOCOMMIT")
        name = f"evokernel_test_{uuid.uuid4().hex[:12]}"
        with server.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        yield server.url.set(database=name).render_as_string(hide_password=False)
        with server.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        server.dispose()


@pytest.fixture
def store(sqlite_url):
    return Store.open(sqlite_url)


@pytest.fixture
def run(store):
    return store.create_run("first", {}, PROBLEM, devices.cpu(), 3)


def driver(url: str, run_id: int, body: str) -> list[str]:
    """Return the command of another process that stores measurements."""
    head = (
        "import os, signal, sys\nfrom evokernel.store import Store\nfrom tests.toys import candidate, passed\n"
        f"store = Store.open({url!r})\n"
        "def measure():\n"
        f"    c = store.add_candidate({run_id}, candidate())\n    store.add_measurement({run_id}, c, passed(1.0))\n"
    )
    return [sys.executable, "-c", head + body]


# ---- processes ----


def test_a_killed_writer_loses_no_measurement_it_had_stored(store, run, sqlite_url):
    body = "for i in range(30): measure()\nos.kill(os.getpid(), signal.SIGKILL)\n"
    subprocess.run(driver(sqlite_url, run.id, body), cwd=ROOT, check=False)
    assert len(list(store.records(run.id))) == 30


def test_a_reader_sees_whole_records_while_another_process_writes(store, run, sqlite_url):
    body = "for i in range(200): measure()\n"
    writer = subprocess.Popen(driver(sqlite_url, run.id, body), cwd=ROOT)
    seen = [0]
    while writer.poll() is None:
        records = list(Store.open(sqlite_url, read_only=True).records(run.id))
        assert all(record.measurement == passed(1.0) for record in records)
        seen.append(len(records))
        time.sleep(0.02)
    assert writer.returncode == 0
    assert seen == sorted(seen)
    assert len(list(store.records(run.id))) == 200


def test_two_processes_may_write_at_once(store, run, sqlite_url):
    writer = subprocess.Popen(driver(sqlite_url, run.id, "for i in range(100): measure()\n"), cwd=ROOT)
    while writer.poll() is None:
        store.request_stop(run.id)
    assert writer.returncode == 0
    assert len(list(store.records(run.id))) == 100


def test_processes_that_open_a_new_database_together_all_get_it(sqlite_url):
    code = [sys.executable, "-c", f"from evokernel.store import Store; Store.open({sqlite_url!r})"]
    openers = [subprocess.Popen(code, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [opener.communicate()[1] for opener in openers] == [""] * 4


# ---- old and new databases ----


def make_first_schema(url: str) -> sqlite3.Connection:
    engine = engine_for(parse(url))
    with engine.begin() as connection:
        config = migrations()
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
    raw = sqlite3.connect(parse(url).database)
    raw.executescript(
        """
        CREATE VIEW leaderboard AS SELECT t.workload FROM timing t JOIN measurement m ON m.id = t.measurement_id;
        INSERT INTO device VALUES (1, 'cpu', 'old', '', '{}');
        INSERT INTO body VALUES ('d', 'source');
        INSERT INTO run VALUES (1, 'old', 'finished', '{}', '{}', 0, 1, '2026-01-01', NULL, 1.0, 0);
        INSERT INTO candidate VALUES (1, 1, 'd', '{}', 'g', 'c', 'seed', 0, '', 0.0, 0, '2026-01-01');
        INSERT INTO measurement VALUES
            (1, 1, 1, 'PASSED', '', 'full', '{}', '{}', '{"reuse_key": "k"}', 1.0, 1.0, '', '2026-01-01');
        INSERT INTO timing VALUES (1, 'b', 0, 1.0, 2.0, 0.0, 'sdpa', 4.0, 2.0, '[2.0]', '[4.0]'),
                                  (1, 'a', 1, 1.0, 1.0, 0.0, 'sdpa', 1.0, 1.0, '[1.0]', '[1.0]');
        """
    )
    return raw


def test_an_older_database_is_brought_up_with_all_it_holds(tmp_path):
    url = f"sqlite:///{tmp_path}/old.db"
    make_first_schema(url).close()
    store = Store.open(url, create=False)
    (measured,) = store.measurements(1)
    assert [(t.workload, t.speedup, t.held_out) for t in measured.timings] == [("a", 1.0, True), ("b", 2.0, False)]
    assert store.find_reusable("k") == measured
    assert queries.query(url, "SELECT run, score, held_out_score FROM leaderboard")[1] == [["old", 2.0, 1.0]]


def test_a_migration_that_fails_leaves_the_database_as_it_was(tmp_path):
    url = f"sqlite:///{tmp_path}/old.db"
    raw = make_first_schema(url)
    raw.executescript("CREATE TABLE ordered_timing (x INTEGER)")  # in the way of the second migration's last step
    before = list(raw.iterdump())
    with pytest.raises(StoreError, match="already exists"):
        Store.open(url)
    assert list(raw.iterdump()) == before


def test_an_older_database_is_not_migrated_by_a_reader(tmp_path):
    url = f"sqlite:///{tmp_path}/old.db"
    make_first_schema(url).close()
    with pytest.raises(StoreError, match=r"schema 0001, older than"):
        Store.open(url, read_only=True)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_database_is_refused_untouched(store, file, sqlite_url, read_only):
    with sqlite3.connect(file) as raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreError, match=r"evokernel\.db has schema 9999, newer.*upgrade evokernel"):
        Store.open(sqlite_url, read_only=read_only)


def test_the_migrations_end_where_the_models_stand(store):
    from alembic.autogenerate import compare_metadata
    from alembic.runtime.migration import MigrationContext

    from evokernel.store.tables import Base

    with store.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


# ---- what is no database of ours ----


def test_a_database_of_somebody_else_is_left_alone(tmp_path):
    with sqlite3.connect(tmp_path / "other.db") as raw:
        raw.execute("CREATE TABLE customers (id INTEGER)")
    with pytest.raises(StoreError, match=r"holds other tables \(customers\)"):
        Store.open(f"sqlite:///{tmp_path}/other.db")


@pytest.mark.parametrize(
    "url", ["nonsense", "", "nosuch://x/y", "sqlite+nosuch:///x.db", "postgresql://u:secret@localhost:port/x"]
)
def test_a_url_that_means_nothing_is_said_in_one_line(url):
    with pytest.raises(StoreError) as error:
        Store.open(url)
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_database_is_said_in_one_line(tmp_path):
    (tmp_path / "text.db").write_text("not a database, but long enough to be read as one" * 100)
    with pytest.raises(StoreError, match="not a database"):
        Store.open(f"sqlite:///{tmp_path}/text.db")


def test_a_folder_that_cannot_be_made_is_said_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file"):
        Store.open(f"sqlite:///{tmp_path}/file/x.db")


@pytest.mark.parametrize("options", [{"create": False}, {"read_only": True}])
def test_reading_where_nothing_is_makes_no_file(tmp_path, options):
    with pytest.raises(StoreError, match="no database"):
        Store.open(f"sqlite:///{tmp_path}/deep/none.db", **options)
    assert list(tmp_path.iterdir()) == []
