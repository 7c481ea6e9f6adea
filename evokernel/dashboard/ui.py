"""The few pieces that pages are built of. What a candidate or a person wrote only ever becomes text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dash import dcc, html

from evokernel.dashboard.view import View

Cell = Callable[[Any], Any]
OUTCOMES = {
    "PASSED": "#2f9e6e",
    "REJECTED": "#8a8f98",
    "COMPILE_ERROR": "#d9902f",
    "RUNTIME_ERROR": "#c76b3f",
    "INCORRECT": "#d6455d",
    "TIMEOUT": "#9b6bd3",
    "CRASHED": "#a8324a",
    "CHEATED": "#e0218a",
    "PENDING": "#5b8def",
}


def number(value: Any, digits: int = 4) -> str:
    """Show a value as people read it; a dash for what is not known."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.{digits}g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def speedup(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}×"


def seconds(value: float) -> str:
    if value < 120:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def heat(value: float | None) -> dict[str, str]:
    """Return the background of a speedup: green above the baseline, red below, deeper the further."""
    if value is None:
        return {}
    depth = min(0.55, 0.08 + abs(value - 1) * 0.6)
    return {"backgroundColor": f"rgba({'47,158,110' if value >= 1 else '214,69,93'},{depth:.2f})"}


def section(title: str, *children: Any, note: str = "") -> html.Section:
    head = [html.H2(title), *([html.P(note, className="note")] if note else [])]
    return html.Section([*head, *children], className="panel")


def nothing(text: str) -> html.P:
    return html.P(text, className="nothing")


def table(
    columns: Mapping[str, str],
    rows: Sequence[Mapping[str, Any]],
    cells: Mapping[str, Cell] | None = None,
    heated: Sequence[str] = (),
    caption: str = "",
) -> html.Div:
    """Draw rows; `columns` gives fields their headings, `cells` how a value is shown, `heated` which are speedups."""
    cells = cells or {}

    numeric = {field for field in columns if all(_counts(row.get(field)) for row in rows)}

    def heading(field: str, name: str) -> html.Th:
        return html.Th(name, scope="col", className="number" if field in numeric else "")

    def cell(field: str, row: Mapping[str, Any]) -> html.Td:
        value = row.get(field)
        shown = cells[field](value) if field in cells else number(value)
        style = heat(value) if field in heated else {}
        return html.Td(shown, className="number" if field in numeric else "", style=style)

    return html.Div(
        html.Table(
            [
                *([html.Caption(caption)] if caption else []),
                html.Thead(html.Tr([heading(field, name) for field, name in columns.items()])),
                html.Tbody([html.Tr([cell(field, row) for field in columns]) for row in rows]),
            ]
        ),
        className="scroll",
        tabIndex="0",
    )


def _counts(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def cards(facts: Mapping[str, Any]) -> html.Dl:
    return html.Dl([html.Div([html.Dt(k), html.Dd(v)]) for k, v in facts.items()], className="cards")


def tabs(label: str, key: str, options: Sequence[str] | Mapping[str, str], chosen: str, view: View) -> html.Nav:
    """Offer few choices as links: they work with the keyboard, and can be kept as addresses."""
    names = options if isinstance(options, Mapping) else {name: name for name in options}
    links = [
        dcc.Link(shown, href=view.link(**{key: name}), className="pick chosen" if name == chosen else "pick")
        for name, shown in names.items()
    ]
    return html.Nav([html.Span(label, className="label"), *links], className="picks", **{"aria-label": label})


def choice(label: str, key: str, options: Sequence[str], chosen: Any, *, multi: bool = False) -> html.Div:
    """Offer many choices as a list; assets/choices.js puts what is chosen into the address."""
    now = ",".join(chosen) if multi else chosen
    return html.Div(
        [
            html.Label(label, className="label"),
            dcc.Dropdown(
                options=list(options),
                value=chosen,
                id={"type": "choice", "key": key, "now": now},
                clearable=False,
                multi=multi,
            ),
        ],
        className="choice",
    )


def graph(figure: dict[str, Any], label: str, height: int = 320) -> html.Div:
    figure["layout"]["height"] = height
    drawn = dcc.Graph(
        figure=figure,
        responsive=True,
        config={"displaylogo": False, "displayModeBar": False},
        style={"height": f"{height}px"},
    )
    return html.Div(drawn, role="img", className="figure", **{"aria-label": label})


def outcome(name: str) -> html.Span:
    return html.Span(name, className="outcome", style={"borderColor": OUTCOMES.get(name, "#888")})


def outcomes(counts: Mapping[str, int]) -> html.Div:
    """Draw counts as one bar, with the words beside it."""
    total = sum(counts.values()) or 1
    parts = [
        html.Span(style={"width": f"{100 * n / total:.2f}%", "backgroundColor": OUTCOMES.get(name, "#888")})
        for name, n in counts.items()
    ]
    words = ", ".join(f"{n:,} {name}" for name, n in counts.items()) or "none yet"
    return html.Div([html.Div(parts, className="bar"), html.Small(words)], className="outcomes")


def candidate(number_: int | None) -> Any:
    return "–" if number_ is None else dcc.Link(str(number_), href=f"/candidate?id={number_}")
