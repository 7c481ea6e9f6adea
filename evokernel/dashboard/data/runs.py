"""One line a run: how it stands, what it found, what it cost."""

from __future__ import annotations

from collections import Counter
from typing import Any

from evokernel.dashboard.data.follow import Follower, Snapshot
from evokernel.dashboard.data.progress import merged

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
        "evaluations": len(snapshot.evaluations),
        "outcomes": dict(Counter(e.outcome for e in snapshot.evaluations).most_common()),
        "cost_usd": sum(entry.row.cost_usd for entry in snapshot.entries.values()),
        "device_s": sum(e.device_seconds for e in snapshot.evaluations),
        "started": f"{run.started_at:%Y-%m-%d %H:%M}",
        "spark": spark(snapshot),
    }


def spark(snapshot: Snapshot) -> list[float]:
    """Return the best over the evaluations, all classes together, at no more than 40 points."""
    best: dict[str, float] = {}
    found: list[float] = []
    step = max(1, len(snapshot.evaluations) // SPARK_POINTS)
    for evaluation in snapshot.evaluations:
        if evaluation.best is not None:
            best[evaluation.entry.row.shape_class] = evaluation.best
        if evaluation.number % step == 0 and (value := merged(list(best.values()))) is not None:
            found.append(value)
    return found
