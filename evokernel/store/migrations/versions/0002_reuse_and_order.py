"""Keep the order of timings, let one workload be searched and held out, find measurements to re-use; new views."""

import sqlalchemy as sa
from alembic import op

from evokernel.store.tables import VIEWS

revision = "0002"
down_revision = "0001"

COPIED = (
    "workload, held_out, weight, latency_us, spread, baseline, baseline_us, speedup, samples_us, baseline_samples_us"
)


def upgrade() -> None:
    # Views first: neither database lets a table go that a view names. The next migration to touch VIEWS moves these
    # two loops there.
    for name in reversed(VIEWS):
        op.execute(f"DROP VIEW IF EXISTS {name}")
    op.add_column("measurement", sa.Column("reuse_key", sa.Text()))
    op.execute("UPDATE measurement SET reuse_key = environment ->> 'reuse_key'")
    op.create_index("ix_measurement_reuse", "measurement", ["reuse_key"])
    # SQLite cannot change a primary key: the rows move to a new table. Their order was by name, as they were read.
    op.create_table(
        "ordered_timing",
        sa.Column("measurement_id", sa.Integer(), sa.ForeignKey("measurement.id"), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("workload", sa.Text(), nullable=False),
        sa.Column("held_out", sa.Boolean(), nullable=False),
        *(sa.Column(name, sa.Float(), nullable=False) for name in ("weight", "latency_us", "spread")),
        sa.Column("baseline", sa.Text(), nullable=False),
        *(sa.Column(name, sa.Float(), nullable=False) for name in ("baseline_us", "speedup")),
        *(sa.Column(name, sa.JSON(), nullable=False) for name in ("samples_us", "baseline_samples_us")),
        sa.PrimaryKeyConstraint("measurement_id", "position", name="pk_timing"),
    )
    op.execute(
        f"INSERT INTO ordered_timing (measurement_id, position, {COPIED}) SELECT measurement_id, "
        f"ROW_NUMBER() OVER (PARTITION BY measurement_id ORDER BY workload) - 1, {COPIED} FROM timing"
    )
    op.drop_table("timing")
    op.rename_table("ordered_timing", "timing")
    for statement in VIEWS.values():
        op.execute(statement)
