"""A run as one self-contained HTML file: the pages' own drawings of it, without a server."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dash import html

from evokernel import __version__
from evokernel.dashboard import figures, static, ui
from evokernel.dashboard.data.details import details
from evokernel.dashboard.data.follow import Follower
from evokernel.dashboard.data.importance import importances
from evokernel.dashboard.pages import candidate, compare, leaderboard, run
from evokernel.store import Store

STYLE = Path(__file__).parent / "assets" / "style.css"


def report(url: str, name: str | None) -> tuple[str, str]:
    """Return a run's name and its report; StoreError when there is no such run."""
    store = Store.open(url, create=False, read_only=True)
    follower = Follower(store)
    snapshot = follower.follow(store.run(name))
    title = f"Run {snapshot.run.name}"
    parts: list[Any] = [
        html.P(f"evokernel {__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC", className="note"),
        run.head(snapshot, {}),
        ui.section("Best", run.best(snapshot, "evaluations")),
        *run.pace(snapshot),
        run.budget(snapshot),
        run.yields(snapshot),
        compare.portfolio(snapshot),
    ]
    for shape_class in snapshot.shape_classes:
        parts.append(ui.section(f"Leaderboard of {shape_class}", leaderboard.top(snapshot, shape_class)))
        if ranked := importances(snapshot, shape_class):
            chart = ui.graph(figures.bars(ranked, "share"), "knob importance", max(220, 90 + 22 * len(ranked)))
            parts.append(ui.section(f"Knob importance in {shape_class}", chart))
    for shape_class in snapshot.shape_classes:
        leader = snapshot.leader(shape_class)
        if leader and (found := details(follower, leader.id)):
            parts.append(html.H1(f"Leader of {shape_class}"))
            parts += candidate.page(found)
    return snapshot.run.name, static.document(title, parts, STYLE.read_text())
