"""Commands that ask the database: runs, top, show, lineage, diff, query."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evokernel.cli.options import DEFAULT_DB, Db, Json, RunArgument

if TYPE_CHECKING:
    from evokernel.candidate import Candidate
    from evokernel.store import Store

Id = Annotated[int, typer.Argument(help="A candidate's number.")]


def _printable(text: str) -> str:
    """Show control characters as escapes: what a candidate wrote must not steer the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def _open(db: str) -> Store:
    from evokernel.store import Store

    return Store.open(db, create=False)


def runs(db: Db = DEFAULT_DB, as_json: Json = False) -> None:
    """List the runs, the latest last."""
    from evokernel.cli import show as printing

    store = _open(db)
    columns = ("name", "status", "evaluations", "wall_s", "device", "started")
    found = [
        (r.name, r.status, store.spent(r.id).evaluations, r.elapsed_s, r.device_model, f"{r.started_at:%Y-%m-%d %H:%M}")
        for r in store.runs()
    ]
    printing.rows(columns, found, as_json)


def top(
    name: RunArgument = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Candidates of each shape class.")] = 10,
    db: Db = DEFAULT_DB,
    as_json: Json = False,
) -> None:
    """Show the leaderboard of a run, by shape class."""
    from evokernel.cli import show as printing
    from evokernel.measurement import Fidelity, score, workload_speedups

    store = _open(db)
    run = store.run(name)
    parts = {c.name: run.problem.in_class(c) for c in run.problem.shape_classes()}
    measured: dict[int, tuple[Candidate, list[Any]]] = {}
    for record in store.records(run.id):
        measured.setdefault(record.candidate.id, (record.candidate, []))[1].append(record.measurement)
    found = []
    for shape_class, part in parts.items():
        scored = [
            (value, candidate, ms)
            for candidate, ms in measured.values()
            if candidate.shape_class == shape_class and (value := score(ms, part)) is not None
        ]
        for value, candidate, ms in sorted(scored, key=lambda row: -row[0])[:count]:
            held_out = workload_speedups(ms, held_out=True)
            verified = any(m.fidelity is Fidelity.VERIFY for m in ms)
            found.append(
                (
                    shape_class,
                    candidate.id,
                    value,
                    min(held_out.values(), default=None),
                    len(ms),
                    "yes" if verified else "no",
                    candidate.operator,
                    ", ".join(f"{k}={v}" for k, v in candidate.genome.knobs.items()),
                )
            )
    columns = ("shape_class", "candidate", "score", "worst_held_out", "measurements", "verified", "operator", "knobs")
    if not as_json:
        print(f"run {run.name}, {run.status}; score is the fastest baseline's time divided by ours")
    printing.rows(columns, found, as_json)


def show(
    candidate_id: Id,
    source: Annotated[bool, typer.Option("--source", help="Print the rendered module alone.")] = False,
    conversation: Annotated[bool, typer.Option("--conversation", help="Print what a model was asked.")] = False,
    db: Db = DEFAULT_DB,
    as_json: Json = False,
) -> None:
    """Show everything known about a candidate."""
    from evokernel.measurement import score

    store = _open(db)
    candidate = store.candidate(candidate_id)
    if source:
        print(candidate.genome.source)
        return
    if conversation:
        _print_conversations(store, candidate_id, as_json)
        return
    run = store.run_of(candidate_id)
    measurements = store.measurements(candidate_id)
    parts = {c.name: run.problem.in_class(c) for c in run.problem.shape_classes()}
    part = parts.get(candidate.shape_class)
    facts: dict[str, Any] = {
        "candidate": candidate.id,
        "run": run.name,
        "shape_class": candidate.shape_class,
        "operator": candidate.operator,
        "generation": candidate.generation,
        "parents": list(candidate.parents),
        "note": candidate.note,
        "body": candidate.genome.body.digest,
        "knobs": dict(candidate.genome.knobs),
        "score": score(measurements, part) if part else None,
        "measurements": [
            {
                "outcome": m.outcome.value,
                "message": m.message,
                "fidelity": m.fidelity.value,
                "timings": [
                    {
                        "workload": t.workload,
                        "held_out": t.held_out,
                        "latency_us": t.latency_us,
                        "spread": t.spread,
                        "baseline": t.baseline,
                        "baseline_us": t.baseline_us,
                        "speedup": t.speedup,
                    }
                    for t in m.timings
                ],
                "worst_error": max(m.errors.values(), default=None),
                "errors": dict(m.errors),
                "resources": dict(m.resources),
                "environment": dict(m.environment),
                "seconds": m.seconds,
            }
            for m in measurements
        ],
    }
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        _print_candidate(facts)


def _print_conversations(store: Store, candidate_id: int, as_json: bool) -> None:
    from evokernel.store import exchange

    found = exchange.conversations_about(store, candidate_id)
    if as_json:
        rows = [{"model": c.model, "tokens": c.tokens, "cost_usd": c.cost_usd, "messages": c.messages} for c in found]
        print(json.dumps(rows, indent=2))
        return
    if not found:
        print(f"candidate {candidate_id} came of no conversation")
    for talk in found:
        print(_printable(f"{talk.model}: {talk.tokens} tokens, {talk.cost_usd:.4f} USD"))
        for message in talk.messages:
            print(_printable(f"\n---- {message['role']}\n{message.get('content') or ''}"))
            for call in message.get("tool_calls", ()):
                print(_printable(f"calls {call['function']['name']} {call['function']['arguments']}"))


def _print_candidate(facts: dict[str, Any]) -> None:
    from evokernel.cli.show import cell

    for name in ("candidate", "run", "shape_class", "operator", "generation", "parents", "note", "body", "score"):
        print(f"{name:12} {_printable(cell(facts[name]))}")
    for name, value in facts["knobs"].items():
        print(f"  {name:18} {_printable(str(value))}")
    for measured in facts["measurements"]:
        message = _printable(measured["message"])
        print(f"{measured['outcome']} at {measured['fidelity']}, {measured['seconds']:.2f} s {message}".rstrip())
        for timing in measured["timings"]:
            print(
                f"  {timing['workload']:36} {timing['latency_us']:10.1f} us ±{timing['spread']:.1%}  "
                f"{timing['baseline']} {timing['baseline_us']:10.1f} us  {timing['speedup']:.3f}"
                f"{'  held out' if timing['held_out'] else ''}"
            )
        if measured["worst_error"] is not None:
            print(f"  largest share of the tolerance used: {measured['worst_error']:.2f}")
        for name, value in (measured["resources"] | measured["environment"]).items():
            print(f"  {name:18} {_printable(cell(value))}")


def lineage(candidate_id: Id, db: Db = DEFAULT_DB, as_json: Json = False) -> None:
    """Show a candidate's ancestors as a tree."""
    from evokernel.measurement import score

    store = _open(db)
    line = {candidate.id: candidate for candidate in store.ancestry(candidate_id)}
    problem = store.run_of(candidate_id).problem
    parts = {c.name: problem.in_class(c) for c in problem.shape_classes()}
    nodes: dict[int, dict[str, Any]] = {}
    for number, candidate in line.items():
        measurements = store.measurements(number)
        part = parts.get(candidate.shape_class)
        before = line[candidate.parents[0]].genome.knobs if candidate.parents else candidate.genome.knobs
        nodes[number] = {
            "candidate": number,
            "parents": list(candidate.parents),
            "operator": candidate.operator,
            "generation": candidate.generation,
            "outcome": measurements[-1].outcome.value if measurements else "PENDING",
            "score": score(measurements, part) if part else None,
            "changed": {k: [before.get(k), v] for k, v in candidate.genome.knobs.items() if before.get(k) != v},
        }
    if as_json:
        print(json.dumps(list(nodes.values()), indent=2))
        return
    for depth, number, again in _walk(nodes, candidate_id):
        node = nodes[number]
        said = f"{node['score']:.3f}" if node["score"] is not None else node["outcome"]
        changes = "(above)" if again else ", ".join(f"{k} {a}→{b}" for k, (a, b) in node["changed"].items())
        print(_printable(f"{'  ' * depth}{number} {node['operator']} {said} {changes}".rstrip()))


def _walk(nodes: dict[int, dict[str, Any]], first: int) -> Iterator[tuple[int, int, bool]]:
    """Yield depth, number, and whether it came before: crossed lines meet again, and are drawn once."""
    seen: set[int] = set()
    waiting = [(0, first)]
    while waiting:
        depth, number = waiting.pop()
        again = number in seen
        yield depth, number, again
        if not again:
            seen.add(number)
            waiting += [(depth + 1, parent) for parent in reversed(nodes[number]["parents"])]


def diff(first: Id, second: Id, db: Db = DEFAULT_DB, as_json: Json = False) -> None:
    """Compare two candidates' rendered modules."""
    store = _open(db)
    a, b = store.candidate(first), store.candidate(second)
    names = [*a.genome.knobs, *(n for n in b.genome.knobs if n not in a.genome.knobs)]
    knobs = {n: [a.genome.knobs.get(n), b.genome.knobs.get(n)] for n in names}
    changed = {n: pair for n, pair in knobs.items() if pair[0] != pair[1]}
    text = list(
        difflib.unified_diff(
            a.genome.source.splitlines(),
            b.genome.source.splitlines(),
            f"candidate {first}",
            f"candidate {second}",
            lineterm="",
        )
    )
    if as_json:
        print(json.dumps({"knobs": changed, "diff": text}, indent=2))
        return
    for name, (before, after) in changed.items():
        print(_printable(f"{name}: {before} → {after}"))
    print(_printable("\n".join(text)) or "the two modules are the same")


def query(
    sql: Annotated[str | None, typer.Argument(help="A SQL query; read-only.")] = None,
    saved: Annotated[str | None, typer.Option("--saved", help="The name of a saved query.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most rows.")] = 1000,
    timeout_s: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds.")] = 10.0,
    db: Db = DEFAULT_DB,
    as_json: Json = False,
) -> None:
    """Ask the database in SQL. Views: leaderboard, lineage, progress, failures."""
    from evokernel.cli import show as printing
    from evokernel.errors import EvokernelError
    from evokernel.store import queries

    if saved is not None:
        if saved not in queries.SAVED:
            raise EvokernelError(f"--saved is {saved!r}; choose one of {', '.join(queries.SAVED)}")
        sql = queries.SAVED[saved]
    if not sql:
        raise EvokernelError(f"give a SQL query, or --saved with one of {', '.join(queries.SAVED)}")
    columns, found, more = queries.query(db, sql, limit, timeout_s)
    printing.rows(columns, found, as_json)
    if more:
        print(f"more than {limit} rows; raise --limit", file=sys.stderr)


COMMANDS = {"runs": runs, "top": top, "show": show, "lineage": lineage, "diff": diff, "query": query}
