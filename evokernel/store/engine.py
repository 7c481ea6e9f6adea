"""Open a database by URL, bring it to the newest schema, and refuse one that is newer than this code."""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import Engine, create_engine, event, inspect
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from evokernel.errors import StoreError

MIGRATIONS = Path(__file__).parent / "migrations"
BUSY_TIMEOUT_MS = 30_000


def parse(url: str) -> URL:
    try:
        return make_url(url)
    except ArgumentError:
        raise StoreError(f"store {url!r} is no database URL; write one such as sqlite:///runs/evokernel.db") from None


def engine_for(url: str) -> Engine:
    """Create an engine; SQLite gets write-ahead logging, patience with locks, and LN and EXP."""
    parsed = parse(url)
    try:
        engine = create_engine(parsed)
    except (NoSuchModuleError, ImportError) as error:
        raise StoreError(f"store {url!r}: {error}") from None
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
    return engine


def _prepare_sqlite(connection: sqlite3.Connection, record: Any) -> None:
    connection.create_function("LN", 1, lambda x: math.log(x) if x and x > 0 else None, deterministic=True)
    connection.create_function("EXP", 1, lambda x: math.exp(x) if x is not None else None, deterministic=True)
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(
        "PRAGMA synchronous = NORMAL"
    )  # survives a killed process; a power cut may lose the last commits
    connection.execute("PRAGMA foreign_keys = ON")


def migrations() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    return config


def open_engine(url: str, *, create: bool) -> Engine:
    """Open and migrate; StoreError in one line when there is nothing to open, or it is not ours, or it is newer."""
    parsed = parse(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database not in (None, "", ":memory:"):
        path = Path(str(parsed.database))
        if not path.exists():
            if not create:
                raise StoreError(f"no database at {path}; `evokernel run` makes one")
            path.parent.mkdir(parents=True, exist_ok=True)
    engine = engine_for(url)
    script = ScriptDirectory.from_config(migrations())
    try:
        with engine.connect() as connection:
            current = MigrationContext.configure(connection).get_current_revision()
            foreign = current is None and inspect(connection).get_table_names()
        if foreign:
            raise StoreError(f"{url} holds other tables ({', '.join(foreign[:3])}); choose another database")
        if current == script.get_current_head():
            return engine
        if current is not None and current not in {r.revision for r in script.walk_revisions()}:
            raise StoreError(f"{url} has schema {current}, newer than this evokernel knows; upgrade evokernel")
        config = migrations()
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except CommandError as error:
        raise StoreError(f"{url}: {error}") from None
    except SQLAlchemyError as error:
        cause = getattr(error, "orig", None) or error
        raise StoreError(f"{url}: {str(cause).splitlines()[0]}") from None
    return engine
