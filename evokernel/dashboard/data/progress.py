"""How one run went: its best over what was spent, outcomes over time, pace, budget, and what each operator yields."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from evokernel.budget import Budget, Spent
from evokernel.config import validate
from evokernel.dashboard.data.follow import Snapshot
from evokernel.errors import EvokernelError
from evokernel.measurement import geometric_mean

BINS = 60
AXES = {"evaluations": "evaluations", "device": "GPU or CPU seconds", "usd": "dollars", "wall": "seconds"}


def merged(scores: Sequence[float]) -> float | None:
    """Return the geometric mean of several classes' scores; None for none."""
    positive = [score for score in scores if score > 0]
    return geometric_mean([(score, 1.0) for score in positive]) if positive else None


def spending(snapshot: Snapshot, axis: str) -> Sequence[float]:
    """Return what had been spent of an axis after each evaluation."""
    if axis == "evaluations":
        return range(1, len(snapshot.evaluated) + 1)
    return {"wall": snapshot.wall_s, "device": snapshot.device_s, "usd": snapshot.usd}[axis]


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
    for name, part in snapshot.parts.items():
        if part.steps:
            last = part.steps[-1]
            found[name] = Curve(
                [*(spent[step.evaluation - 1] for step in part.steps), spent[-1]],
                [*(step.best for step in part.steps), last.best],
                [*(step.leader for step in part.steps), last.leader],
            )
    return found


def at(curve: Curve, x: float) -> float | None:
    """Return a step line's height at x; None before its first step."""
    index = bisect_right(curve.x, x) - 1
    return curve.y[index] if index >= 0 else None


def pace(snapshot: Snapshot) -> dict[str, Any]:
    """Cut a run's time into at most 60 spans: minutes from the start, candidates a minute, busy share, outcomes."""
    ends = snapshot.wall_s
    if not ends:
        return {"minutes": [], "per_minute": [], "busy": [], "outcomes": {}}
    count = min(BINS, len(ends))
    width_s = max(ends[-1], 1e-6) / count
    cuts = [0, *(bisect_right(ends, width_s * (i + 1)) for i in range(count - 1)), len(ends)]
    spans = [slice(start, max(start, end)) for start, end in pairwise(cuts)]
    device_s = [0.0, *snapshot.device_s]
    counted = [Counter(snapshot.outcomes[span]) for span in spans]
    return {
        "minutes": [(i + 0.5) * width_s / 60 for i in range(count)],
        "per_minute": [60 * (span.stop - span.start) / width_s for span in spans],
        # A measurement counts where it ended: a span may seem more than busy.
        "busy": [min(1.0, (device_s[span.stop] - device_s[span.start]) / width_s) for span in spans],
        "outcomes": {name: [c[name] for c in counted] for name in dict.fromkeys(snapshot.outcomes)},
    }


def budget(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return cap, spent and share of every cap that the run's configuration sets."""
    run = snapshot.run
    try:
        caps = validate(dict(run.config), f"run {run.name}").budget.budget()
    except EvokernelError:  # a configuration of another version, or none
        caps = Budget()
    device_s = snapshot.device_s[-1] if snapshot.device_s else 0.0
    usd = sum(operator.cost_usd for operator in snapshot.operators.values())
    spent = Spent(run.elapsed_s, len(snapshot.evaluated), device_s, usd, snapshot.tokens)
    return [
        {"cap": name, "limit": cap, "spent": getattr(spent, name), "share": getattr(spent, name) / cap if cap else 1.0}
        for name, cap in caps.caps().items()
    ]


def queues(snapshot: Snapshot, unclaimed: int) -> dict[str, int]:
    """Count what was proposed and has no verdict, and what was handed in and not taken up."""
    return {"in flight": snapshot.pending, "handed in": unclaimed}


def operators(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return what each operator proposed and what came of it; `led` counts new leaders of a class."""
    found: dict[str, dict[str, Any]] = {
        name: {"operator": name, "scored": 0, "best": None} | asdict(y) for name, y in snapshot.operators.items()
    }
    for entry in snapshot.entries.values():
        if entry.score is not None:
            row = found[entry.row.operator]
            row["scored"] += 1
            row["best"] = max(row["best"] or 0.0, entry.score)
    return sorted(found.values(), key=lambda row: -(row["best"] or 0.0))
