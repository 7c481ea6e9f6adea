"""The application: routing, the frame around the pages, and who may look."""

from __future__ import annotations

import gc
import secrets
from contextlib import nullcontext
from typing import Any
from urllib.parse import urlencode, urlsplit

import dash
from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component
from flask import Response, abort, redirect, request

from evokernel.dashboard import ui
from evokernel.dashboard.data.follow import Follower
from evokernel.dashboard.pages import ask, candidate, compare, landscape, leaderboard, lineage, run, runs
from evokernel.dashboard.view import View
from evokernel.store import Store

PAGES: dict[str, Any] = {p.PATH: p for p in (runs, run, leaderboard, candidate, lineage, landscape, compare, ask)}
REFRESH_MS = 4000
COOKIE = "evokernel_token"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def make(url: str, token: str | None = None) -> Dash:
    """Build the dashboard of a database; StoreError when it cannot be opened.

    Without a token only requests addressed to this machine's loopback are answered, so that a page elsewhere cannot
    read the database through a name that it lets point here. With one, every request must bring it.
    """
    follower = Follower(Store.open(url, create=False, read_only=True))
    app = Dash(
        __name__,
        title="evokernel",
        update_title=None,  # type: ignore[arg-type]  # None leaves the title alone
        serve_locally=True,
        suppress_callback_exceptions=True,
        eager_loading=True,
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
    )
    app.layout = _frame()
    _route(app, follower, url)
    leaderboard.register(app, follower)
    lineage.register(app, follower)
    ask.register(app, url)
    _guard(app, token)
    for found in follower.runs():  # read what is there before the first visitor waits for it
        follower.follow(found)
    gc.collect()
    gc.freeze()  # it stays as long as the server: looking through it for garbage would hold up a visitor for 0.5 s
    return app


def _frame() -> Any:
    return html.Div(
        [
            dcc.Location(id="url", refresh="callback-nav"),
            dcc.Interval(id="tick", interval=REFRESH_MS),
            dcc.Store(id="drawn"),
            html.A("Skip to content", href="#main", className="skip"),
            html.Header(
                [
                    html.Strong("evokernel"),
                    html.Nav(id="pages", **{"aria-label": "pages"}),
                    html.Div(id="chooser"),
                    html.Button("Light / dark", id="theme", type="button"),
                ]
            ),
            html.Main(id="main", tabIndex="-1"),
        ]
    )


def _route(app: Dash, follower: Follower, url: str) -> None:
    @app.callback(
        Output("main", "children"),
        Output("pages", "children"),
        Output("chooser", "children"),
        Output("drawn", "data"),
        Input("url", "pathname"),
        Input("url", "search"),
        Input("tick", "n_intervals"),
        State("drawn", "data"),
    )
    def show(path: str | None, search: str | None, ticks: int | None, drawn: str | None) -> Any:
        view = View.of(follower, url, path, search)
        page = PAGES.get(view.path)
        ticked = set(ctx.triggered_prop_ids) == {"tick.n_intervals"}
        if ticked and not (page and page.LIVE):
            return no_update
        with follower.lock:
            state = repr((path, search, _state(view)))
            if ticked and state == drawn:
                return no_update
        # A question may take seconds and looks at no snapshot: others need not wait for it.
        with nullcontext() if page is ask else follower.lock:
            body = page.draw(view) if page else ui.section("Not here", ui.nothing(f"No page {view.path}."))
        if ticked:
            return plain(body), no_update, no_update, state
        return plain(body), plain(_links(view)), plain(_chooser(view)), state

    # A list that a reader opened says what it showed (`now`), so that drawing it is not taken for a choice.
    app.clientside_callback(
        dash.ClientsideFunction("evokernel", "chosen"),
        Output("url", "search"),
        Input({"type": "choice", "key": ALL, "now": ALL}, "value"),
        State({"type": "choice", "key": ALL, "now": ALL}, "id"),
        State("url", "search"),
        prevent_initial_call=True,
    )


def plain(part: Any) -> Any:
    """Turn components into the dictionaries that they are sent as: what is plain already is encoded much faster."""
    if isinstance(part, list | tuple):
        return [plain(each) for each in part]
    if not isinstance(part, Component):
        return part
    made = part.to_plotly_json()
    if "children" in made["props"]:
        made["props"]["children"] = plain(made["props"]["children"])
    return made


def _state(view: View) -> Any:
    """Return what changes when a live page has something new to show."""
    if view.path == runs.PATH:
        return [(r.name, r.status, view.follower.follow(r).version) for r in view.follower.runs()]
    snapshot = view.snapshot
    return snapshot and (snapshot.run.name, snapshot.run.status, snapshot.version)


def _links(view: View) -> list[Any]:
    return [
        dcc.Link(
            page.TITLE,
            href=view.to(path),
            className="page chosen" if path == view.path else "page",
        )
        for path, page in PAGES.items()
    ]


def _chooser(view: View) -> Any:
    names = [r.name for r in view.follower.runs()]
    if not names or view.path not in (run.PATH, leaderboard.PATH, lineage.PATH, landscape.PATH):
        return None
    asked = view.query.get("run")
    return ui.choice("run", "run", names, asked if asked in names else names[0])


def _guard(app: Dash, token: str | None) -> None:
    @app.server.before_request
    def admit() -> Any:
        if token is None:
            name = urlsplit(f"//{request.host}").hostname
            return None if name in LOOPBACK else abort(403, "this dashboard answers to localhost only")
        brought = request.args.get("token")
        if brought is not None and secrets.compare_digest(brought.encode(), token.encode()):
            rest = {k: v for k, v in request.args.items() if k != "token"}
            answer = redirect(f"{request.path}{'?' + urlencode(rest) if rest else ''}")
            answer.set_cookie(COOKIE, token, httponly=True, samesite="Strict")
            return answer
        if not secrets.compare_digest(request.cookies.get(COOKIE, "").encode(), token.encode()):
            abort(401, "open the address with ?token=... that `evokernel dashboard` printed")
        return None

    scripts = " ".join(app.csp_hashes())

    @app.server.after_request
    def policy(answer: Response) -> Response:
        # Whatever slips into a page as mark-up still cannot run, nor fetch from elsewhere.
        answer.headers["Content-Security-Policy"] = (
            f"default-src 'self'; script-src 'self' {scripts}; style-src 'self' 'unsafe-inline'; "
            "img-src 'self' data: blob:; font-src 'self' data:; object-src 'none'; base-uri 'none'; "
            "frame-ancestors 'none'; form-action 'self'"
        )
        answer.headers["X-Content-Type-Options"] = "nosniff"
        answer.headers["Referrer-Policy"] = "no-referrer"
        return answer


__all__ = ["LOOPBACK", "PAGES", "make"]
