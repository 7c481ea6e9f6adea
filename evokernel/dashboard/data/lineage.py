"""Who descends from whom, laid out as a forest: a node stands under its first parent."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from evokernel.dashboard.data.details import ancestry
from evokernel.dashboard.data.follow import Entry, Snapshot

DEFAULT_LIMIT = 1000
LIMIT = 10_000  # a canvas with more is no longer pleasant to move
ASPECT = 2.5  # width over height of the whole, as of the part of a screen that it gets
GAP = 2.0  # rows between a parent and its children


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


@dataclass
class _Tree:
    """One tree, laid out from its own corner."""

    places: dict[int, tuple[float, float]]
    width: float
    height: float


def _places(chosen: Mapping[int, Entry]) -> dict[int, tuple[float, float]]:
    """Give each node a place: trees side by side in shelves about as wide as a screen, loners below them."""
    children: dict[int, list[int]] = {}
    roots = []
    for number, entry in sorted(chosen.items()):
        parent = next((p for p in entry.parents if p in chosen), None)
        if parent is None:
            roots.append(number)
        else:
            children.setdefault(parent, []).append(number)
    trees = [_tree(root, children) for root in roots if root in children]
    alone = [root for root in roots if root not in children]
    area = sum(tree.width * tree.height for tree in trees) + len(alone)
    width = max([math.sqrt(area * ASPECT), *(tree.width for tree in trees)])
    places: dict[int, tuple[float, float]] = {}
    x = y = shelf = 0.0
    for tree in sorted(trees, key=lambda tree: -tree.height):
        if x and x + tree.width > width:
            x, y, shelf = 0.0, y + shelf + GAP, 0.0
        for number, (dx, dy) in tree.places.items():
            places[number] = (x + dx, y + dy)
        x, shelf = x + tree.width + 1, max(shelf, tree.height)
    below = y + shelf + GAP if trees else 0.0
    columns = max(1, int(width))
    for i, number in enumerate(alone):
        places[number] = (float(i % columns), below + i // columns)
    return places


def _tree(root: int, children: Mapping[int, list[int]]) -> _Tree:
    """Put parents over the middle of their children; those that have none themselves stand together in a block."""
    order: list[tuple[int, int]] = []
    waiting = [(root, 0)]
    while waiting:
        number, depth = waiting.pop()
        order.append((number, depth))
        waiting += [(child, depth + 1) for child in reversed(children.get(number, ())) if child in children]
    blocks = {number: [c for c in children[number] if c not in children] for number, _ in order}
    rows = [0.0] * (max(depth for _, depth in order) + 1)
    for number, depth in order:
        rows[depth] = max(rows[depth], math.ceil(len(blocks[number]) / _columns(blocks[number])))
    tops = [0.0, *itertools.accumulate(row + GAP for row in rows)]  # where each depth begins
    places: dict[int, tuple[float, float]] = {}
    spans: dict[int, tuple[float, float]] = {}
    column = 0.0
    for number, depth in order:  # blocks from left to right
        if block := blocks[number]:
            wide = _columns(block)
            for i, leaf in enumerate(block):
                places[leaf] = (column + i % wide, tops[depth] + GAP + i // wide)
            spans[number] = (column, column + wide - 1)
            column += wide + 0.5
    for number, depth in reversed(order):
        ends = [spans[number]] if number in spans else []
        ends += [spans[child] for child in children[number] if child in spans]
        spans[number] = (min(low for low, _ in ends), max(high for _, high in ends))
        places[number] = (sum(spans[number]) / 2, tops[depth])
    return _Tree(places, column, tops[-1])


def _columns(block: list[int]) -> int:
    return max(1, math.ceil(math.sqrt(len(block))))
