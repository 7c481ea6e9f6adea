"""Plotly figures as plain dictionaries; colours of text and lines come from the style sheet, for light and dark."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from evokernel.dashboard.data.landscape import Heat
from evokernel.dashboard.data.progress import Curve
from evokernel.dashboard.ui import OUTCOMES

COLOURS = ("#4c8bf5", "#e08a2e", "#2f9e6e", "#d6455d", "#9b6bd3", "#1aa6b7", "#b0892f", "#e0659a", "#7a8b99", "#5f9e2f")
Figure = dict[str, Any]


def label(text: str) -> str:
    """Escape what Plotly would take for mark-up in a label."""
    return html.escape(str(text), quote=False)


def layout(x: str = "", y: str = "", **more: Any) -> dict[str, Any]:
    axis = {"automargin": True, "zeroline": False}
    base = {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "colorway": COLOURS,
        "margin": {"l": 56, "r": 16, "t": 12, "b": 44},
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "xaxis": {**axis, "title": {"text": x}},
        "yaxis": {**axis, "title": {"text": y}},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "hovermode": "closest",
    }
    return {**base, **more}


def best(curves: Mapping[str, Curve], x: str) -> Figure:
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": label(name),
            "x": curve.x,
            "y": curve.y,
            "line": {"shape": "hv", "width": 2.5},
            "customdata": curve.candidates,
            "hovertemplate": "%{y:.3f}× by candidate %{customdata}<extra></extra>",
        }
        for name, curve in curves.items()
    ]
    return {"data": data, "layout": layout(x, "best speedup", showlegend=True)}


def outcomes(pace: Mapping[str, Any]) -> Figure:
    data = [
        {
            "type": "bar",
            "name": label(name),
            "x": pace["minutes"],
            "y": counts,
            "marker": {"color": OUTCOMES.get(name, "#888")},
        }
        for name, counts in pace["outcomes"].items()
    ]
    return {"data": data, "layout": layout("minutes", "measurements", barmode="stack", bargap=0.05, showlegend=True)}


def line(
    x: Sequence[float], y: Sequence[float], x_title: str, y_title: str, top: float | None = None, *, steps: bool = False
) -> Figure:
    shape = {"shape": "hv" if steps else "linear"}
    made = layout(x_title, y_title)
    made["yaxis"]["rangemode"] = "tozero"
    if top is not None:
        made["yaxis"]["range"] = [0, top]
    return {"data": [{"type": "scatter", "mode": "lines", "x": list(x), "y": list(y), "line": shape}], "layout": made}


def spark(values: Sequence[float]) -> Figure:
    hidden = {"visible": False, "fixedrange": True}
    data = [{"type": "scatter", "mode": "lines", "y": list(values), "hoverinfo": "skip", "line": {"width": 2}}]
    return {
        "data": data,
        "layout": layout(xaxis=hidden, yaxis=hidden, margin={"l": 0, "r": 0, "t": 2, "b": 2}, showlegend=False),
    }


def heat_map(heat: Heat, x: str, y: str, what: str) -> Figure:
    cells = {"best": heat.best, "tried": heat.tried, "passed": heat.passed}[what]
    notes = [
        [
            f"{passed} of {tried} passed" + (f", best {top:.3f}×" if top is not None else "")
            for top, tried, passed in zip(*row, strict=True)
        ]
        for row in zip(heat.best, heat.tried, heat.passed, strict=True)
    ]
    data = {
        "type": "heatmap",
        "x": [label(name) for name in heat.x],
        "y": [label(name) for name in heat.y],
        "z": cells,
        "text": notes,
        "colorscale": "Viridis",
        "hovertemplate": "%{x}, %{y}: %{text}<extra></extra>",
        "colorbar": {"title": {"text": what}},
        "xgap": 1,
        "ygap": 1,
    }
    made = layout(label(x), label(y))
    for axis in ("xaxis", "yaxis"):
        made[axis] |= {"type": "category", "showgrid": False}
    return {"data": [data], "layout": made}


def bars(values: Sequence[tuple[str, float]], x: str) -> Figure:
    """Draw horizontal bars, the first on top."""
    made = layout(x, "")
    made["yaxis"]["autorange"] = "reversed"
    made["yaxis"]["type"] = "category"
    data = {
        "type": "bar",
        "orientation": "h",
        "x": [value for _, value in values],
        "y": [label(name) for name, _ in values],
        "hovertemplate": "%{y}: %{x:.3f}<extra></extra>",
    }
    return {"data": [data], "layout": made}


def latencies(rows: Sequence[Mapping[str, Any]], baselines: Sequence[str]) -> Figure:
    """Draw a kernel's latency beside every baseline's and the roofline, workload by workload, in microseconds."""
    names = [label(row["workload"] + (" (held out)" if row["held_out"] else "")) for row in rows]
    mine = {
        "type": "bar",
        "name": "candidate",
        "x": names,
        "y": [row["latency_us"] for row in rows],
        "error_y": {"type": "data", "array": [row["latency_us"] * row["spread"] for row in rows]},
    }
    theirs = [
        {"type": "bar", "name": label(name), "x": names, "y": [row["baselines"].get(name) for row in rows]}
        for name in baselines
    ]
    floor = {
        "type": "scatter",
        "mode": "markers",
        "name": "roofline",
        "x": names,
        "y": [row["roofline_us"] for row in rows],
        "marker": {"symbol": "line-ew-open", "size": 26, "line": {"width": 3}},
    }
    made = layout("", "µs", barmode="group")
    made["yaxis"]["type"] = "log"
    made["yaxis"]["dtick"] = "D2"
    return {"data": [mine, *theirs, floor], "layout": made}
