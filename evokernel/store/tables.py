"""The tables and views as the newest migration leaves them; versions/ holds the way there."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import JSON, DateTime, Float, ForeignKey, Index, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    type_annotation_map: ClassVar = {dict[str, Any]: JSON, list[Any]: JSON, str: Text, float: Float, datetime: DateTime}


class DeviceRow(Base):
    __tablename__ = "device"
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    model: Mapped[str]
    uuid: Mapped[str]
    facts: Mapped[dict[str, Any]]
    __table_args__ = (UniqueConstraint("model", "uuid", name="uq_device_model_uuid"),)


class RunRow(Base):
    __tablename__ = "run"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    status: Mapped[str]
    config: Mapped[dict[str, Any]]
    problem: Mapped[dict[str, Any]]
    seed: Mapped[int]
    device_id: Mapped[int] = mapped_column(ForeignKey("device.id"))
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    elapsed_s: Mapped[float] = mapped_column(default=0.0)  # over all sittings
    stop_requested: Mapped[bool] = mapped_column(default=False)


class BodyRow(Base):
    __tablename__ = "body"
    digest: Mapped[str] = mapped_column(primary_key=True)
    source: Mapped[str]


class CandidateRow(Base):
    __tablename__ = "candidate"
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"))
    body_digest: Mapped[str] = mapped_column(ForeignKey("body.digest"))
    knobs: Mapped[dict[str, Any]]
    genome_key: Mapped[str]
    shape_class: Mapped[str]
    operator: Mapped[str]
    generation: Mapped[int]
    note: Mapped[str]
    cost_usd: Mapped[float]
    tokens: Mapped[int]
    created_at: Mapped[datetime]
    __table_args__ = (Index("ix_candidate_run", "run_id", "shape_class"),)


class CandidateParentRow(Base):
    __tablename__ = "candidate_parent"
    candidate_id: Mapped[int] = mapped_column(ForeignKey("candidate.id"), primary_key=True)
    parent_id: Mapped[int] = mapped_column(ForeignKey("candidate.id"), primary_key=True)
    position: Mapped[int]


class MeasurementRow(Base):
    __tablename__ = "measurement"
    id: Mapped[int] = mapped_column(primary_key=True)  # completion order within the database
    candidate_id: Mapped[int] = mapped_column(ForeignKey("candidate.id"))
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"))
    outcome: Mapped[str]
    message: Mapped[str]
    fidelity: Mapped[str]
    errors: Mapped[dict[str, Any]]
    resources: Mapped[dict[str, Any]]
    environment: Mapped[dict[str, Any]]
    seconds: Mapped[float]
    device_seconds: Mapped[float]
    worker: Mapped[str]
    created_at: Mapped[datetime]
    reuse_key: Mapped[str | None]  # equal where source, problem, device, software and evaluator all agree
    __table_args__ = (
        Index("ix_measurement_run", "run_id"),
        Index("ix_measurement_candidate", "candidate_id"),
        Index("ix_measurement_reuse", "reuse_key"),
    )


class TimingRow(Base):
    __tablename__ = "timing"
    measurement_id: Mapped[int] = mapped_column(ForeignKey("measurement.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)  # a workload may be both searched and held out
    workload: Mapped[str]
    held_out: Mapped[bool]
    weight: Mapped[float]
    latency_us: Mapped[float]
    spread: Mapped[float]
    baseline: Mapped[str]
    baseline_us: Mapped[float]
    speedup: Mapped[float]
    samples_us: Mapped[list[Any]]
    baseline_samples_us: Mapped[list[Any]]


class SubmissionRow(Base):
    """A candidate handed in by a person or an agent; the driver claims it."""

    __tablename__ = "submission"
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"))
    source: Mapped[str]
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("candidate.id"))
    shape_class: Mapped[str | None]
    note: Mapped[str]
    created_at: Mapped[datetime]
    claimed_at: Mapped[datetime | None]
    candidate_id: Mapped[int | None] = mapped_column(ForeignKey("candidate.id"))
    operator: Mapped[str] = mapped_column(server_default="submit")
    fidelity: Mapped[str] = mapped_column(server_default="full")
    prediction: Mapped[str] = mapped_column(server_default="")
    refusal: Mapped[str] = mapped_column(server_default="")  # why it became no candidate


class ConversationRow(Base):
    __tablename__ = "conversation"
    __table_args__ = (Index("ix_conversation_run", "run_id"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"))
    candidate_id: Mapped[int | None] = mapped_column(ForeignKey("candidate.id"))
    model: Mapped[str]
    messages: Mapped[list[Any]]
    tokens: Mapped[int]
    cost_usd: Mapped[float]
    created_at: Mapped[datetime]


class LessonRow(Base):
    __tablename__ = "lesson"
    __table_args__ = (Index("ix_lesson_candidate", "candidate_id"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"))
    candidate_id: Mapped[int | None] = mapped_column(ForeignKey("candidate.id"))
    tried: Mapped[str]
    prediction: Mapped[str]
    outcome: Mapped[str]
    created_at: Mapped[datetime]


# A candidate's score is derived from its timings, never stored: each workload counts by its median speedup over the
# candidate's measurements, and what was disproved once has none, as in evokernel.measurement.score. SQLite has no
# MEDIAN, hence `ranked`.
VIEWS = {
    "leaderboard": """
        CREATE VIEW leaderboard AS
        WITH ranked AS (
            SELECT m.candidate_id AS candidate_id, t.workload AS workload, t.held_out AS held_out,
                   t.weight AS weight, t.speedup AS speedup,
                   ROW_NUMBER() OVER (PARTITION BY m.candidate_id, t.workload, t.held_out ORDER BY t.speedup) AS place,
                   COUNT(*) OVER (PARTITION BY m.candidate_id, t.workload, t.held_out) AS places
            FROM timing t JOIN measurement m ON m.id = t.measurement_id
            WHERE m.outcome = 'PASSED' AND m.fidelity <> 'screen' AND t.speedup > 0
              AND m.candidate_id NOT IN (SELECT candidate_id FROM measurement WHERE outcome IN ('INCORRECT', 'CHEATED'))
        ), cell AS (
            SELECT candidate_id, workload, held_out, AVG(speedup) AS speedup, AVG(weight) AS weight
            FROM ranked WHERE place IN ((places + 1) / 2, (places + 2) / 2)
            GROUP BY candidate_id, workload, held_out
        ), scored AS (
            SELECT candidate_id, held_out, EXP(SUM(weight * LN(speedup)) / SUM(weight)) AS score,
                   COUNT(*) AS workloads
            FROM cell GROUP BY candidate_id, held_out
        ), widest AS (
            SELECT c.run_id AS run_id, c.shape_class AS shape_class, MAX(s.workloads) AS workloads
            FROM scored s JOIN candidate c ON c.id = s.candidate_id WHERE NOT s.held_out
            GROUP BY c.run_id, c.shape_class
        )
        SELECT r.name AS run, c.shape_class AS shape_class, c.id AS candidate, s.score AS score,
               h.score AS held_out_score, c.operator AS operator, c.generation AS generation,
               (SELECT COUNT(*) FROM measurement m WHERE m.candidate_id = c.id) AS measurements
        FROM scored s
        JOIN candidate c ON c.id = s.candidate_id
        JOIN run r ON r.id = c.run_id
        JOIN widest w ON w.run_id = c.run_id AND w.shape_class = c.shape_class AND w.workloads = s.workloads
        LEFT JOIN scored h ON h.candidate_id = s.candidate_id AND h.held_out
        WHERE NOT s.held_out
    """,
    "lineage": """
        CREATE VIEW lineage AS
        WITH verdict AS (
            SELECT candidate_id,
                   CASE WHEN MAX(CASE WHEN outcome = 'CHEATED' THEN 1 ELSE 0 END) = 1 THEN 'CHEATED'
                        WHEN MAX(CASE WHEN outcome = 'INCORRECT' THEN 1 ELSE 0 END) = 1 THEN 'INCORRECT'
                        WHEN MAX(CASE WHEN outcome = 'PASSED' THEN 1 ELSE 0 END) = 1 THEN 'PASSED'
                        ELSE MIN(outcome) END AS outcome
            FROM measurement GROUP BY candidate_id
        )
        SELECT r.name AS run, c.id AS candidate, p.parent_id AS parent, c.shape_class AS shape_class,
               c.operator AS operator, c.generation AS generation, l.score AS score, v.outcome AS outcome
        FROM candidate c
        JOIN run r ON r.id = c.run_id
        LEFT JOIN candidate_parent p ON p.candidate_id = c.id
        LEFT JOIN leaderboard l ON l.candidate = c.id
        LEFT JOIN verdict v ON v.candidate_id = c.id
    """,
    "progress": """
        CREATE VIEW progress AS
        WITH scored AS (
            SELECT t.measurement_id AS measurement_id, EXP(SUM(t.weight * LN(t.speedup)) / SUM(t.weight)) AS score
            FROM timing t JOIN measurement m ON m.id = t.measurement_id
            WHERE m.outcome = 'PASSED' AND m.fidelity <> 'screen' AND t.speedup > 0 AND NOT t.held_out
            GROUP BY t.measurement_id
        )
        SELECT r.name AS run, c.shape_class AS shape_class, m.id AS measurement, c.id AS candidate,
               m.outcome AS outcome, m.created_at AS created_at, m.seconds AS seconds,
               ROW_NUMBER() OVER (PARTITION BY m.run_id ORDER BY m.id) AS evaluation, s.score AS score,
               MAX(s.score) OVER (PARTITION BY m.run_id, c.shape_class ORDER BY m.id) AS best
        FROM measurement m
        JOIN candidate c ON c.id = m.candidate_id
        JOIN run r ON r.id = m.run_id
        LEFT JOIN scored s ON s.measurement_id = m.id
    """,
    "failures": """
        CREATE VIEW failures AS
        SELECT r.name AS run, c.id AS candidate, c.shape_class AS shape_class, c.operator AS operator,
               m.outcome AS outcome, m.message AS message, m.seconds AS seconds, m.created_at AS created_at
        FROM measurement m JOIN candidate c ON c.id = m.candidate_id JOIN run r ON r.id = m.run_id
        WHERE m.outcome <> 'PASSED'
    """,
}
