"""The command line. Each command imports what it needs when it runs, so that --help is quick."""

from __future__ import annotations

import sys

import typer

from evokernel import __version__
from evokernel.errors import EvokernelError

app = typer.Typer(
    name="evokernel",
    help="Search for, prove and ship the fastest attention kernel for your shapes on your GPU.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"evokernel {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Search for, prove and ship the fastest attention kernel for your shapes on your GPU."""


def _register() -> None:
    from evokernel.cli import (
        campaign,
        compile,
        dashboard,
        experiments,
        inspect,
        kernel,
        lifecycle,
        machine,
        mcp,
        submit,
        sweep,
        workloads,
    )

    for module in (
        campaign,
        sweep,
        inspect,
        dashboard,
        experiments,
        submit,
        mcp,
        kernel,
        compile,
        workloads,
        machine,
        lifecycle,
    ):
        for name, command in module.COMMANDS.items():
            app.command(name)(command)
    app.add_typer(lifecycle.db, name="db")


_register()


def main() -> None:
    """Run the command line; what is the user's to mend is one line and exit code 2."""
    try:
        app()
    except EvokernelError as error:
        print(f"evokernel: {error}", file=sys.stderr)
        raise SystemExit(2) from None
