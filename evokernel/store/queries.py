"""Ask the database anything, read-only, within limits of time and rows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import ResourceClosedError, SQLAlchemyError

from evokernel.errors import StoreError
from evokernel.store.engine import engine_for, parse

SAVED = {
    "champions": "SELECT run, shape_class, candidate, score, held_out_score, operator FROM leaderboard l WHERE score = "
    "(SELECT MAX(score) FROM leaderboard x WHERE x.run = l.run AND x.shape_class = l.shape_class) "
    "ORDER BY run, shape_class",
    "outcomes": "SELECT run, outcome, COUNT(*) AS count, SUM(seconds) AS seconds FROM progress "
    "GROUP BY run, outcome ORDER BY run, count DESC",
    "operators": "SELECT run, operator, COUNT(*) AS candidates, AVG(score) AS mean_score, MAX(score) AS best_score "
    "FROM lineage GROUP BY run, operator ORDER BY run, best_score DESC",
    "failures": "SELECT run, outcome, message, COUNT(*) AS count FROM failures GROUP BY run, outcome, message "
    "ORDER BY count DESC",
    "progress": "SELECT run, evaluation, shape_class, candidate, outcome, score, MAX(score) OVER "
    "(PARTITION BY run, shape_class ORDER BY evaluation) AS best FROM progress ORDER BY run, evaluation",
}
STEPS_BETWEEN_CLOCKS = 10_000  # SQLite's virtual machine steps between looks at the clock


def query(url: str, sql: str, limit: int = 1000, timeout_s: float = 10.0) -> tuple[list[str], list[list[Any]], bool]:
    """Return columns, at most `limit` rows, and whether there were more. Writes are refused by the database itself."""
    parsed = parse(url)
    if parsed.get_backend_name() == "sqlite":
        path = Path(str(parsed.database)).absolute()
        if not path.exists():
            raise StoreError(f"no database at {path}; `evokernel run` makes one")
        engine = create_engine(f"sqlite:///file:{path}?mode=ro&uri=true")
        event.listen(engine, "connect", lambda connection, record: _confine(connection, timeout_s))
        prelude: list[str] = []
    else:
        engine = engine_for(url)
        prelude = ["SET TRANSACTION READ ONLY", f"SET LOCAL statement_timeout = {int(timeout_s * 1000)}"]
    try:
        with engine.connect() as connection:
            for statement in prelude:
                connection.execute(text(statement))
            result = connection.exec_driver_sql(sql)
            rows = result.fetchmany(limit + 1)
            return list(result.keys()), [list(row) for row in rows[:limit]], len(rows) > limit
    except ResourceClosedError:
        raise StoreError("the statement returns no rows; only queries are answered") from None
    except SQLAlchemyError as error:
        cause = str(getattr(error, "orig", None) or error).splitlines()[0]
        if cause == "interrupted":
            cause = f"took longer than {timeout_s:g} s"
        raise StoreError(f"query: {cause}") from None
    finally:
        engine.dispose()


def _confine(connection: Any, timeout_s: float) -> None:
    import math

    connection.create_function("LN", 1, lambda x: math.log(x) if x and x > 0 else None, deterministic=True)
    connection.create_function("EXP", 1, lambda x: math.exp(x) if x is not None else None, deterministic=True)
    connection.execute("PRAGMA query_only = ON")
    deadline = time.monotonic() + timeout_s
    connection.set_progress_handler(lambda: time.monotonic() > deadline, STEPS_BETWEEN_CLOCKS)
