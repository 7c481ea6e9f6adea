"""Ask the database in SQL, within limits."""

from __future__ import annotations

from typing import Any

import dash_ag_grid as grid
from dash import Dash, Input, Output, State, dcc, html, no_update

from evokernel.dashboard import ui
from evokernel.dashboard.data import asking
from evokernel.dashboard.view import View

PATH, TITLE, LIVE = "/ask", "Ask", False


def draw(view: View) -> Any:
    saved = view.query.get("saved", "")
    sql = asking.SAVED.get(saved, "SELECT * FROM leaderboard ORDER BY score DESC LIMIT 20")
    links = ui.tabs("saved queries", "saved", list(asking.SAVED), saved, view)
    return ui.section(
        "Ask",
        links,
        html.Label("SQL", htmlFor="sql", className="label"),
        dcc.Textarea(id="sql", value=sql, spellCheck=False, rows=5),
        html.Div(
            [
                html.Button("Ask", id="ask", className="primary"),
                html.Button("CSV", id="ask-csv"),
                html.Button("JSON", id="ask-json"),
                html.Span("Ctrl+Enter asks", className="note"),
            ],
            className="controls",
        ),
        dcc.Download(id="download"),
        html.Div(show(asking.ask(view.url, sql)) if saved else None, id="answered", **{"aria-live": "polite"}),
        note=f"Read-only; at most {asking.ROWS:,} rows and {asking.SECONDS:g} seconds. "
        "Views: leaderboard, lineage, progress, failures.",
    )


def show(answer: asking.Answer) -> Any:
    if answer.error:
        return html.P(answer.error, role="alert", className="error")
    more = f"; there are more than {asking.ROWS:,}" if answer.more else ""
    said = html.P(f"{len(answer.rows):,} rows in {answer.seconds:.2f} s{more}", className="note")
    fields = [f"c{i}" for i in range(len(answer.columns))]  # a column may have any name, or the same as another
    rows = [{f: _cell(v) for f, v in zip(fields, row, strict=True)} for row in answer.rows]
    made = grid.AgGrid(
        columnDefs=[{"field": f, "headerName": name} for f, name in zip(fields, answer.columns, strict=True)],
        rowData=rows,
        columnSize="autoSize",
        defaultColDef={"sortable": True, "resizable": True, "filter": True, "maxWidth": 520},
        dashGridOptions={"theme": {"function": "evokernelTheme(themeQuartz)"}, "enableCellTextSelection": True},
        style={"height": "46vh"},
    )
    return [said, made]


def _cell(value: Any) -> Any:
    return value if isinstance(value, int | float | str) or value is None else str(value)


def register(app: Dash, url: str) -> None:
    @app.callback(
        Output("answered", "children"), Input("ask", "n_clicks"), State("sql", "value"), prevent_initial_call=True
    )
    def answered(clicks: int | None, sql: str | None) -> Any:
        return show(asking.ask(url, sql or "")) if clicks else no_update

    for kind in ("csv", "json"):

        @app.callback(
            Output("download", "data", allow_duplicate=True),
            Input(f"ask-{kind}", "n_clicks"),
            State("sql", "value"),
            prevent_initial_call=True,
        )
        def download(clicks: int | None, sql: str | None, kind: str = kind) -> Any:
            if not clicks:
                return no_update
            answer = asking.ask(url, sql or "")
            if answer.error:
                return no_update
            text = answer.as_csv() if kind == "csv" else answer.as_json()
            return {"content": text, "filename": f"answer.{kind}"}
