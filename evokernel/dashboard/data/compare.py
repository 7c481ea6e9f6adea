"""Runs side by side at equal budget, and each shape's kernel beside every baseline."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from evokernel.dashboard.data.details import timings
from evokernel.dashboard.data.follow import Snapshot
from evokernel.dashboard.data.progress import at, curves, merged, spending


def equal_budget(snapshots: Sequence[Snapshot], axis: str) -> tuple[float, list[dict[str, Any]]]:
    """Return the largest budget that all the runs spent, and what each had found by then, by shape class.

    A run without a candidate in some class that another run searched has no value for `all`: it would not compare.
    """
    parts = {name for s in snapshots for name in s.shape_classes}
    spent = {s.run.name: spending(s, axis) for s in snapshots}
    ends = [found[-1] for found in spent.values() if found]
    limit = min(ends, default=0.0)
    rows = []
    for snapshot in snapshots:
        best = {name: at(curve, limit) for name, curve in curves(snapshot, axis).items()}
        known = {name: value for name, value in best.items() if value is not None}
        rows.append(
            {
                "run": snapshot.run.name,
                "device": snapshot.run.device_model,
                "evaluations": bisect_right(spent[snapshot.run.name], limit),
                "all": merged(list(known.values())) if known.keys() >= parts else None,
                **known,
            }
        )
    return limit, sorted(rows, key=lambda row: -(row["all"] or 0.0))


def portfolio(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return a row for every workload of every class: its kernel's latency, each baseline's, and the speedup."""
    found = []
    for name in snapshot.shape_classes:
        if (leader := snapshot.leader(name)) is None:
            continue
        found += [{"shape_class": name, "candidate": leader.id, **row} for row in timings(snapshot, leader)]
    return found
