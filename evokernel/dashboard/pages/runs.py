"""Every run in the database."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from evokernel.dashboard import figures, ui
from evokernel.dashboard.data import runs
from evokernel.dashboard.view import View, address

PATH, TITLE, LIVE = "/", "Runs", True
COLUMNS = {
    "run": "run",
    "status": "status",
    "device": "device",
    "best": "best",
    "held_out": "held out",
    "classes": "classes led",
    "evaluations": "evaluations",
    "outcomes": "outcomes",
    "device_s": "device time",
    "cost_usd": "cost",
    "started": "started (UTC)",
    "spark": "best so far",
}


def draw(view: View) -> Any:
    found = runs.overview(view.follower)
    if not found:
        return ui.section("Runs", ui.nothing("No run yet. Start one: evokernel run"))
    cells: dict[str, ui.Cell] = {
        "run": lambda name: dcc.Link(name, href=address("/run", {"run": name})),
        "status": lambda status: html.Span(status, className=f"status {status}"),
        "best": ui.speedup,
        "held_out": ui.speedup,
        "outcomes": ui.outcomes,
        "device_s": ui.seconds,
        "cost_usd": lambda usd: f"${usd:,.2f}",
        "spark": _spark,
    }
    note = "Best: the geometric mean over shape classes of the leader's speedup against the fastest baseline."
    return ui.section("Runs", ui.table(COLUMNS, found, cells, heated=("best", "held_out")), note=note)


def _spark(values: list[float]) -> Any:
    if len(values) < 2:
        return "–"
    low, high = min(values), max(values)
    made = ui.graph(figures.spark(values), f"best so far, from {low:.3f} to {high:.3f}", height=36)
    made.className = "spark"
    return made
