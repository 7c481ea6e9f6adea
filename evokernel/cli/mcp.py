"""The command that serves a run's tools to any agent that speaks the Model Context Protocol."""

from __future__ import annotations

from evokernel.cli.options import DEFAULT_DB, Db, RunArgument


def mcp(name: RunArgument = None, db: Db = DEFAULT_DB) -> None:
    """Serve a run's tools on standard input and output, by the Model Context Protocol."""
    from evokernel import mcp as serving
    from evokernel.errors import EvokernelError
    from evokernel.store import Store

    store = Store.open(db, create=False)
    try:
        serving.serve(store, store.run(name))
    except ModuleNotFoundError as error:
        raise EvokernelError(f"evokernel mcp needs the package {error.name!r}: pip install mcp") from None


COMMANDS = {"mcp": mcp}
