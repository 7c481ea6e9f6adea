"""Everything known about one candidate."""

from __future__ import annotations

import json
from functools import cache, lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any

from dash import dcc, html
from pygments import lex
from pygments.lexers import PythonLexer
from pygments.token import Comment, Keyword, Name, Number, String

from evokernel.dashboard import figures, ui
from evokernel.dashboard.data.details import Details, details
from evokernel.dashboard.view import View, address

PATH, TITLE, LIVE = "/candidate", "Candidate", False
LARGEST = 2**31 - 1
CLASSES = (
    (Comment, "c"), (Keyword, "k"), (String, "s"), (Number, "n"), (Name.Function, "f"), (Name.Class, "f"),
    (Name.Builtin, "b"), (Name.Decorator, "d"),
)  # fmt: skip


def draw(view: View) -> Any:
    asked = view.query.get("id", "")
    number = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 11 else None
    if number is None and (snapshot := view.snapshot):  # no number: the run's leader, or its latest
        leaders = [leader for name in snapshot.shape_classes if (leader := snapshot.leader(name))]
        number = leaders[0].id if leaders else next(reversed(snapshot.entries), None)
    found = details(view.follower, number) if number and number <= LARGEST else None
    if found is None:
        return ui.section("Candidate", ui.nothing(f"No candidate {asked or 'yet'}."))
    return page(found)


def page(found: Details) -> list[Any]:
    """Draw a candidate, section by section; what the database does not have is left out."""
    return [
        _head(found),
        *_timings(found),
        html.Div([_knobs(found), _facts(found)], className="pair"),
        *_errors(found),
        _measurements(found),
        *_said(found),
        _ancestry(found),
        *_diff(found),
        ui.section("Source", source(found.source)),
    ]


def _head(found: Details) -> Any:
    entry = found.entry
    facts = {
        "outcome": ui.outcome(entry.outcome),
        "speedup": ui.speedup(entry.score),
        "held out": ui.speedup(entry.held_out),
        "shape class": entry.row.shape_class,
        "operator": entry.row.operator,
        "generation": str(entry.row.generation),
        "parents": [part for p in entry.parents for part in (ui.candidate(p), " ")] or "none",
        "children": f"{len(entry.children):,}",
        "run": dcc.Link(found.snapshot.run.name, href=address("/run", {"run": found.snapshot.run.name})),
        "cost": f"${entry.row.cost_usd:,.4f}, {entry.row.tokens:,} tokens" if entry.row.tokens else "–",
    }
    note = [html.P(entry.row.note, className="quote")] if entry.row.note else []
    again = html.Div([html.Span("Measure it again:", className="label"), html.Code(found.reproduce)], className="again")
    return ui.section(f"Candidate {entry.id}", ui.cards(facts), *note, again)


def _timings(found: Details) -> list[Any]:
    if not found.timings:
        return []
    rows = [{**t, **{f"baseline {b}": t["baselines"].get(b) for b in found.baselines}} for t in found.timings]
    columns = {
        "workload": "workload",
        "held_out": "held out",
        "latency_us": "µs",
        "spread": "± spread",
        **{f"baseline {b}": f"{b}, µs" for b in found.baselines},
        "roofline_us": "roofline, µs",
        "speedup": "speedup",
        "measured": "measured",
    }
    cells: dict[str, ui.Cell] = {"speedup": ui.speedup, "spread": lambda share: f"{100 * share:.1f}%"}
    note = "The speedup is that of interleaved pairs; a baseline's latency is its median over the whole run."
    chart = ui.graph(figures.latencies(found.timings, found.baselines), "latency beside baselines and roofline", 300)
    return [ui.section("Latency", chart, ui.table(columns, rows, cells, heated=("speedup",)), note=note)]


def _knobs(found: Details) -> Any:
    parent = f"parent {found.entry.parents[0]}" if found.entry.parents else "parent"
    body = [
        html.Tr(
            [html.Td(k["knob"]), html.Td(ui.number(k["value"])), html.Td(ui.number(k["parent"]))],
            className="changed" if found.entry.parents and k["value"] != k["parent"] else "",
        )
        for k in found.knobs
    ]
    head = html.Thead(html.Tr([html.Th("knob"), html.Th("value"), html.Th(parent)]))
    return ui.section("Knobs", html.Table([head, html.Tbody(body)]))


def _facts(found: Details) -> Any:
    facts = {**found.facts, **{f"environment: {k}": v for k, v in found.environment.items()}}
    shown = [
        {"fact": k, "value": v if isinstance(v, int | float | str) else json.dumps(v, default=str)}
        for k, v in facts.items()
    ]
    if not shown:
        return ui.section("Compiler and environment", ui.nothing("Not measured yet."))
    return ui.section("Compiler and environment", ui.table({"fact": "fact", "value": "value"}, shown))


def _errors(found: Details) -> list[Any]:
    if not found.errors:
        return []
    families = dict.fromkeys(f for row in found.errors for f in row if f != "workload")
    columns = {"workload": "case", **{name: name.replace("_", " ") for name in families}}
    return [
        ui.section(
            "Errors by input family",
            ui.table(columns, found.errors, {name: _share for name in families}),
            note="The share of the tolerance used, at worst; above 100% is wrong.",
        )
    ]


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f}%"


def _measurements(found: Details) -> Any:
    columns = {
        "outcome": "outcome",
        "fidelity": "fidelity",
        "seconds": "seconds",
        "worker": "worker",
        "message": "message",
    }
    cells: dict[str, ui.Cell] = {"outcome": ui.outcome, "message": lambda text: html.Pre(text) if text else "–"}
    if not found.measurements:
        return ui.section("Measurements", ui.nothing("Not measured yet."))
    return ui.section("Measurements", ui.table(columns, found.measurements, cells))


def _said(found: Details) -> list[Any]:
    made = []
    for said in found.said.conversations:
        turns = [_turn(message) for message in said["messages"]]
        made.append(ui.section(f"Conversation with {said['model']}", *turns, note=f"{said['tokens']:,} tokens"))
    if found.said.lessons:
        columns = {"tried": "tried", "prediction": "expected", "outcome": "came out"}
        made.append(ui.section("Lesson", ui.table(columns, found.said.lessons)))
    return made


def _turn(message: Any) -> Any:
    known = message if isinstance(message, dict) else {}
    content = known.get("content", message)
    text = content if isinstance(content, str) else json.dumps(content, default=str, indent=1)
    return html.Details([html.Summary(str(known.get("role", "said"))), html.Pre(text)], open=len(text) < 2000)


def _ancestry(found: Details) -> Any:
    rows = [
        {
            "candidate": e.id,
            "operator": e.row.operator,
            "outcome": e.outcome,
            "score": e.score,
            "parents": ", ".join(map(str, e.parents)) or "–",
            "note": e.row.note or "–",
        }
        for e in found.ancestry
    ]
    columns = {name: name for name in ("candidate", "operator", "outcome", "score", "parents", "note")}
    cells: dict[str, ui.Cell] = {"candidate": ui.candidate, "outcome": ui.outcome, "score": ui.speedup}
    return ui.section("Ancestry", ui.table(columns, rows, cells, heated=("score",)))


def _diff(found: Details) -> list[Any]:
    if not found.diff:
        return []
    kinds = {"+": "added", "-": "removed", "@": "place"}
    lines = [html.Span(f"{text}\n", className=kinds.get(text[:1], "")) for text in found.diff]
    return [ui.section(f"Changed from candidate {found.entry.parents[0]}", html.Pre(lines, className="code"))]


def source(text: str) -> Any:
    """Colour Python; every token becomes a text node of its own."""
    return html.Pre(
        [html.Span(value, className=name) if name else value for name, value in _coloured(text)],
        className="code source",
        tabIndex="0",
    )


@lru_cache(maxsize=64)
def _coloured(text: str) -> tuple[tuple[str, str], ...]:
    """Return runs of text, each with the class of its colour; neighbours of one colour are one run."""
    named = ((_class(kind), value) for kind, value in lex(text, PythonLexer(stripnl=False)))
    return tuple((name, "".join(value for _, value in run)) for name, run in groupby(named, key=itemgetter(0)))


@cache
def _class(kind: Any) -> str:
    return next((name for token, name in CLASSES if kind in token), "")
