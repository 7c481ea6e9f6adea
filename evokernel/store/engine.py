"""Open a database by URL, bring it to the newest schema, and refuse one that is newer than this code."""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import quote

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import Connection, Engine, create_engine, event, inspect
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from evokernel.errors import StoreError

MIGRATIONS = Path(__file__).parent / "migrations"
BUSY_TIMEOUT_MS = 30_000
WRITES = "evokernel_writes"  # an execution option: the transaction takes SQLite's one write lock at its start


def parse(url: str) -> URL:
    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        raise StoreError(f"store {url!r} is no database URL; write one such as sqlite:///runs/evokernel.db") from None


def sqlite_file(url: URL) -> Path | None:
    """Return the file that an SQLite URL names; None in memory and for other databases."""
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return None
    return Path(str(url.database)).absolute()


def engine_for(url: URL, *, read_only: bool = False) -> Engine:
    """Create an engine; SQLite gets write-ahead logging, patience with locks, and LN and EXP."""
    path = sqlite_file(url)
    try:
        if read_only and path is not None:
            engine = create_engine(url, creator=lambda: open_read_only(path, BUSY_TIMEOUT_MS / 1000))
        else:
            engine = create_engine(url, execution_options={"postgresql_readonly": True} if read_only else {})
    except (NoSuchModuleError, ImportError, ArgumentError) as error:
        raise StoreError(f"store {url}: {error}") from None
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_read_only if read_only else _prepare_sqlite)
        event.listen(engine, "begin", _begin)
    return engine


def open_read_only(path: Path, patience_s: float) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode=ro", uri=True, timeout=patience_s, isolation_level=None, check_same_thread=False
    )


def add_functions(connection: sqlite3.Connection) -> None:
    """Give SQLite the LN and EXP that the views use; a build may lack them."""
    connection.create_function("LN", 1, lambda x: math.log(x) if x and x > 0 else None, deterministic=True)
    connection.create_function("EXP", 1, lambda x: math.exp(x) if x is not None else None, deterministic=True)


def _prepare_read_only(connection: sqlite3.Connection, record: Any) -> None:
    add_functions(connection)


def _prepare_sqlite(connection: sqlite3.Connection, record: Any) -> None:
    connection.isolation_level = None  # _begin says BEGIN; the driver's own would leave DDL outside transactions
    add_functions(connection)
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    connection.execute("PRAGMA journal_mode = WAL")
    # Survives a killed process; a power cut may lose the last commits.
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")


def _begin(connection: Connection) -> None:
    # A transaction that reads and then writes fails at once, without patience, if another wrote in between.
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def migrations() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def open_engine(url: str, *, create: bool, read_only: bool = False, migrate: bool = True) -> Engine:
    """Open and migrate; StoreError in one line when there is nothing to open, or it is not ours, or it is newer."""
    parsed = parse(url)
    path = sqlite_file(parsed)
    try:
        if path is not None and not path.exists():
            if read_only or not create:
                raise StoreError(f"no database at {path}; `evokernel run` makes one")
            path.parent.mkdir(parents=True, exist_ok=True)
        engine = engine_for(parsed, read_only=read_only)
        with engine.connect() as connection:
            current = _revision(connection, parsed)
        head = ScriptDirectory.from_config(migrations()).get_current_head()
        if current == head or not migrate:
            return engine
        if read_only:
            raise StoreError(f"{parsed} has schema {current}, older than {head}; open it once for writing")
        with engine.execution_options(**{WRITES: True}).begin() as connection:
            _revision(connection, parsed)  # again, under the lock: another process may have been first
            config = migrations()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except OSError as error:
        raise StoreError(f"{parsed}: {error}") from None
    except CommandError as error:
        raise StoreError(f"{parsed}: {error}") from None
    except SQLAlchemyError as error:
        raise StoreError(f"{parsed}: {first_line(error)}") from None
    return engine


def _revision(connection: Connection, url: URL) -> str | None:
    """Return the schema's revision, None in an empty database; StoreError for one that is not ours or is newer."""
    current: str | None = MigrationContext.configure(connection).get_current_revision()
    if current is None and (foreign := inspect(connection).get_table_names()):
        raise StoreError(f"{url} holds other tables ({', '.join(foreign[:3])}); choose another database")
    known = {r.revision for r in ScriptDirectory.from_config(migrations()).walk_revisions()}
    if current is not None and current not in known:
        raise StoreError(f"{url} has schema {current}, newer than this evokernel knows; upgrade evokernel")
    return current


def first_line(error: SQLAlchemyError) -> str:
    """Return the database's own words without SQLAlchemy's statement and links."""
    lines = str(getattr(error, "orig", None) or error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
