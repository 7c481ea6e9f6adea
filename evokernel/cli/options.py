"""Options that several commands share."""

from __future__ import annotations

import os
from typing import Annotated

import typer

DEFAULT_DB = "sqlite:///runs/evokernel.db"


def default_db() -> str:
    return os.environ.get("EVOKERNEL_DB", DEFAULT_DB)


Db = Annotated[str, typer.Option("--db", default_factory=default_db, help="Database URL (EVOKERNEL_DB).")]
RunArgument = Annotated[str | None, typer.Argument(help="The run's name; the latest when absent.")]
RunOption = Annotated[str | None, typer.Option("--run", help="The run's name; the latest when absent.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
