"""Ask the database anything, read-only, within limits of time and rows."""

from __future__ import annotations

import re
import sqlite3
import time
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

from evokernel.errors import StoreError
from evokernel.store.engine import add_functions, engine_for, first_line, open_read_only, parse, sqlite_file

SAVED = {
    "champions": "SELECT run, shape_class, candidate, score, held_out_score, operator FROM (SELECT *, RANK() OVER "
    "(PARTITION BY run, shape_class ORDER BY score DESC) AS place FROM leaderboard) AS ranked WHERE place = 1 "
    "ORDER BY run, shape_class",
    "outcomes": "SELECT run, outcome, COUNT(*) AS count, SUM(seconds) AS seconds FROM progress "
    "GROUP BY run, outcome ORDER BY run, count DESC",
    # A candidate with two parents has two rows of lineage.
    "operators": "SELECT run, operator, COUNT(*) AS candidates, COUNT(score) AS scored, AVG(score) AS mean_score, "
    "MAX(score) AS best_score FROM (SELECT DISTINCT run, candidate, operator, score FROM lineage) AS once "
    "GROUP BY run, operator ORDER BY run, best_score DESC",
    "compiles": "SELECT m.candidate_id AS candidate, c.shape_class, m.outcome, "
    "CAST(m.resources ->> 'compile_s' AS FLOAT) AS compile_s FROM measurement m JOIN candidate c "
    "ON c.id = m.candidate_id WHERE m.resources ->> 'compile_s' IS NOT NULL ORDER BY compile_s DESC, candidate "
    "LIMIT 20",
    "failures": "SELECT run, outcome, message, COUNT(*) AS count FROM failures GROUP BY run, outcome, message "
    "ORDER BY count DESC",
    "recent_failures": "SELECT created_at, run, candidate, operator, outcome, message FROM failures "
    "ORDER BY created_at DESC, candidate DESC LIMIT 20",
    "progress": "SELECT run, evaluation, shape_class, candidate, outcome, score, MAX(score) OVER "
    "(PARTITION BY run, shape_class ORDER BY evaluation) AS best FROM progress ORDER BY run, evaluation",
}
STEPS_BETWEEN_CLOCKS = 10_000  # SQLite's virtual machine steps between looks at the clock
READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
ONE_SELECT = re.compile(r"\s*\(*\s*(SELECT|WITH|VALUES|TABLE)\b[^;]*;?\s*", re.IGNORECASE)

Answer = tuple[list[str], list[list[Any]], bool]


def query(url: str, sql: str, limit: int = 1000, timeout_s: float = 10.0) -> Answer:
    """Return columns, at most `limit` rows, and whether there were more. Writes are refused by the database itself."""
    parsed = parse(url)
    if path := sqlite_file(parsed):
        return _ask_sqlite(path, sql, limit, timeout_s)
    return _ask_server(parsed, sql, limit, timeout_s)


def _ask_sqlite(path: Path, sql: str, limit: int, timeout_s: float) -> Answer:
    if not path.exists():
        raise StoreError(f"no database at {path}; `evokernel run` makes one")
    deadline = time.monotonic() + timeout_s
    try:
        connection = open_read_only(path, timeout_s)
        try:
            add_functions(connection)
            connection.set_progress_handler(lambda: time.monotonic() > deadline, STEPS_BETWEEN_CLOCKS)
            # mode=ro alone lets VACUUM INTO and ATTACH write other files.
            connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in READS else sqlite3.SQLITE_DENY)
            cursor = connection.execute(sql)
            if cursor.description is None:
                raise StoreError("the statement returns no rows; only queries are answered")
            rows = cursor.fetchmany(limit + 1)
            return [name for name, *_ in cursor.description], [list(row) for row in rows[:limit]], len(rows) > limit
        finally:
            connection.close()
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        cause = str(error).splitlines()[0]
        if cause == "interrupted":
            cause = f"took longer than {timeout_s:g} s"
        if cause in ("not authorized", "authorization denied"):
            cause = "the database is readonly here; only SELECT is answered"
        raise StoreError(f"query: {cause}") from None


def _ask_server(url: URL, sql: str, limit: int, timeout_s: float) -> Answer:
    # "SELECT 1; COMMIT; DELETE ..." would leave the read-only transaction.
    if not ONE_SELECT.fullmatch(sql):
        raise StoreError("query: the database is readonly here; only one SELECT is answered, without ; inside")
    engine = engine_for(url)
    try:
        with engine.connect() as connection:
            connection.execute(text("SET TRANSACTION READ ONLY"))
            connection.execute(text(f"SET LOCAL statement_timeout = {max(1, int(timeout_s * 1000))}"))
            # Streamed: rows beyond the limit stay on the server.
            result = connection.execution_options(stream_results=True).exec_driver_sql(sql)
            rows = result.fetchmany(limit + 1)
            return list(result.keys()), [list(row) for row in rows[:limit]], len(rows) > limit
    except SQLAlchemyError as error:
        cause = first_line(error)
        if "statement timeout" in cause:
            cause = f"took longer than {timeout_s:g} s"
        raise StoreError(f"query: {cause}") from None
    finally:
        engine.dispose()
