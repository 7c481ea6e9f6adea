"""What the knobs do: heat maps of two of them, their importance, and which cells of the archive were filled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evokernel.dashboard.data.follow import BODY, Entry, Snapshot
from evokernel.dashboard.data.leaderboard import sortable


def key(value: Any) -> str:
    return "–" if value is None else str(value)


@dataclass(frozen=True)
class Heat:
    """Cells by the values of two knobs; rows are y, columns x. None where nothing was tried or passed."""

    x: list[str]
    y: list[str]
    best: list[list[float | None]]
    tried: list[list[int]]
    passed: list[list[int]]


def value_of(entry: Entry, axis: str) -> Any:
    return entry.row.body[:8] if axis == BODY else entry.knobs.get(axis)


def varied(snapshot: Snapshot, shape_class: str) -> list[str]:
    """Return the knobs that took more than one value, and the body if there were several."""

    part = snapshot.parts[shape_class]
    return [name for name in part.first if name in part.varied]


def heat(snapshot: Snapshot, shape_class: str, x: str, y: str) -> Heat:
    """Return the best score, and how many were tried and passed, at every pair of values."""

    def make() -> Heat:
        cells: dict[tuple[str, str], list[Entry]] = {}
        seen: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
        for entry in snapshot.parts[shape_class].entries:
            values = value_of(entry, x), value_of(entry, y)
            for known, value in zip(seen, values, strict=True):
                known.setdefault(key(value), value)
            cells.setdefault((key(values[0]), key(values[1])), []).append(entry)
        xs, ys = (sorted(known, key=lambda name: sortable(known[name])) for known in seen)
        rows = [[cells.get((a, b), []) for a in xs] for b in ys]
        scores = [[[e.score for e in cell if e.score is not None] for cell in row] for row in rows]
        return Heat(
            xs,
            ys,
            [[max(cell, default=None) for cell in row] for row in scores],
            [[len(cell) for cell in row] for row in rows],
            [[len(cell) for cell in row] for row in scores],
        )

    found: Heat = snapshot.remember(("heat", shape_class, x, y), make)
    return found


@dataclass(frozen=True)
class Coverage:
    """How much of the archive's grid was reached: cells by body and by the configured axes."""

    axes: list[str]
    filled: int  # cells with a scored candidate
    tried: int
    possible: int  # by the values seen so far
    growth: list[tuple[int, int]]  # evaluations, cells filled


def coverage(snapshot: Snapshot, shape_class: str) -> Coverage:
    axes = archive_axes(snapshot)

    def make() -> Coverage:
        cells = {e.id: (e.row.body, *map(e.knobs.get, axes)) for e in snapshot.parts[shape_class].entries}
        tried = set(cells.values())
        filled: set[tuple[Any, ...]] = set()
        growth: list[tuple[int, int]] = []
        for number, entry in enumerate(snapshot.evaluated, 1):
            if entry.score is None or (cell := cells.get(entry.id)) is None or cell in filled:
                continue
            filled.add(cell)
            growth.append((number, len(filled)))
        possible = math.prod(len(set(values)) for values in zip(*tried, strict=True))
        return Coverage(axes, len(filled), len(tried), possible, growth)

    found: Coverage = snapshot.remember(("coverage", shape_class), make)
    return found


def archive_axes(snapshot: Snapshot) -> list[str]:
    archive = snapshot.run.config.get("archive")
    axes = archive.get("axes") if isinstance(archive, dict) else None
    return [str(axis) for axis in axes] if isinstance(axes, Sequence) and not isinstance(axes, str) else []
