"""Measure `dashboard_p95_ms`: what the server takes for a page of the dashboard, with 100,000 candidates stored."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import insert

from benchmarks.record import Figure, write
from evokernel.candidate import Body, Candidate, Genome, find_module
from evokernel.config import load, locate
from evokernel.dashboard.app import make
from evokernel.devices import Device
from evokernel.measurement import Measurement, Outcome, Timing
from evokernel.store import Store
from evokernel.store.queries import SAVED
from evokernel.store.tables import CandidateParentRow, CandidateRow, MeasurementRow, TimingRow

CANDIDATES = 100_000
BATCH = 5_000
ROUNDS = 10
FAILURES = [Outcome.COMPILE_ERROR, Outcome.INCORRECT, Outcome.RUNTIME_ERROR, Outcome.TIMEOUT, Outcome.CRASHED]
OPERATORS = ["tune", "mutate", "cross"]


def build(url: str, count: int) -> Store:
    """Fill a database with one run of so many candidates in four shape classes, each with its measurement."""
    config = load(locate("cpu.yaml"), [f"store={url}"])
    problem = config.problem.problem()
    store = Store.open(url)
    run = store.create_run("large", config.model_dump(mode="json"), problem, Device("cuda", "NVIDIA H200"), 0)
    store.set_status(run.id, "running")
    rng = random.Random(0)
    body = Body.load(find_module("flash_forward_numba", "search_spaces"))
    device = Device("cpu", "made up").context()
    parts = [(c.name, problem.in_class(c), problem.context(c, device)) for c in problem.shape_classes()]
    genomes = {name: [body.space.sample(rng, context) for _ in range(400)] for name, _, context in parts}
    name = parts[0][0]
    first = store.add_candidate(run.id, Candidate(Genome(body, body.defaults), name, "seed"))  # stores the body
    store.add_measurement(run.id, first, Measurement(Outcome.PASSED, timings=_timings(parts[0][1], rng, 1.0)))
    for start in range(2, count + 1, BATCH):
        _fill(store, run.id, first.genome.body.digest, range(start, min(count + 1, start + BATCH)), parts, genomes, rng)
    return store


def _timings(part: Any, rng: random.Random, quality: float) -> tuple[Timing, ...]:
    found = []
    for workload in part.workloads:
        mine = [100 / quality * rng.uniform(0.98, 1.02) for _ in range(5)]
        found.append(Timing(workload.name, tuple(mine), rng.choice(["cudnn", "fa3"]), (100.0,) * 5))
    return tuple(found)


def _fill(
    store: Store, run_id: int, body: str, numbers: range, parts: list[Any], genomes: dict[str, Any], rng: random.Random
) -> None:
    run = next(r for r in store.runs() if r.id == run_id)
    candidates, parents, measurements, timings = [], [], [], []
    for number in numbers:
        name, part, _ = parts[number % len(parts)]
        quality = min(1.6, rng.lognormvariate(-0.3, 0.25) + number / CANDIDATES * 0.2)
        passed = rng.random() < 0.7
        at = run.started_at.fromtimestamp(run.started_at.timestamp() + 3 * number)
        candidates.append(
            {"id": number, "run_id": run_id, "body_digest": body, "knobs": rng.choice(genomes[name])}
            | {"genome_key": str(number), "shape_class": name, "operator": rng.choice(OPERATORS), "generation": 1}
            | {"note": "larger tiles", "cost_usd": 0.001, "tokens": 900, "created_at": at}
        )
        if number > 400:
            # Any earlier one of the class, the early ones oftener: the tree is bushy, about twenty generations deep.
            earlier = number - len(parts) * rng.randint(1, (number - 2) // len(parts))
            parents.append({"candidate_id": number, "parent_id": earlier, "position": 0})
        outcome = Outcome.PASSED if passed else rng.choice(FAILURES)
        resources = {"registers": rng.randint(64, 255), "spill_bytes": 0, "shared_bytes": 98_304, "compile_s": 2.5}
        measurements.append(
            {"id": number, "candidate_id": number, "run_id": run_id, "outcome": outcome.value, "message": ""}
            | {"fidelity": "full", "errors": {"w/random": 0.3}, "resources": resources, "environment": {}}
            | {"seconds": 3.0, "device_seconds": 2.0, "worker": "w", "created_at": at, "reuse_key": None}
        )
        if passed:
            timings += [
                {"measurement_id": number, "position": position, "workload": t.workload, "held_out": False}
                | {"weight": 1.0, "latency_us": t.latency_us, "spread": t.spread, "baseline": t.baseline}
                | {"baseline_us": t.baseline_us, "speedup": t.speedup, "samples_us": list(t.samples_us)}
                | {"baseline_samples_us": list(t.baseline_samples_us)}
                for position, t in enumerate(_timings(part, rng, quality))
            ]
    with store.engine.begin() as connection:
        tables = (CandidateRow, CandidateParentRow, MeasurementRow, TimingRow)
        for table, rows in zip(tables, (candidates, parents, measurements, timings), strict=True):
            if rows:
                connection.execute(insert(table), rows)


def page(path: str, search: str) -> dict[str, Any]:
    """Return what a browser posts when a reader opens a page."""
    outputs = [("main", "children"), ("pages", "children"), ("chooser", "children"), ("drawn", "data")]
    return {
        "output": ".." + "...".join(f"{i}.{p}" for i, p in outputs) + "..",
        "outputs": [{"id": i, "property": p} for i, p in outputs],
        "inputs": [
            {"id": "url", "property": "pathname", "value": path},
            {"id": "url", "property": "search", "value": search},
            {"id": "tick", "property": "n_intervals", "value": 0},
        ],
        "changedPropIds": ["url.pathname", "url.search"],
        "state": [{"id": "drawn", "property": "data", "value": None}],
    }


def window(shape_class: str, request: dict[str, Any]) -> dict[str, Any]:
    """Return what the leaderboard's grid posts for a hundred rows."""
    place = {"class": shape_class, "run": "large", "type": "leaderboard"}
    written = json.dumps(place, separators=(",", ":"))
    return {
        "output": '{"class":["MATCH"],"run":["MATCH"],"type":"leaderboard"}.getRowsResponse',
        "outputs": {"id": place, "property": "getRowsResponse"},
        "inputs": [{"id": place, "property": "getRowsRequest", "value": request}],
        "changedPropIds": [f"{written}.getRowsRequest"],
    }


def requests(store: Store, rng: random.Random) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield one round of what readers ask, each with a name."""
    classes = [c.name for c in store.run("large").problem.shape_classes()]
    name = rng.choice(classes)
    yield "runs", page("/", "")
    for over in ("evaluations", "device", "usd", "wall"):
        yield f"run over {over}", page("/run", f"?over={over}")
    yield "leaderboard", page("/leaderboard", f"?class={name}")
    number = {"filterType": "number", "type": "greaterThan", "filter": rng.uniform(0.5, 1)}
    for sort, filters in (
        ([], {}),
        ([{"colId": "score", "sort": "asc"}], {}),
        ([{"colId": f"knob{rng.randint(0, 9)}", "sort": "desc"}], {}),
        ([{"colId": "registers", "sort": "asc"}], {"score": number}),
    ):
        asked = {"startRow": 0, "endRow": 100, "sortModel": sort, "filterModel": filters}
        yield f"rows sorted by {sort[0]['colId'].rstrip('0123456789') if sort else 'nothing'}", window(name, asked)
    yield "candidate", page("/candidate", f"?id={rng.randint(1, CANDIDATES // 2)}")
    for most in (1000, 10_000):
        yield f"lineage of {most}", page("/lineage", f"?class={name}&most={most}")
    yield "landscape", page("/landscape", f"?class={name}")
    yield "compare", page("/compare", f"?class={name}")
    yield "ask", page("/ask", f"?saved={rng.choice(list(SAVED))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=CANDIDATES, help="candidates")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of all requests")
    arguments = parser.parse_args()
    samples: list[float] = []
    by_name: dict[str, list[float]] = {}
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'large.db'}"
        start = time.perf_counter()
        store = build(url, arguments.n)
        built = time.perf_counter()
        client = make(url).server.test_client()
        ready = time.perf_counter()
        print(f"built in {built - start:.1f} s, dashboard ready in {ready - built:.1f} s")
        client.get("/_dash-layout", headers={"Host": "localhost"})
        for _ in range(arguments.rounds):
            # The run goes on: what was kept of the last round's answers no longer holds.
            candidate = store.candidate(rng.randint(1, arguments.n))
            problem = store.run("large").problem
            part = next(problem.in_class(c) for c in problem.shape_classes() if c.name == candidate.shape_class)
            run_id = store.run("large").id
            store.add_measurement(run_id, candidate, Measurement(Outcome.PASSED, timings=_timings(part, rng, 1.0)))
            for name, body in requests(store, rng):
                begun = time.perf_counter()
                answer = client.post("/_dash-update-component", json=body, headers={"Host": "localhost"})
                took = (time.perf_counter() - begun) * 1e3
                if answer.status_code != 200:
                    raise SystemExit(f"{name}: {answer.status} {answer.text[:500]}")
                samples.append(round(took, 2))
                by_name.setdefault(name, []).append(took)
        store.engine.dispose()
    for name, found in by_name.items():
        print(f"{name:28} median {statistics.median(found):7.1f} ms, worst {max(found):7.1f} ms")
    note = f"{arguments.n:,} candidates; every request of {arguments.rounds} rounds, each after a new measurement"
    print("p95", statistics.quantiles(samples, n=20)[-1])
    write("dashboard.json", [Figure("dashboard_p95_ms", "ms", "<= 500", "p95", samples, note)])


if __name__ == "__main__":
    main()
