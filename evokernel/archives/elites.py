"""MAP-Elites: the best candidate of every cell, the cells spanned by knobs that the configuration names."""

from __future__ import annotations

import random
from collections.abc import Sequence

from evokernel.archives import Admission, Archive, Entry
from evokernel.measurement import Record
from evokernel.space import SearchSpace

Cell = tuple[object, ...]


class Elites(Archive):
    """Keeps one candidate per cell (Mouret and Clune, arXiv 1504.04909). Without axes there is one cell per body.

    With several islands, a candidate joins the island of its first parent, or the next in turn, and parents are drawn
    within one island; after every `migrate_every` admissions each island's best is copied to its neighbour.
    """

    def __init__(self, axes: Sequence[str] = (), islands: int = 1, migrate_every: int = 50) -> None:
        if islands < 1:
            raise ValueError(f"islands is {islands}; at least 1")
        if migrate_every < 1:
            raise ValueError(f"migrate_every is {migrate_every}; at least 1")
        self.axes = tuple(axes)
        self.islands: list[dict[Cell, Entry]] = [{} for _ in range(islands)]
        self.migrate_every = migrate_every
        self.home: dict[int, int] = {}  # candidate -> island
        self.admitted = 0

    def cell(self, record: Record) -> Cell:
        genome = record.candidate.genome
        return (genome.body.digest, *(genome.knobs.get(axis) for axis in self.axes))

    def add(self, record: Record, score: float | None) -> Admission:
        candidate = record.candidate
        if score is None:
            self._drop(candidate.id)
            return Admission.REFUSED
        if candidate.id not in self.home:
            family = next((self.home[p] for p in candidate.parents if p in self.home), None)
            self.home[candidate.id] = len(self.home) % len(self.islands) if family is None else family
        entry, home = Entry(record, score), self.islands[self.home[candidate.id]]
        for cells in self.islands:  # copies that migrated are judged anew too
            if cells is not home and self._holds(cells, entry):
                self._place(cells, entry)
        admission = self._place(home, entry)
        if admission is not Admission.REFUSED:
            self.admitted += 1
            if len(self.islands) > 1 and self.admitted % self.migrate_every == 0:
                self._migrate()
        return admission

    def _holds(self, cells: dict[Cell, Entry], entry: Entry) -> bool:
        incumbent = cells.get(self.cell(entry.record))
        return incumbent is not None and incumbent.record.candidate.id == entry.record.candidate.id

    def _place(self, cells: dict[Cell, Entry], entry: Entry) -> Admission:
        cell = self.cell(entry.record)
        incumbent = cells.get(cell)
        if incumbent is None:
            cells[cell] = entry
            return Admission.NEW
        if self._holds(cells, entry):
            cells[cell] = entry  # the same candidate, its score over more measurements: better or worse, it is truer
            return Admission.IMPROVED if entry.score > incumbent.score else Admission.REFUSED
        if entry.score > incumbent.score:
            cells[cell] = entry
            return Admission.IMPROVED
        return Admission.REFUSED

    def _migrate(self) -> None:
        best = [max(cells.values(), key=lambda e: e.score, default=None) for cells in self.islands]
        for index, entry in enumerate(best):
            if entry is not None:
                self._place(self.islands[(index + 1) % len(self.islands)], entry)

    def _drop(self, candidate_id: int) -> None:
        for cells in self.islands:
            for cell, entry in list(cells.items()):
                if entry.record.candidate.id == candidate_id:
                    del cells[cell]

    def entries(self) -> list[Entry]:
        found = {e.record.candidate.id: e for cells in self.islands for e in cells.values()}
        return sorted(found.values(), key=lambda e: -e.score)

    def sample(self, rng: random.Random, count: int) -> list[Entry]:
        filled = [cells for cells in self.islands if cells]
        if not filled:
            return []
        ranked = sorted(rng.choice(filled).values(), key=lambda e: -e.score)
        return ranked_sample(rng, ranked, count)

    def coverage(self, space: SearchSpace) -> float:
        """Return the share of the cells of a space that hold a candidate."""
        total = 1
        for axis in self.axes:
            total *= len(space.knobs.get(axis, (None,)))
        return len({cell[1:] for cells in self.islands for cell in cells}) / total


def ranked_sample(rng: random.Random, ranked: Sequence[Entry], count: int) -> list[Entry]:
    """Draw distinct entries, the one at rank r with weight 1/(r+1)."""
    left = list(ranked)
    chosen: list[Entry] = []
    while left and len(chosen) < count:
        weights = [1 / (rank + 1) for rank in range(len(left))]
        chosen.append(left.pop(rng.choices(range(len(left)), weights)[0]))
    return chosen
