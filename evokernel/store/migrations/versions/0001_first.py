"""Create the first schema."""

from alembic import op

from evokernel.store.tables import VIEWS, Base

revision = "0001"
down_revision = None


def upgrade() -> None:
    # The first revision may build from the models; once a second one exists, this is frozen as explicit operations.
    Base.metadata.create_all(op.get_bind())
    for statement in VIEWS.values():
        op.execute(statement)
