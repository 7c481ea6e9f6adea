"""Write everything that a database knows as Parquet: runs, bodies, candidates, measurements, timings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evokernel.candidate import Candidate
from evokernel.landscape import write_parquet
from evokernel.measurement import Measurement, score
from evokernel.store import Run, Store

Rows = list[dict[str, Any]]


def write(store: Store, runs: Sequence[Run], folder: Path) -> dict[str, int]:
    """Write one file a table into `folder`; returns the number of rows of each. Units are in the columns' names.

    Tables join by run, candidate and measurement; `score` is the candidate's over all of its measurements.
    """
    tables: dict[str, Rows] = {name: [] for name in ("runs", "bodies", "candidates", "measurements", "timings")}
    bodies: dict[str, str] = {}
    for run in runs:
        tables["runs"].append(_run(run))
        parts = {c.name: run.problem.in_class(c) for c in run.problem.shape_classes()}
        measured: dict[int, tuple[Candidate, list[Measurement]]] = {}
        for record in store.records(run.id):
            measured.setdefault(record.candidate.id, (record.candidate, []))[1].append(record.measurement)
            tables["measurements"].append(_measurement(run, record.candidate, record.id, record.measurement))
            tables["timings"] += _timings(run, record.candidate, record.id, record.measurement)
        for candidate in store.pending(run.id):
            measured[candidate.id] = (candidate, [])
        for candidate, found in sorted(measured.values(), key=lambda pair: pair[0].id):
            bodies[candidate.genome.body.digest] = candidate.genome.body.source
            value = score(found, parts[candidate.shape_class])
            tables["candidates"].append({**_candidate(run, candidate), "measurements": len(found), "score": value})
    tables["bodies"] = [{"body": digest, "source": source} for digest, source in bodies.items()]
    for name, rows in tables.items():
        write_parquet(rows, folder / f"{name}.parquet")
    return {name: len(rows) for name, rows in tables.items()}


def _run(run: Run) -> dict[str, Any]:
    return {
        "run": run.name,
        "status": run.status,
        "device": run.device_model,
        "seed": run.seed,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "elapsed_s": run.elapsed_s,
        "problem": json.dumps(run.problem.to_json()),
        "config": json.dumps(run.config),
    }


def _candidate(run: Run, candidate: Candidate) -> dict[str, Any]:
    return {
        "run": run.name,
        "candidate": candidate.id,
        "shape_class": candidate.shape_class,
        "genome": candidate.genome.key,
        "body": candidate.genome.body.digest,
        "knobs": json.dumps(dict(candidate.genome.knobs)),
        "operator": candidate.operator,
        "generation": candidate.generation,
        "parents": list(candidate.parents),
        "note": candidate.note,
        "cost_usd": candidate.cost_usd,
        "tokens": candidate.tokens,
    }


def _measurement(run: Run, candidate: Candidate, number: int, measured: Measurement) -> dict[str, Any]:
    return {
        "run": run.name,
        "measurement": number,  # in completion order
        "candidate": candidate.id,
        "outcome": measured.outcome.value,
        "message": measured.message,
        "fidelity": measured.fidelity.value,
        "errors": json.dumps(dict(measured.errors)),
        "resources": json.dumps(dict(measured.resources)),
        "environment": json.dumps(dict(measured.environment)),
        "seconds": measured.seconds,
        "device_seconds": measured.device_seconds,
        "worker": measured.worker,
    }


def _timings(run: Run, candidate: Candidate, number: int, measured: Measurement) -> Rows:
    return [
        {
            "run": run.name,
            "measurement": number,
            "candidate": candidate.id,
            "workload": timing.workload,
            "held_out": timing.held_out,
            "latency_us": timing.latency_us,
            "spread": timing.spread,
            "baseline": timing.baseline,
            "baseline_us": timing.baseline_us,
            "speedup": timing.speedup,
            "samples_us": list(timing.samples_us),
            "baseline_samples_us": list(timing.baseline_samples_us),
        }
        for timing in measured.timings
    ]
