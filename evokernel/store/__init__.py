"""The database of runs, candidates and measurements: the only home of SQLAlchemy and Alembic."""

from evokernel.store.store import Run, Store, made_up_name

__all__ = ["Run", "Store", "made_up_name"]
