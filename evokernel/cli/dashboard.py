"""Commands that show a database in a browser: dashboard, report."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer

from evokernel.cli.options import DEFAULT_DB, Db, RunArgument


def _require() -> None:
    """Refuse in one line when the optional extra is not installed."""
    from importlib.util import find_spec

    from evokernel.errors import EvokernelError

    needed = ("dash", "dash_ag_grid", "dash_cytoscape", "waitress", "pygments")
    if missing := [name for name in needed if find_spec(name) is None]:
        raise EvokernelError(
            f"the dashboard needs {', '.join(missing)}; install it: pip install 'evokernel-attention[dashboard]'"
        )


def dashboard(
    url: Annotated[str, typer.Argument(metavar="[DB-URL]", envvar="EVOKERNEL_DB", help="Database URL.")] = DEFAULT_DB,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes a free one.")] = 8050,
    token: Annotated[
        str | None, typer.Option("--token", envvar="EVOKERNEL_TOKEN", help="What visitors from elsewhere must bring.")
    ] = None,
) -> None:
    """Show a database in the browser, read-only; works while a campaign writes."""
    _require()
    from evokernel.dashboard import server

    if host not in server.LOOPBACK and token is None:
        token = secrets.token_urlsafe(24)
    listening = server.listen(url, host, port, token)
    print(f"dashboard of {url}: {listening.address}", file=sys.stderr)
    print("Ctrl-C ends it", file=sys.stderr)
    listening.serve()


def report(
    name: RunArgument = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file.")] = Path("report.html"),
    db: Db = DEFAULT_DB,
) -> None:
    """Write a run as one self-contained HTML file."""
    _require()
    from evokernel.dashboard.report import report as made
    from evokernel.errors import EvokernelError

    run, text = made(db, name)
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EvokernelError(f"--output {output}: {error.strerror}") from None
    print(f"wrote {output}, run {run}")


COMMANDS = {"dashboard": dashboard, "report": report}
