"""Runs at equal budget, and each shape's kernel beside every baseline."""

from __future__ import annotations

from typing import Any

from dash import html

from evokernel.dashboard import figures, ui
from evokernel.dashboard.data import compare, progress
from evokernel.dashboard.data.follow import Snapshot
from evokernel.dashboard.view import View

PATH, TITLE, LIVE = "/compare", "Compare", False
MOST = 6  # runs drawn at first


def draw(view: View) -> Any:
    names = [run.name for run in view.follower.runs()]
    if not names:
        return ui.section("Compare", ui.nothing("No run yet. Start one: evokernel run"))
    asked = [name for name in view.query.get("runs", "").split(",") if name in names]
    chosen = asked or names[:MOST]
    axis = view.choice("over", list(progress.AXES))
    snapshots = [found for name in chosen if (found := view.follower.snapshot(name))]
    parts = list(dict.fromkeys(c for s in snapshots for c in s.shape_classes))
    part = view.choice("class", parts)
    controls = html.Div(
        [
            ui.choice("runs", "runs", names, chosen, multi=True),
            ui.tabs("budget", "over", progress.AXES, axis, view),
        ],
        className="controls",
    )
    return [
        ui.section("Runs at equal budget", controls, *_equal(snapshots, axis, parts, part, view)),
        *(portfolio(snapshot) for snapshot in snapshots),
    ]


def _equal(snapshots: list[Snapshot], axis: str, parts: list[str], part: str, view: View) -> list[Any]:
    curves = {s.run.name: found for s in snapshots if (found := progress.curves(s, axis).get(part))}
    limit, rows = compare.equal_budget(snapshots, axis)
    columns = {"run": "run", "device": "device", "evaluations": "evaluations", "all": "all classes"}
    columns |= {name: name for name in parts}
    cells: dict[str, ui.Cell] = {name: ui.speedup for name in ("all", *parts)}
    drawn = (
        ui.graph(figures.best(curves, progress.AXES[axis]), f"best of {part} over {progress.AXES[axis]}")
        if curves
        else ui.nothing(f"No candidate of {part} has a score yet.")
    )
    said = f"The best that each run had found after {ui.number(limit)} {progress.AXES[axis]}, which all of them spent."
    return [
        ui.tabs("shape class", "class", parts, part, view),
        drawn,
        html.P(said),
        ui.table(columns, rows, cells, heated=("all", *parts)),
    ]


def portfolio(snapshot: Snapshot) -> Any:
    """Draw the kernel of every shape beside the baselines that were timed in its run."""
    found = compare.portfolio(snapshot)
    title = f"Portfolio of {snapshot.run.name} on {snapshot.run.device_model}"
    if not found:
        return ui.section(title, ui.nothing("No candidate has a score yet."))
    baselines = sorted({name for row in found for name in row["baselines"]})
    rows = [{**row, **{f"baseline {b}": row["baselines"].get(b) for b in baselines}} for row in found]
    columns = {
        "shape_class": "shape class",
        "workload": "workload",
        "held_out": "held out",
        "candidate": "candidate",
        "latency_us": "µs",
        **{f"baseline {b}": f"{b}, µs" for b in baselines},
        "roofline_us": "roofline, µs",
        "speedup": "speedup",
    }
    cells: dict[str, ui.Cell] = {"candidate": ui.candidate, "speedup": ui.speedup}
    return ui.section(
        title,
        ui.graph(figures.latencies(found, baselines), "latency beside baselines", 340),
        ui.table(columns, rows, cells, heated=("speedup",)),
        note="Baselines that this run did not time are not shown.",
    )
