"""One run: what it found over what it spent, how it goes, and what each operator yields."""

from __future__ import annotations

from typing import Any

from dash import html

from evokernel.dashboard import figures, ui
from evokernel.dashboard.data import progress
from evokernel.dashboard.data.follow import Snapshot
from evokernel.dashboard.data.runs import row
from evokernel.dashboard.view import View
from evokernel.store.following import unclaimed

PATH, TITLE, LIVE = "/run", "Run", True


def draw(view: View) -> Any:
    snapshot = view.snapshot
    if snapshot is None:
        return ui.section("Run", ui.nothing("No run yet. Start one: evokernel run"))
    axis = view.choice("over", list(progress.AXES))
    over = ui.tabs("over", "over", progress.AXES, axis, view)
    return [
        head(snapshot, progress.queues(snapshot, unclaimed(view.follower.store.engine, snapshot.run.id))),
        ui.section("Best", over, best(snapshot, axis)),
        *pace(snapshot),
        budget(snapshot),
        yields(snapshot),
    ]


def head(snapshot: Snapshot, queues: dict[str, int]) -> Any:
    run, facts = snapshot.run, row(snapshot)
    status = html.Span(run.status, className=f"status {run.status}")
    leaders = [
        {"shape_class": name, "candidate": leader.id, "score": leader.score, "held_out": leader.held_out}
        for name in snapshot.shape_classes
        if (leader := snapshot.leader(name))
    ]
    columns = {"shape_class": "shape class", "candidate": "leader", "score": "speedup", "held_out": "held out"}
    cells: dict[str, ui.Cell] = {"candidate": ui.candidate, "score": ui.speedup, "held_out": ui.speedup}
    return ui.section(
        f"Run {run.name}",
        ui.cards(
            {
                "status": status,
                "device": run.device_model,
                "best": ui.speedup(facts["best"]),
                "held out": ui.speedup(facts["held_out"]),
                "evaluations": f"{len(snapshot.evaluated):,}",
                "wall": ui.seconds(run.elapsed_s),
                "device time": ui.seconds(facts["device_s"]),
                "cost": f"${facts['cost_usd']:,.2f}",
                **{name: f"{count:,}" for name, count in queues.items()},
            }
        ),
        ui.outcomes(facts["outcomes"]),
        ui.table(columns, leaders, cells, heated=("score", "held_out"))
        if leaders
        else ui.nothing("No candidate has a score yet."),
    )


def best(snapshot: Snapshot, axis: str) -> Any:
    curves = progress.curves(snapshot, axis)
    if not curves:
        return ui.nothing("No candidate has a score yet.")
    return ui.graph(figures.best(curves, progress.AXES[axis]), f"best speedup over {progress.AXES[axis]}")


def pace(snapshot: Snapshot) -> list[Any]:
    found = progress.pace(snapshot)
    if not found["minutes"]:
        return []
    minutes, busy = found["minutes"], [100 * share for share in found["busy"]]
    return [
        ui.section("Outcomes over time", ui.graph(figures.outcomes(found), "outcomes over time", 260)),
        html.Div(
            [
                ui.section(
                    "Candidates a minute",
                    ui.graph(figures.line(minutes, found["per_minute"], "minutes", "a minute"), "pace", 220),
                ),
                ui.section(
                    "Device busy",
                    ui.graph(figures.line(minutes, busy, "minutes", "%", top=105), "busy share of the device", 220),
                ),
            ],
            className="pair",
        ),
    ]


def budget(snapshot: Snapshot) -> Any:
    found = progress.budget(snapshot)
    if not found:
        return ui.section("Budget", ui.nothing("The stored configuration sets no cap."))
    bars = [
        html.Div(
            [
                html.Span(f"{each['cap']}: {ui.number(each['spent'])} of {ui.number(each['limit'])}"),
                html.Progress(value=str(min(1.0, each["share"])), max="1", **{"aria-label": each["cap"]}),
            ],
            className="budget",
        )
        for each in found
    ]
    return ui.section("Budget", *bars)


def yields(snapshot: Snapshot) -> Any:
    columns = {
        "operator": "operator",
        "proposed": "proposed",
        "scored": "scored",
        "led": "became leader",
        "best": "best",
        "device_s": "device time",
        "cost_usd": "cost",
    }
    cells: dict[str, ui.Cell] = {
        "best": ui.speedup,
        "device_s": ui.seconds,
        "cost_usd": lambda usd: f"${usd:,.2f}",
    }
    found = progress.operators(snapshot)
    if not found:
        return ui.section("Operators", ui.nothing("Nothing was proposed yet."))
    return ui.section("Operators", ui.table(columns, found, cells, heated=("best",)))
