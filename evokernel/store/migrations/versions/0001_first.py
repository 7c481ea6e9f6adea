"""Create the first schema. Its views came from the models and are made anew by the latest migration that names them."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def key() -> sa.Column[Any]:
    return sa.Column("id", sa.Integer(), primary_key=True)


def number(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Integer(), nullable=False)


def real(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Float(), nullable=False)


def text(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def json(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.JSON(), nullable=False)


def moment(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(), nullable=nullable)


def refers(name: str, target: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Integer(), sa.ForeignKey(target), nullable=nullable)


def upgrade() -> None:
    op.create_table("body", sa.Column("digest", sa.Text(), primary_key=True), text("source"))
    op.create_table(
        "device",
        key(),
        *(text(name) for name in ("kind", "model", "uuid")),
        json("facts"),
        sa.UniqueConstraint("model", "uuid", name="uq_device_model_uuid"),
    )
    op.create_table(
        "run",
        key(),
        text("name"),
        text("status"),
        json("config"),
        json("problem"),
        number("seed"),
        refers("device_id", "device.id"),
        moment("started_at"),
        moment("finished_at", nullable=True),
        real("elapsed_s"),
        sa.Column("stop_requested", sa.Boolean(), nullable=False),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "candidate",
        key(),
        refers("run_id", "run.id"),
        sa.Column("body_digest", sa.Text(), sa.ForeignKey("body.digest"), nullable=False),
        json("knobs"),
        text("genome_key"),
        text("shape_class"),
        text("operator"),
        number("generation"),
        text("note"),
        real("cost_usd"),
        number("tokens"),
        moment("created_at"),
    )
    op.create_index("ix_candidate_run", "candidate", ["run_id", "shape_class"])
    op.create_table(
        "candidate_parent",
        refers("candidate_id", "candidate.id"),
        refers("parent_id", "candidate.id"),
        number("position"),
        sa.PrimaryKeyConstraint("candidate_id", "parent_id"),
    )
    op.create_table(
        "measurement",
        key(),
        refers("candidate_id", "candidate.id"),
        refers("run_id", "run.id"),
        *(text(name) for name in ("outcome", "message", "fidelity")),
        *(json(name) for name in ("errors", "resources", "environment")),
        *(real(name) for name in ("seconds", "device_seconds")),
        text("worker"),
        moment("created_at"),
    )
    op.create_index("ix_measurement_run", "measurement", ["run_id"])
    op.create_index("ix_measurement_candidate", "measurement", ["candidate_id"])
    op.create_table(
        "timing",
        refers("measurement_id", "measurement.id"),
        text("workload"),
        sa.Column("held_out", sa.Boolean(), nullable=False),
        real("weight"),
        real("latency_us"),
        real("spread"),
        text("baseline"),
        real("baseline_us"),
        real("speedup"),
        json("samples_us"),
        json("baseline_samples_us"),
        sa.PrimaryKeyConstraint("measurement_id", "workload"),
    )
    op.create_table(
        "submission",
        key(),
        refers("run_id", "run.id"),
        text("source"),
        refers("parent_id", "candidate.id", nullable=True),
        text("shape_class", nullable=True),
        text("note"),
        moment("created_at"),
        moment("claimed_at", nullable=True),
        refers("candidate_id", "candidate.id", nullable=True),
    )
    op.create_table(
        "conversation",
        key(),
        refers("run_id", "run.id"),
        refers("candidate_id", "candidate.id", nullable=True),
        text("model"),
        json("messages"),
        number("tokens"),
        real("cost_usd"),
        moment("created_at"),
    )
    op.create_table(
        "lesson",
        key(),
        refers("run_id", "run.id"),
        refers("candidate_id", "candidate.id", nullable=True),
        *(text(name) for name in ("tried", "prediction", "outcome")),
        moment("created_at"),
    )
