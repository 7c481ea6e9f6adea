"""The scored candidates of a shape class, sorted and filtered here: a browser is sent one window of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evokernel.dashboard.data.follow import BODY, Entry, Snapshot

FACTS = ("registers", "spill_bytes", "shared_bytes", "compile_s")
PLAIN: dict[str, Callable[[Entry], Any]] = {
    "candidate": lambda e: e.id,
    "score": lambda e: e.score,
    "held_out": lambda e: e.held_out,
    "verified": lambda e: "yes" if e.verified else "no",
    "operator": lambda e: e.row.operator,
    "generation": lambda e: e.row.generation,
    "measurements": lambda e: len(e.outcomes),
}


def scored(snapshot: Snapshot, shape_class: str) -> list[Entry]:
    """Return the scored candidates of a class, the best first."""

    def make() -> list[Entry]:
        found = [e for e in snapshot.parts[shape_class].entries if e.score is not None]
        return sorted(found, key=lambda e: -(e.score or 0.0))

    found: list[Entry] = snapshot.remember(("scored", shape_class), make)
    return found


def knob_names(snapshot: Snapshot, shape_class: str) -> list[str]:
    """Return every knob that a candidate of the class has, in the order of first sight, which never changes."""
    return [name for name in snapshot.parts[shape_class].first if name != BODY]


def columns(snapshot: Snapshot, shape_class: str) -> list[dict[str, str]]:
    """Return the fields of a row, each with its heading and kind: plain, speedup, knob or fact.

    Fields have numbers where names could be anything: a dot in a field means something to the grid.
    """
    facts = {name for e in scored(snapshot, shape_class)[:50] for name in e.facts}
    return [
        *({"field": name, "name": name.replace("_", " "), "kind": "plain"} for name in PLAIN),
        *(
            {"field": f"speedup{i}", "name": name, "kind": "speedup"}
            for i, name in enumerate(snapshot.workloads(shape_class))
        ),
        *(
            {"field": f"knob{i}", "name": name, "kind": "knob"}
            for i, name in enumerate(knob_names(snapshot, shape_class))
        ),
        *({"field": name, "name": name.replace("_", " "), "kind": "fact"} for name in FACTS if name in facts),
    ]


def getter(snapshot: Snapshot, shape_class: str, field: str) -> Callable[[Entry], Any]:
    """Return what reads a field of a row; one that gives None for a field that is not there."""
    if field in PLAIN:
        return PLAIN[field]
    if field in FACTS:
        return lambda e: e.facts.get(field)
    if workload := _numbered(field, "speedup", snapshot.workloads(shape_class)):
        return lambda e: e.speedups().get(workload)
    if knob := _numbered(field, "knob", knob_names(snapshot, shape_class)):
        return lambda e: e.knobs.get(knob)
    return lambda e: None


def _numbered(field: str, prefix: str, names: Sequence[str]) -> str | None:
    number = field.removeprefix(prefix)
    known = field.startswith(prefix) and number.isdecimal() and int(number) < len(names)
    return names[int(number)] if known else None


def window(
    snapshot: Snapshot,
    shape_class: str,
    sort: Sequence[Mapping[str, str]] = (),
    filters: Mapping[str, Mapping[str, Any]] | None = None,
    start: int = 0,
    end: int = 100,
) -> tuple[list[dict[str, Any]], int]:
    """Return rows start to end of those that pass the filters, in the order asked, and how many pass."""
    asked = repr((sort, filters))
    chosen: list[Entry] = snapshot.remember(
        ("window", shape_class, asked), lambda: _chosen(snapshot, shape_class, sort, filters or {})
    )
    fields = [column["field"] for column in columns(snapshot, shape_class)]
    readers = {field: getter(snapshot, shape_class, field) for field in fields}
    rows = [{field: read(entry) for field, read in readers.items()} for entry in chosen[start:end]]
    return rows, len(chosen)


def _chosen(
    snapshot: Snapshot,
    shape_class: str,
    sort: Sequence[Mapping[str, str]],
    filters: Mapping[str, Mapping[str, Any]],
) -> list[Entry]:
    found = scored(snapshot, shape_class)
    for field, wanted in filters.items():
        read = getter(snapshot, shape_class, field)
        found = [entry for entry in found if passes(read(entry), wanted)]
    for order in reversed(sort):
        read = getter(snapshot, shape_class, order["colId"])
        keyed = [(read(entry), entry) for entry in found]
        known = [pair for pair in keyed if pair[0] is not None]
        known.sort(key=lambda pair: sortable(pair[0]), reverse=order["sort"] == "desc")
        found = [entry for _, entry in known] + [entry for value, entry in keyed if value is None]  # unknown: last
    return found


def sortable(value: Any) -> tuple[int, float, str]:
    """Return a key by which numbers come before words: a knob may have both."""
    if isinstance(value, int | float):
        return 0, float(value), ""
    return 1, 0.0, str(value)


def passes(value: Any, wanted: Mapping[str, Any]) -> bool:
    """Judge a value by one of the grid's filters: text or number, or two of them joined by AND or OR."""
    if "conditions" in wanted:
        each = [passes(value, condition) for condition in wanted["conditions"]]
        return all(each) if wanted.get("operator") == "AND" else any(each)
    kind, bound = wanted.get("type"), wanted.get("filter")
    if kind in ("blank", "notBlank"):
        return bool((value is None) == (kind == "blank"))
    if value is None:
        return False
    if wanted.get("filterType") == "number":
        return _number_passes(float(value) if isinstance(value, int | float) else None, str(kind), bound, wanted)
    text, part = str(value).lower(), str(bound or "").lower()
    verdict = {
        "contains": part in text,
        "notContains": part not in text,
        "equals": text == part,
        "notEqual": text != part,
        "startsWith": text.startswith(part),
        "endsWith": text.endswith(part),
    }
    return bool(verdict.get(str(kind), True))


def _number_passes(value: float | None, kind: str, bound: Any, wanted: Mapping[str, Any]) -> bool:
    if value is None or bound is None:
        return value is not None
    low, high = float(str(bound)), float(str(wanted.get("filterTo") or bound))
    verdicts = {
        "equals": value == low,
        "notEqual": value != low,
        "lessThan": value < low,
        "lessThanOrEqual": value <= low,
        "greaterThan": value > low,
        "greaterThanOrEqual": value >= low,
        "inRange": low <= value <= high,
    }
    return bool(verdicts.get(kind, True))
