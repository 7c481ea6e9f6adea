"""Answer SQL within limits of rows and time, and hand the answer out as CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
import time
from dataclasses import dataclass
from typing import Any

from evokernel.errors import EvokernelError
from evokernel.store.queries import SAVED, query

ROWS = 1000
SECONDS = 5.0


@dataclass(frozen=True)
class Answer:
    """What a query gave, or the one line that says why not."""

    columns: list[str]
    rows: list[list[Any]]
    more: bool
    seconds: float
    error: str = ""

    def as_csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow([_inert(name) for name in self.columns])
        writer.writerows([[_inert(value) for value in row] for row in self.rows])
        return text.getvalue()

    def as_json(self) -> str:
        return json.dumps([dict(zip(self.columns, row, strict=True)) for row in self.rows], default=str, indent=1)


def _inert(value: Any) -> Any:
    """Keep a spreadsheet from taking a candidate's text for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def ask(url: str, sql: str, rows: int = ROWS, seconds: float = SECONDS) -> Answer:
    """Ask the database at a URL; a refusal comes back as an answer with an error."""
    start = time.perf_counter()
    try:
        columns, found, more = query(url, sql, rows, seconds)
    except EvokernelError as error:
        return Answer([], [], False, time.perf_counter() - start, str(error))
    return Answer(columns, found, more, time.perf_counter() - start)


__all__ = ["SAVED", "Answer", "ask"]
