"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

DEFAULT_DB = "sqlite:///runs/evokernel.db"

Db = Annotated[str, typer.Option("--db", envvar="EVOKERNEL_DB", help="Database URL.")]
RunArgument = Annotated[str | None, typer.Argument(metavar="[NAME]", help="The run; the latest when absent.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
