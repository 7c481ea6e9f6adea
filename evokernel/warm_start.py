"""Begin a search with what another run measured: its best genomes come first, its records teach the operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from evokernel.candidate import MARKER, Body, Genome
from evokernel.errors import SpaceError, StoreError
from evokernel.measurement import Measurement, Record, score
from evokernel.operators import Operator
from evokernel.problem import Problem
from evokernel.store import Store

BEST = 5  # genomes of each shape class that are measured again, before any other


@dataclass(frozen=True)
class Experience:
    """What an earlier run knows of the shape classes of this one."""

    best: Mapping[str, Sequence[Genome]]  # by shape class, best first
    told: Sequence[tuple[Record, float | None]]  # one of each candidate, in completion order; None for a failure

    def teach(self, operators: Sequence[Operator]) -> None:
        """Tell every operator of every candidate; none of them is thereby known to the search, all may come again."""
        for record, value in self.told:
            for operator in operators:
                operator.learn(record, value)


def experience(store: Store, name: str, problem: Problem, templates: Sequence[Genome] = ()) -> Experience:
    """Read a run's records, or raise StoreError when there is no such run or it measured none of these classes.

    A genome whose kernel is that of one of the templates becomes one of it: a sweep's space is a part of a template's.
    """
    earlier = store.run(name)
    homes = {_kernel(genome.body): genome.body for genome in templates}
    wanted = {c.name for c in problem.shape_classes()}
    parts = {c.name: earlier.problem.in_class(c) for c in earlier.problem.shape_classes() if c.name in wanted}
    first: dict[int, Record] = {}
    measured: dict[int, list[Measurement]] = {}
    for record in store.records(earlier.id):
        if record.candidate.shape_class in parts:
            first.setdefault(record.candidate.id, _rehomed(record, homes))
            measured.setdefault(record.candidate.id, []).append(record.measurement)
    if not measured:
        classes = ", ".join(c.name for c in earlier.problem.shape_classes())
        raise StoreError(
            f"warm_start is {name!r}, a run that measured nothing in {', '.join(sorted(wanted))}; it is about {classes}"
        )
    scores = {n: score(found, parts[first[n].candidate.shape_class]) for n, found in measured.items()}
    ranked: dict[str, list[Genome]] = {}
    for number in sorted((n for n, value in scores.items() if value is not None), key=lambda n: -(scores[n] or 0.0)):
        candidate = first[number].candidate
        ranked.setdefault(candidate.shape_class, []).append(candidate.genome)
    # What only screening passed is neither good nor bad.
    told = [(r, scores[n]) for n, r in first.items() if scores[n] is not None or not r.measurement.passed]
    return Experience({name: found[:BEST] for name, found in ranked.items()}, told)


def _kernel(body: Body) -> str:
    """Return what stands below the marker."""
    return body.source.partition(MARKER)[2]


def _rehomed(record: Record, homes: Mapping[str, Body]) -> Record:
    genome = record.candidate.genome
    home = homes.get(_kernel(genome.body))
    if home is None or home == genome.body:
        return record
    try:
        home.space.check_names(genome.knobs, home.where)
    except SpaceError:
        return record  # the template has lost a value since
    return replace(record, candidate=replace(record.candidate, genome=Genome(home, genome.knobs)))
