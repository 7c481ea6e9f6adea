"""Write what the pages draw as plain HTML: every text is escaped, figures carry their data."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.io
from dash.development.base_component import Component

VOID = {"br", "hr", "img", "input"}
NAMES = {"className": "class", "htmlFor": "for", "tabIndex": "tabindex"}
SKIPPED = {"children", "id", "key", "n_clicks"}


def render(part: Any) -> str:
    """Return HTML for a component, a text, or a list of them."""
    if part is None:
        return ""
    if not isinstance(part, Component):
        return "".join(map(render, part)) if isinstance(part, list | tuple) else html.escape(str(part))
    plain = part.to_plotly_json()
    kind, props = plain["type"], plain["props"]
    if kind == "Graph":
        figure = plotly.io.to_html(props["figure"], include_plotlyjs=False, full_html=False, validate=False)
        return f'<div style="height:{props["figure"]["layout"]["height"]}px">{figure}</div>'
    if kind == "Link":  # pages of the dashboard, which a file does not have
        return f"<span>{render(props.get('children'))}</span>"
    tag = kind.lower()
    opening = f"<{tag}{_attributes(props)}>"
    return opening if tag in VOID else f"{opening}{render(props.get('children'))}</{tag}>"


def _attributes(props: Mapping[str, Any]) -> str:
    found = []
    for name, value in props.items():
        if name in SKIPPED or value is None or value is False:
            continue
        if name == "style":
            value = ";".join(f"{_dashed(k)}:{v}" for k, v in value.items())
        elif not isinstance(value, str | int | float):
            continue
        shown = "" if value is True else html.escape(str(value))
        found.append(f' {NAMES.get(name, name)}="{shown}"')
    return "".join(found)


def _dashed(name: str) -> str:
    return "".join(f"-{c.lower()}" if c.isupper() else c for c in name)


def document(title: str, parts: Sequence[Any], style: str) -> str:
    """Return one file that needs no other: style, figures' library and data are inside."""
    from plotly.offline import get_plotlyjs

    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{style}</style><script>{get_plotlyjs()}</script></head>"
        f'<body class="report"><main id="main">{render(list(parts))}</main></body></html>\n'
    )
