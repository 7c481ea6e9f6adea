"""Everything known about one candidate."""

from __future__ import annotations

import difflib
import re
import shlex
import statistics
from dataclasses import dataclass
from typing import Any

from evokernel.dashboard.data.follow import Entry, Follower, Snapshot
from evokernel.devices import Device
from evokernel.problem import Workload
from evokernel.store import Run
from evokernel.store.following import Said, said

ANCESTORS = 200  # shown of a line; a long campaign's can be thousands


@dataclass(frozen=True)
class Details:
    """A candidate for its page."""

    snapshot: Snapshot
    entry: Entry
    source: str
    diff: list[str]  # unified, against the first parent
    knobs: list[dict[str, Any]]  # name, value, the first parent's value
    timings: list[dict[str, Any]]
    baselines: list[str]
    errors: list[dict[str, Any]]
    facts: dict[str, Any]
    environment: dict[str, Any]
    measurements: list[dict[str, Any]]
    said: Said
    ancestry: list[Entry]
    reproduce: str


def details(follower: Follower, candidate_id: int) -> Details | None:
    """Return all about a candidate, or None when there is none of that number."""
    found = follower.of_candidate(candidate_id)
    if found is None:
        return None
    snapshot, entry = found
    store = follower.store
    candidate = store.candidate(candidate_id)
    parent = store.candidate(entry.parents[0]) if entry.parents else None
    measured = store.measurements(candidate_id)
    before = dict(parent.genome.knobs) if parent else {}
    names = dict.fromkeys([*candidate.genome.knobs, *before])
    return Details(
        snapshot,
        entry,
        candidate.genome.source,
        _diff(parent.genome.source, candidate.genome.source, parent.id, candidate_id) if parent else [],
        [{"knob": n, "value": candidate.genome.knobs.get(n), "parent": before.get(n)} for n in names],
        timings(snapshot, entry),
        baseline_names(snapshot, entry),
        _errors([dict(m.errors) for m in measured]),
        next((dict(m.resources) for m in reversed(measured) if m.resources), {}),
        next((dict(m.environment) for m in reversed(measured) if m.environment), {}),
        [
            {
                "outcome": m.outcome.value,
                "fidelity": m.fidelity.value,
                "seconds": m.seconds,
                "worker": m.worker,
                "message": m.message,
            }
            for m in measured
        ],
        said(store.engine, candidate_id),
        ancestry(snapshot, entry)[:ANCESTORS],
        f"evokernel show {candidate_id} --source > candidate_{candidate_id}.py && "
        f"evokernel bench candidate_{candidate_id}.py --config {shlex.quote(f'runs/{snapshot.run.name}/config.yaml')}",
    )


def _diff(before: str, after: str, parent: int, child: int) -> list[str]:
    return list(
        difflib.unified_diff(
            before.splitlines(), after.splitlines(), f"candidate {parent}", f"candidate {child}", lineterm=""
        )
    )


def baseline_names(snapshot: Snapshot, entry: Entry) -> list[str]:
    workloads = {t.workload for t in entry.timings}
    return sorted({name for w in workloads for name in snapshot.baselines.get(w, ())})


def timings(snapshot: Snapshot, entry: Entry) -> list[dict[str, Any]]:
    """Return a row for every workload: latency and spread, each baseline's latency in this run, the roofline.

    A baseline's latency is the median over the run of its medians beside candidates, in microseconds; the speedup is
    that of interleaved pairs and so need not be their quotient.
    """
    problem = snapshot.run.problem
    shapes = {w.name: w for w in (*problem.workloads, *problem.held_out)}
    found = []
    for name, held_out in dict.fromkeys((t.workload, t.held_out) for t in entry.timings):
        mine = [t for t in entry.timings if (t.workload, t.held_out) == (name, held_out)]
        found.append(
            {
                "workload": name,
                "held_out": held_out,
                "latency_us": statistics.median(t.latency_us for t in mine),
                "spread": statistics.median(t.spread for t in mine),
                "speedup": entry.speedups(held_out).get(name),
                "baselines": {b: statistics.median(v) for b, v in snapshot.baselines.get(name, {}).items()},
                "roofline_us": floor_us(snapshot.run, shapes[name]) if name in shapes else None,
                "measured": len(mine),
            }
        )
    return found


def floor_us(run: Run, workload: Workload) -> float:
    """Return the roofline's time on the run's device, in microseconds."""
    cores = re.search(r"\((\d+) cores\)$", run.device_model)
    device = Device("cpu", run.device_model, num_sms=int(cores[1])) if cores else Device("cuda", run.device_model)
    return device.roofline(run.problem.dtype).floor_us(workload, run.problem.dtype)


def _errors(measured: list[dict[str, float]]) -> list[dict[str, Any]]:
    """Return, for each workload, the worst share of the tolerance that each family of inputs used."""
    worst: dict[str, dict[str, float]] = {}
    for errors in measured:
        for place, share in errors.items():
            workload, _, case = place.partition("/")
            family = case.partition("/")[0] or "all inputs"
            row = worst.setdefault(workload, {})
            row[family] = max(row.get(family, 0.0), share)
    return [{"workload": workload, **families} for workload, families in worst.items()]


def ancestry(snapshot: Snapshot, entry: Entry) -> list[Entry]:
    """Return a candidate and all it descends from, each once, the latest first."""
    seen: dict[int, Entry] = {}
    waiting = [entry.id]
    while waiting:
        number = waiting.pop()
        if number in seen or number not in snapshot.entries:
            continue
        seen[number] = snapshot.entries[number]
        waiting += seen[number].parents
    return sorted(seen.values(), key=lambda e: -e.id)
