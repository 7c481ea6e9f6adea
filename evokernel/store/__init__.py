"""The database of runs, candidates and measurements: the only home of SQLAlchemy and Alembic."""

from evokernel.store.store import Conversation, Lesson, Run, Store, Submission, made_up_name

__all__ = ["Conversation", "Lesson", "Run", "Store", "Submission", "made_up_name"]
