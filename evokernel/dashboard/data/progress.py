"""How one run went: its best over what was spent, outcomes over time, pace, budget, and what each operator yields."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from evokernel.budget import Budget, Spent
from evokernel.config import validate
from evokernel.dashboard.data.follow import Evaluation, Snapshot
from evokernel.errors import EvokernelError

BINS = 60
AXES = {"evaluations": "evaluations", "device": "GPU or CPU seconds", "usd": "dollars", "wall": "minutes"}


def merged(scores: Sequence[float]) -> float | None:
    """Return the geometric mean of several classes' scores; None for none."""
    positive = [score for score in scores if score > 0]
    return math.exp(sum(map(math.log, positive)) / len(positive)) if positive else None


def spending(snapshot: Snapshot, axis: str) -> list[float]:
    """Return what had been spent of an axis after each evaluation."""
    if axis == "evaluations":
        return [float(e.number) for e in snapshot.evaluations]
    if axis == "wall":
        start = snapshot.run.started_at
        return [(e.at - start).total_seconds() / 60 for e in snapshot.evaluations]
    total, found = 0.0, []
    for e in snapshot.evaluations:
        total += e.cost_usd if axis == "usd" else e.device_seconds
        found.append(total)
    return found


@dataclass
class Curve:
    """A step line: the best of a class at the moments when it changed, and at the end."""

    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    candidates: list[int] = field(default_factory=list)


def curves(snapshot: Snapshot, axis: str) -> dict[str, Curve]:
    """Return the best over an axis (AXES) for every shape class that has one."""
    found: dict[str, Curve] = {}
    spent = spending(snapshot, axis)
    for x, e in zip(spent, snapshot.evaluations, strict=True):
        if e.best is None or e.leader is None:
            continue
        curve = found.setdefault(e.entry.row.shape_class, Curve())
        if not curve.y or curve.y[-1] != e.best:
            curve.x.append(x)
            curve.y.append(e.best)
            curve.candidates.append(e.leader)
    for curve in found.values():
        curve.x.append(spent[-1])
        curve.y.append(curve.y[-1])
        curve.candidates.append(curve.candidates[-1])
    return found


def bins(snapshot: Snapshot) -> list[list[Evaluation]]:
    """Cut a run's time into at most 60 equal spans; some may be empty."""
    found = snapshot.evaluations
    if not found:
        return []
    start, end = snapshot.run.started_at, found[-1].at
    span = max((end - start).total_seconds(), 1e-6)
    count = min(BINS, len(found))
    cut: list[list[Evaluation]] = [[] for _ in range(count)]
    for e in found:
        cut[min(count - 1, max(0, int((e.at - start).total_seconds() / span * count)))].append(e)
    return cut


def pace(snapshot: Snapshot) -> dict[str, Any]:
    """Return, for each span of time, minutes from the start, candidates a minute, busy share, counts by outcome."""
    cut = bins(snapshot)
    if not cut:
        return {"minutes": [], "per_minute": [], "busy": [], "outcomes": {}}
    width_s = max((snapshot.evaluations[-1].at - snapshot.run.started_at).total_seconds(), 1e-6) / len(cut)
    outcomes: dict[str, list[int]] = {}
    for number, span in enumerate(cut):
        for e in span:
            outcomes.setdefault(e.outcome, [0] * len(cut))[number] += 1
    return {
        "minutes": [(i + 0.5) * width_s / 60 for i in range(len(cut))],
        "per_minute": [60 * len(span) / width_s for span in cut],
        # A measurement counts where it ended: a span may seem more than busy.
        "busy": [min(1.0, sum(e.device_seconds for e in span) / width_s) for span in cut],
        "outcomes": outcomes,
    }


def budget(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return cap, spent and share of every cap that the run's configuration sets."""
    run = snapshot.run
    try:
        caps = validate(dict(run.config), f"run {run.name}").budget.budget()
    except EvokernelError:  # a configuration of another version, or none
        caps = Budget()
    spent = Spent(
        run.elapsed_s,
        len(snapshot.evaluations),
        sum(e.device_seconds for e in snapshot.evaluations),
        sum(entry.row.cost_usd for entry in snapshot.entries.values()),
        sum(entry.row.tokens for entry in snapshot.entries.values()),
    )
    return [
        {"cap": name, "limit": cap, "spent": getattr(spent, name), "share": getattr(spent, name) / cap if cap else 1.0}
        for name, cap in caps.caps().items()
    ]


def queues(snapshot: Snapshot, unclaimed: int) -> dict[str, int]:
    """Count what was proposed and has no verdict, and what was handed in and not taken up."""
    waiting = sum(1 for entry in snapshot.entries.values() if not entry.measurements)
    return {"in flight": waiting, "handed in": unclaimed}


def operators(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return what each operator proposed and what came of it; `led` counts new leaders of a class."""
    found: dict[str, dict[str, Any]] = {}
    for entry in snapshot.entries.values():
        row = found.setdefault(
            entry.row.operator,
            {"operator": entry.row.operator, "proposed": 0, "passed": 0, "led": 0, "best": None, "cost_usd": 0.0}
            | {"device_s": 0.0},
        )
        row["proposed"] += 1
        row["cost_usd"] += entry.row.cost_usd
        row["device_s"] += sum(m.device_seconds for m in entry.measurements)
        if entry.score is not None:
            row["passed"] += 1
            row["best"] = max(row["best"] or 0.0, entry.score)
    leaders: dict[str, int] = {}
    for e in snapshot.evaluations:
        if e.leader is not None and e.leader != leaders.get(e.entry.row.shape_class):
            leaders[e.entry.row.shape_class] = e.leader
            found[snapshot.entries[e.leader].row.operator]["led"] += 1
    return sorted(found.values(), key=lambda row: -(row["best"] or 0.0))
