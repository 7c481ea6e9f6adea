"""What the knobs do."""

from __future__ import annotations

from typing import Any

from dash import html

from evokernel.dashboard import figures, ui
from evokernel.dashboard.data import landscape
from evokernel.dashboard.data.follow import BODY, Snapshot
from evokernel.dashboard.data.importance import importances
from evokernel.dashboard.view import View

PATH, TITLE, LIVE = "/landscape", "Landscape", False
WHAT = {"best": "best speedup", "tried": "tried", "passed": "scored"}


def draw(view: View) -> Any:
    snapshot = view.snapshot
    if snapshot is None or not snapshot.entries:
        return ui.section("Landscape", ui.nothing("Nothing was proposed yet."))
    name = view.shape_class(snapshot)
    knobs = landscape.varied(snapshot, name)
    ranked = importances(snapshot, name)
    classes = ui.tabs("shape class", "class", snapshot.shape_classes, name, view)
    if len(knobs) < 2:
        return ui.section("Landscape", classes, ui.nothing("Fewer than two knobs have varied so far."))
    first = [*(knob for knob, _ in ranked if knob in knobs)]
    order = [*first, *(knob for knob in knobs if knob not in first)]
    x = view.choice("x", order)
    y = view.choice("y", [knob for knob in order if knob != x])
    what = view.choice("show", list(WHAT))
    heat = landscape.heat(snapshot, name, x, y)
    tall = max(320, min(720, 120 + 26 * len(heat.y)))
    return [
        ui.section(
            "Landscape",
            classes,
            html.Div(
                [
                    ui.choice("across", "x", order, x),
                    ui.choice("down", "y", [knob for knob in order if knob != x], y),
                    ui.tabs("show", "show", WHAT, what, view),
                ],
                className="controls",
            ),
            ui.graph(figures.heat_map(heat, x, y, what), f"{WHAT[what]} by {x} and {y}", tall),
        ),
        html.Div([_importance(ranked), _coverage(snapshot, name)], className="pair"),
    ]


def _importance(ranked: list[tuple[str, float]]) -> Any:
    if not ranked:
        return ui.section("Knob importance", ui.nothing("Too few scored candidates to tell."))
    height = max(220, 90 + 22 * len(ranked))
    return ui.section(
        "Knob importance",
        ui.graph(figures.bars(ranked, "share"), "knob importance", height),
        note="PED-ANOVA (optuna): what tells the best tenth apart. Knobs that only some candidates have are left out.",
    )


def _coverage(snapshot: Snapshot, name: str) -> Any:
    found = landscape.coverage(snapshot, name)
    axes = ", ".join([BODY, *found.axes])
    facts = ui.cards(
        {
            "cells by": axes,
            "filled": f"{found.filled:,}",
            "tried": f"{found.tried:,}",
            "possible": f"{found.possible:,}",
        }
    )
    if not found.growth:
        return ui.section("Archive coverage", facts)
    x, y = zip(*found.growth, strict=True)
    chart = ui.graph(figures.line(x, y, "evaluations", "cells", steps=True), "cells filled over evaluations", 260)
    return ui.section("Archive coverage", facts, chart)
