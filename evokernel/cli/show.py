"""Print rows: a table on a terminal, aligned text elsewhere, JSON when asked."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any


def cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else str(value)


def rows(columns: Sequence[str], found: Sequence[Sequence[Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps([dict(zip(columns, row, strict=True)) for row in found], default=str, indent=2))
        return
    cells = [[cell(value) for value in row] for row in found]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(*columns)
        for row in cells:
            table.add_row(*(Text(value) for value in row))  # Text: what a candidate wrote is shown, not interpreted
        Console().print(table)
        return
    widths = [max(len(c), *(len(row[i]) for row in cells)) if cells else len(c) for i, c in enumerate(columns)]
    for line in [list(columns), *cells]:
        print(
            "  ".join(value.replace("\n", " ").ljust(width) for value, width in zip(line, widths, strict=True)).rstrip()
        )
