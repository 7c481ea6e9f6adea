"""Who descends from whom: colour tells outcome or score, shape the operator, and the champion's line stands out."""

from __future__ import annotations

from typing import Any

import dash_cytoscape as cytoscape
from dash import Dash, Input, Output, html, no_update

from evokernel.dashboard import ui
from evokernel.dashboard.data import lineage
from evokernel.dashboard.data.follow import Entry, Follower
from evokernel.dashboard.view import View

PATH, TITLE, LIVE = "/lineage", "Lineage", False
SHAPES = ("ellipse", "rectangle", "triangle", "diamond", "hexagon", "star", "pentagon", "octagon", "vee")
NAMES = ("●", "■", "▲", "◆", "⬢", "★", "⬟", "⯃", "▼")
LIMITS = {"1000": "1,000", "3000": "3,000", "10000": "10,000"}
SCALE = 26  # pixels between neighbours, before any zoom
CHAMPION = "#e0218a"
COLD, WARM = (68, 84, 160), (250, 205, 60)


def draw(view: View) -> Any:
    snapshot = view.snapshot
    if snapshot is None or not snapshot.entries:
        return ui.section("Lineage", ui.nothing("Nothing was proposed yet."))
    name = view.shape_class(snapshot)
    colour = view.choice("colour", ["score", "outcome"])
    limit = view.choice("most", list(LIMITS))
    found = lineage.forest(snapshot, name, int(limit))
    operators = list(dict.fromkeys(e.row.operator for e in snapshot.entries.values()))
    shapes = {operator: SHAPES[i % len(SHAPES)] for i, operator in enumerate(operators)}
    signs = ", ".join(f"{NAMES[i % len(NAMES)]} {operator}" for i, operator in enumerate(operators))
    left_out = (
        f" {found.left_out:,} more are left out, so that some stand without their parents." if found.left_out else ""
    )
    leader = snapshot.leader(name)
    champion = ["Champion: ", ui.candidate(leader.id), ". "] if leader else []
    return ui.section(
        "Lineage",
        ui.tabs("shape class", "class", snapshot.shape_classes, name, view),
        html.Div(
            [
                ui.tabs("colour", "colour", ["score", "outcome"], colour, view),
                ui.tabs("at most", "most", LIMITS, limit, view),
            ],
            className="controls",
        ),
        html.P([*champion, f"{len(found.nodes):,} candidates; {signs}.{left_out} A click shows one."]),
        html.P(id="lineage-picked", className="note", **{"aria-live": "polite"}),
        cytoscape.Cytoscape(
            id="lineage",
            elements=elements(found, colour, shapes),
            layout={"name": "preset", "fit": True, "padding": 20},
            stylesheet=styles(found),
            style={"width": "100%", "height": "60vh"},
            className="graph",
            minZoom=0.01,
            maxZoom=2,
            autoungrabify=True,
            boxSelectionEnabled=False,
        ),
    )


def styles(forest: lineage.Forest) -> list[dict[str, Any]]:
    """Return the looks; the champion's line grows with the forest, so that it is seen however far away."""
    extent = max((max(node.x, node.y * lineage.ASPECT) for node in forest.nodes), default=0) * SCALE
    line, size = max(5, extent / 1000), max(26, extent / 250)
    edge = {"width": 1.5, "line-color": "#8a93a0", "curve-style": "haystack", "opacity": 0.6}
    return [
        {"selector": "node", "style": {"width": 18, "height": 18, "background-color": "data(colour)"}},
        {"selector": "node", "style": {"shape": "data(shape)"}},
        {"selector": "edge", "style": edge},
        {"selector": "edge.path", "style": {"width": line, "line-color": CHAMPION, "opacity": 1}},
        {"selector": "node.path", "style": {"width": size, "height": size, "border-color": CHAMPION}},
        {"selector": "node.path", "style": {"border-width": size / 6}},
        {"selector": "node:selected", "style": {"border-width": 5, "border-color": "#4c8bf5"}},
    ]


def elements(forest: lineage.Forest, colour: str, shapes: dict[str, str]) -> list[dict[str, Any]]:
    scores = [node.entry.score for node in forest.nodes if node.entry.score is not None]
    low, high = min(scores, default=0.0), max(scores, default=1.0)
    nodes = [
        {
            "data": {
                "id": str(node.entry.id),
                "colour": _colour(node.entry, colour, low, high),
                "shape": shapes[node.entry.row.operator],
            },
            "position": {"x": node.x * SCALE, "y": node.y * SCALE},
            "classes": "path" if node.champion else "",
        }
        for node in forest.nodes
    ]
    edges = [
        {"data": {"source": str(parent), "target": str(child)}, "classes": "path" if path else ""}
        for parent, child, path in forest.edges
    ]
    return [*nodes, *edges]


def _colour(entry: Entry, colour: str, low: float, high: float) -> str:
    if colour == "outcome" or entry.score is None:
        return ui.OUTCOMES.get(entry.outcome, "#888")
    share = (entry.score - low) / (high - low) if high > low else 1.0
    mixed = (round(a + (b - a) * share) for a, b in zip(COLD, WARM, strict=True))
    return "rgb({},{},{})".format(*mixed)


def register(app: Dash, follower: Follower) -> None:
    @app.callback(Output("lineage-picked", "children"), Input("lineage", "tapNodeData"))
    def picked(data: dict[str, Any] | None) -> Any:
        if not data:
            return no_update
        with follower.lock:
            found = follower.of_candidate(int(data["id"]))
        if found is None:
            return no_update
        entry = found[1]
        words = f": {entry.row.operator}, {entry.outcome}, {ui.speedup(entry.score)} {entry.row.note}"
        return ["Candidate ", ui.candidate(entry.id), words]
