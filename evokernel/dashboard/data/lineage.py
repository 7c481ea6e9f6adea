"""Who descends from whom, laid out as a forest: a node stands under its first parent, its depth is its generation."""

from __future__ import annotations

from dataclasses import dataclass

from evokernel.dashboard.data.details import ancestry
from evokernel.dashboard.data.follow import Entry, Snapshot

DEFAULT_LIMIT = 1000
LIMIT = 10_000  # a canvas with more is no longer pleasant to move
PER_ROW = 60  # candidates without family stand together in rows of so many


@dataclass(frozen=True)
class Node:
    entry: Entry
    x: float
    y: float
    champion: bool  # the champion, or one of its ancestors


@dataclass(frozen=True)
class Forest:
    nodes: list[Node]
    edges: list[tuple[int, int, bool]]  # parent, child, on the champion's path
    left_out: int


def forest(snapshot: Snapshot, shape_class: str, limit: int = DEFAULT_LIMIT) -> Forest:
    """Lay out the champion's line, then the best candidates and the latest, up to the limit."""
    members = snapshot.parts[shape_class].entries
    leader = snapshot.leader(shape_class)
    path = {e.id for e in ancestry(snapshot, leader)} if leader else set()
    chosen = {number: snapshot.entries[number] for number in sorted(path)[-limit:]}
    ranked = sorted(members, key=lambda e: -(e.score or 0.0))[: limit // 2]
    for entry in (*ranked, *reversed(members)):
        if len(chosen) >= limit:
            break
        chosen.setdefault(entry.id, entry)
    places = _places(chosen)
    nodes = [Node(entry, *places[number], number in path) for number, entry in sorted(chosen.items())]
    edges = [
        (parent, number, parent in path and number in path)
        for number, entry in sorted(chosen.items())
        for parent in entry.parents
        if parent in chosen
    ]
    return Forest(nodes, edges, max(0, len(members) - len(chosen)))


def _places(chosen: dict[int, Entry]) -> dict[int, tuple[float, float]]:
    """Give each node a place: leaves side by side, parents over the middle of their children."""
    children: dict[int, list[int]] = {}
    roots = []
    for number, entry in sorted(chosen.items()):
        parent = next((p for p in entry.parents if p in chosen), None)
        if parent is None:
            roots.append(number)
        else:
            children.setdefault(parent, []).append(number)
    places: dict[int, tuple[float, float]] = {}
    column, deepest = 0.0, 0
    for root in (r for r in roots if r in children):
        order: list[tuple[int, int]] = []
        waiting = [(root, 0)]
        while waiting:
            number, depth = waiting.pop()
            order.append((number, depth))
            waiting += [(child, depth + 1) for child in reversed(children.get(number, ()))]
        for number, depth in order:  # leaves from left to right
            deepest = max(deepest, depth)
            if number not in children:
                places[number] = (column, depth)
                column += 1
        for number, depth in reversed(order):
            if number in children:
                spots = [places[child][0] for child in children[number]]
                places[number] = ((min(spots) + max(spots)) / 2, depth)
        column += 1
    alone = [r for r in roots if r not in children]
    width = max(PER_ROW, int(column))
    first_row = deepest + 1 if places else 0
    for i, number in enumerate(alone):
        places[number] = (float(i % width), float(first_row + i // width))
    return places
