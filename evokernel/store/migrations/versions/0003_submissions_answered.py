"""Let a submission say what is asked of it, and carry the answer."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    for name, default in (("operator", "submit"), ("fidelity", "full"), ("prediction", ""), ("refusal", "")):
        op.add_column("submission", sa.Column(name, sa.Text(), nullable=False, server_default=default))
    op.create_index("ix_conversation_run", "conversation", ["run_id"])
    op.create_index("ix_lesson_candidate", "lesson", ["candidate_id"])
