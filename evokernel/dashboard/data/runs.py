"""One line a run: how it stands, what it found, what it cost."""

from __future__ import annotations

from collections import Counter
from typing import Any

from evokernel.dashboard.data import progress
from evokernel.dashboard.data.follow import Follower, Snapshot
from evokernel.dashboard.data.progress import at, merged

SPARK_POINTS = 40


def overview(follower: Follower) -> list[dict[str, Any]]:
    """Return a row for every run, the latest first."""
    return [row(follower.follow(run)) for run in follower.runs()]


def row(snapshot: Snapshot) -> dict[str, Any]:
    return {**snapshot.remember("overview", lambda: _row(snapshot)), "status": snapshot.run.status}


def _row(snapshot: Snapshot) -> dict[str, Any]:
    run = snapshot.run
    leaders = [leader for name in snapshot.shape_classes if (leader := snapshot.leader(name))]
    held_out = [leader.held_out for leader in leaders if leader.held_out is not None]
    return {
        "run": run.name,
        "device": run.device_model,
        "best": merged([leader.score for leader in leaders if leader.score]),
        "held_out": merged(held_out),
        "classes": f"{len(leaders)} of {len(snapshot.shape_classes)}",
        "evaluations": len(snapshot.evaluated),
        "outcomes": dict(Counter(snapshot.outcomes).most_common()),
        "cost_usd": sum(operator.cost_usd for operator in snapshot.operators.values()),
        "device_s": snapshot.device_s[-1] if snapshot.device_s else 0.0,
        "started": f"{run.started_at:%Y-%m-%d %H:%M}",
        "spark": spark(snapshot),
    }


def spark(snapshot: Snapshot) -> list[float]:
    """Return the best over the evaluations, all classes together, at no more than 40 points."""
    count = len(snapshot.evaluated)
    points = (
        [count * (i + 1) // SPARK_POINTS for i in range(SPARK_POINTS)] if count > SPARK_POINTS else range(1, count + 1)
    )
    curves = progress.curves(snapshot, "evaluations").values()
    bests = [[best for curve in curves if (best := at(curve, point)) is not None] for point in points]
    return [value for best in bests if (value := merged(best)) is not None]
