"""The scored candidates of a shape class, in a grid that sorts and filters all of them on the server."""

from __future__ import annotations

from typing import Any

import dash_ag_grid as grid
from dash import MATCH, Dash, Input, Output, ctx, html, no_update

from evokernel.dashboard import ui
from evokernel.dashboard.data import leaderboard
from evokernel.dashboard.data.follow import Follower, Snapshot
from evokernel.dashboard.view import View

PATH, TITLE, LIVE = "/leaderboard", "Leaderboard", False
TEXT = {"operator", "verified"}
HEATED = [
    {"condition": f"params.value != null && params.value >= {low} && params.value < {high}", "style": ui.heat(shade)}
    for low, high, shade in [
        (0, 0.5, 0.3), (0.5, 0.8, 0.6), (0.8, 0.95, 0.85), (0.95, 1, 0.97), (1, 1.05, 1.02), (1.05, 1.2, 1.15),
        (1.2, 1.5, 1.4), (1.5, 99999, 2),
    ]
]  # fmt: skip
THREE_DIGITS = {"function": "params.value == null ? '–' : d3.format('.3f')(params.value)"}


def draw(view: View) -> Any:
    snapshot = view.snapshot
    if snapshot is None:
        return ui.section("Leaderboard", ui.nothing("No run yet. Start one: evokernel run"))
    name = view.shape_class(snapshot)
    classes = ui.tabs("shape class", "class", snapshot.shape_classes, name, view)
    if not leaderboard.scored(snapshot, name):
        return ui.section("Leaderboard", classes, ui.nothing(f"No candidate of {name} has a score yet."))
    note = (
        "Speedups against the fastest baseline; above 1 is faster. Headings sort, the fields below them filter; "
        "Enter opens the candidate."
    )
    return ui.section("Leaderboard", classes, _grid(snapshot, name), note=note)


def _grid(snapshot: Snapshot, shape_class: str) -> Any:
    return grid.AgGrid(
        id={"type": "leaderboard", "run": snapshot.run.name, "class": shape_class},
        columnDefs=[_column(column) for column in leaderboard.columns(snapshot, shape_class)],
        rowModelType="infinite",
        defaultColDef={"sortable": True, "resizable": True, "floatingFilter": True, "minWidth": 90, "width": 120},
        dashGridOptions={
            "rowBuffer": 0,
            "maxBlocksInCache": 10,
            "cacheBlockSize": 100,
            "infiniteInitialRowCount": 100,
            "rowHeight": 34,
            "theme": {"function": "evokernelTheme(themeQuartz)"},
        },
        eventListeners={"cellKeyDown": ["openCandidate(params)"]},
        style={"height": "62vh"},
    )


def _column(column: dict[str, str]) -> dict[str, Any]:
    field, kind = column["field"], column["kind"]
    made: dict[str, Any] = {"field": field, "headerName": column["name"], "filter": "agNumberColumnFilter"}
    if field == "candidate":
        made |= {"cellRenderer": "CandidateLink", "pinned": "left"}
    if field in TEXT or kind == "knob":
        made["filter"] = "agTextColumnFilter"
    if kind == "speedup" or field in ("score", "held_out"):
        made["filterParams"] = {"defaultOption": "greaterThanOrEqual"}  # no one looks for exactly 1.2
        made |= {"cellStyle": {"styleConditions": HEATED}, "valueFormatter": THREE_DIGITS}
    if kind == "speedup":
        made["width"] = 190
    return made


def register(app: Dash, follower: Follower) -> None:
    place = {"type": "leaderboard", "run": MATCH, "class": MATCH}

    @app.callback(Output(place, "getRowsResponse"), Input(place, "getRowsRequest"))
    def rows(request: dict[str, Any] | None) -> Any:
        asked = ctx.triggered_id
        if request is None or asked is None:
            return no_update
        with follower.lock:
            snapshot = follower.snapshot(asked["run"])
            if snapshot is None:
                return {"rowData": [], "rowCount": 0}
            found, total = leaderboard.window(
                snapshot,
                asked["class"],
                request.get("sortModel") or [],
                request.get("filterModel") or {},
                int(request["startRow"]),
                int(request["endRow"]),
            )
        return {"rowData": found, "rowCount": total}


def top(snapshot: Snapshot, shape_class: str, count: int = 20) -> Any:
    """Draw the best of a class as a plain table, for the report."""
    columns = {c["field"]: c["name"] for c in leaderboard.columns(snapshot, shape_class)}
    rows, total = leaderboard.window(snapshot, shape_class, end=count)
    speedups = [f for f in columns if f.startswith("speedup")] + ["score", "held_out"]
    if not rows:
        return ui.nothing("No candidate has a score yet.")
    said = html.P(f"The best {len(rows)} of {total:,} scored candidates.", className="note")
    return html.Div([said, ui.table(columns, rows, heated=speedups)])
