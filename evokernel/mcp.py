"""Serve a run's tools by the Model Context Protocol, so that any agent may play; the only home of `mcp`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from evokernel import __version__, devices
from evokernel.errors import EvokernelError
from evokernel.llm.tools import SCHEMAS, ToolError
from evokernel.llm.workbench import Workbench
from evokernel.store import Run, Store
from evokernel.toolbox import Outside, driven

INSTRUCTIONS = """\
Tools of a running search for attention kernels. Read leaders and lineage, look up knowledge, edit a candidate with
SEARCH/REPLACE blocks, check and time it (charged to the run's budget), and submit what is good: the run's driver
measures it like any other candidate, and its tuner goes on from there."""


def workbench(store: Store, run: Run) -> Workbench:
    """Return the tools of a run for another process than its driver."""
    classes = {c.name: c for c in run.problem.shape_classes()}
    device = devices.find(run.config.get("evaluator", {}).get("device", "auto")).context()

    def context(shape_class: str) -> Mapping[str, Any]:
        return run.problem.context(classes[shape_class], device)

    return Workbench(Outside(store, run, "mcp"), run.problem.entry, context, "mcp")


def used(bench: Workbench, name: str, arguments: Mapping[str, Any] | None) -> str:
    """Answer one call; submit hands in and does not wait."""
    if name != "submit":
        return bench.use(name, arguments)
    tools = bench.tools
    assert isinstance(tools, Outside)
    number = tools.hand_in(bench.draft(bench.known(name, arguments)))
    state = driven(tools.store, tools.run)
    waits = "" if state == "running" else f"; the run is {state}, so it waits for: evokernel resume"
    return f"submission {number}{waits}"


def server(bench: Workbench) -> Server[Any]:
    async def list_tools(context: Any, parameters: Any) -> types.ListToolsResult:
        functions = [schema["function"] for schema in SCHEMAS]
        return types.ListToolsResult(
            tools=[
                types.Tool(name=f["name"], description=f["description"], inputSchema=f["parameters"]) for f in functions
            ]
        )

    async def call_tool(context: Any, parameters: types.CallToolRequestParams) -> types.CallToolResult:
        def work() -> tuple[str, bool]:
            try:
                return used(bench, parameters.name, parameters.arguments or {}), False
            except (ToolError, EvokernelError) as error:
                return str(error), True

        said, wrong = await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
        return types.CallToolResult(content=[types.TextContent(type="text", text=said)], isError=wrong)

    return Server(
        "evokernel", version=__version__, instructions=INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool
    )


def serve(store: Store, run: Run) -> None:
    """Serve on standard input and output until the client leaves."""

    async def run_until_closed() -> None:
        serving = server(workbench(store, run))
        async with stdio_server() as (incoming, outgoing):
            await serving.run(incoming, outgoing, serving.create_initialization_options())

    anyio.run(run_until_closed)
