"""Bring a database to the newest schema when asked to, and say from where to where."""

from __future__ import annotations

from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine

from evokernel.store.engine import open_engine


def upgrade(url: str) -> tuple[str, str]:
    """Return the schema before and after; StoreError in one line when there is no database, or it is not ours."""
    before = open_engine(url, create=False, migrate=False)
    old = _revision(before)
    before.dispose()
    after = open_engine(url, create=False)
    new = _revision(after)
    after.dispose()
    return old, new


def _revision(engine: Engine) -> str:
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision() or "none"
