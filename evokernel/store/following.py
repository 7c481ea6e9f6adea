"""Read what a run has gained since a given point, as plain rows: its tables only grow, so a reader keeps up cheaply."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Engine, func, select, type_coerce
from sqlalchemy.types import Text

from evokernel.store.tables import (
    CandidateParentRow,
    CandidateRow,
    ConversationRow,
    LessonRow,
    MeasurementRow,
    SubmissionRow,
    TimingRow,
)


class NewCandidate(NamedTuple):
    """A proposal; `knobs_json` stays text until someone looks at it."""

    id: int
    body: str
    knobs_json: str
    shape_class: str
    operator: str
    generation: int
    note: str
    cost_usd: float
    tokens: int
    created_at: datetime


class NewTiming(NamedTuple):
    """Medians of one workload, in microseconds; `speedup` is baseline ÷ candidate."""

    workload: str
    held_out: bool
    weight: float
    latency_us: float
    spread: float
    baseline: str
    baseline_us: float
    speedup: float


class NewMeasurement(NamedTuple):
    """A verdict; `resources_json` stays text until someone looks at it."""

    id: int
    candidate_id: int
    outcome: str
    fidelity: str
    resources_json: str
    seconds: float
    device_seconds: float
    created_at: datetime


@dataclass(frozen=True)
class Gain:
    """What a run has gained, each list in order of its numbers."""

    candidates: Sequence[NewCandidate]
    parents: Mapping[int, tuple[int, ...]]
    measurements: Sequence[NewMeasurement]
    timings: Mapping[int, list[NewTiming]]  # by measurement


@dataclass(frozen=True)
class Said:
    """What the tables hold about a candidate beside its measurements; empty where nothing was stored."""

    conversations: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    lessons: Sequence[Mapping[str, str]] = field(default_factory=tuple)


def gained(engine: Engine, run_id: int, after_candidate: int, after_measurement: int) -> Gain:
    """Return what was stored after the given numbers; 0 and 0 for everything."""
    m, c = MeasurementRow, CandidateRow
    theirs = (m.run_id == run_id) & (m.id > after_measurement)
    with engine.connect() as connection:
        measurements = [
            NewMeasurement._make(row)
            for row in connection.execute(
                select(
                    m.id,
                    m.candidate_id,
                    m.outcome,
                    m.fidelity,
                    type_coerce(m.resources, Text),
                    m.seconds,
                    m.device_seconds,
                    m.created_at,
                )
                .where(theirs)
                .order_by(m.id)
            )
        ]
        timings: dict[int, list[NewTiming]] = {}
        if measurements:
            t = TimingRow
            found = connection.execute(
                select(
                    t.measurement_id,
                    t.workload,
                    t.held_out,
                    t.weight,
                    t.latency_us,
                    t.spread,
                    t.baseline,
                    t.baseline_us,
                    t.speedup,
                )
                .join(m, m.id == t.measurement_id)
                .where(theirs, m.id <= measurements[-1].id)
                .order_by(t.measurement_id, t.position)
            )
            for number, *timing in found:
                timings.setdefault(number, []).append(NewTiming._make(timing))
        # After the measurements: a driver may be writing, and then every candidate measured is among them.
        new = (c.run_id == run_id) & (c.id > after_candidate)
        candidates = [
            NewCandidate._make(row)
            for row in connection.execute(
                select(
                    c.id,
                    c.body_digest,
                    type_coerce(c.knobs, Text),
                    c.shape_class,
                    c.operator,
                    c.generation,
                    c.note,
                    c.cost_usd,
                    c.tokens,
                    c.created_at,
                )
                .where(new)
                .order_by(c.id)
            )
        ]
        parents: dict[int, tuple[int, ...]] = {}
        p = CandidateParentRow
        if candidates:
            for number, parent in connection.execute(
                select(p.candidate_id, p.parent_id)
                .join(c, c.id == p.candidate_id)
                .where(new, c.id <= candidates[-1].id)
                .order_by(p.candidate_id, p.position)
            ):
                parents[number] = (*parents.get(number, ()), parent)
    return Gain(candidates, parents, measurements, timings)


def decoded(value: str | Mapping[str, Any]) -> dict[str, Any]:
    """Read a JSON column that was fetched as text; PostgreSQL's driver hands it over decoded."""
    found = json.loads(value) if isinstance(value, str) else value
    return dict(found) if isinstance(found, Mapping) else {}


def unclaimed(engine: Engine, run_id: int) -> int:
    """Count the submissions that wait for the driver."""
    waiting = (SubmissionRow.run_id == run_id) & SubmissionRow.claimed_at.is_(None)
    with engine.connect() as connection:
        return int(connection.scalar(select(func.count(SubmissionRow.id)).where(waiting)) or 0)


def said(engine: Engine, candidate_id: int) -> Said:
    """Return the conversations and lessons of one candidate."""
    v, w = ConversationRow, LessonRow
    with engine.connect() as connection:
        conversations = connection.execute(
            select(v.model, v.messages, v.tokens, v.cost_usd).where(v.candidate_id == candidate_id).order_by(v.id)
        )
        lessons = connection.execute(
            select(w.tried, w.prediction, w.outcome).where(w.candidate_id == candidate_id).order_by(w.id)
        )
        return Said([dict(r._mapping) for r in conversations], [dict(r._mapping) for r in lessons])
