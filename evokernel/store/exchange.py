"""What passes between a driver, models and people: submissions answered, lessons settled, spending kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import delete, exists, func, select, text, update
from sqlalchemy.orm import Session

from evokernel.store import rows
from evokernel.store.tables import (
    CandidateParentRow,
    CandidateRow,
    ConversationRow,
    LessonRow,
    MeasurementRow,
    SubmissionRow,
)

if TYPE_CHECKING:
    from evokernel.store.store import Conversation, Store

OPEN = "(unfinished)"  # the model of the row that holds what was spent and belongs to no conversation yet


@dataclass(frozen=True)
class Answer:
    """What became of a submission: a candidate, or the reason why not. Neither while it waits."""

    candidate_id: int | None
    refusal: str


def answer(store: Store, submission_id: int, candidate_id: int | None = None, refusal: str = "") -> None:
    values = {"candidate_id": candidate_id, "refusal": rows.text(refusal)}
    store._write(lambda s: s.execute(update(SubmissionRow).where(SubmissionRow.id == submission_id).values(**values)))


def answered(store: Store, submission_id: int) -> Answer | None:
    """Return what became of a submission, or None while it waits."""
    with Session(store.engine) as session:
        row = session.get(SubmissionRow, submission_id)
    if row is None or (row.candidate_id is None and not row.refusal):
        return None
    return Answer(row.candidate_id, row.refusal)


def waiting(store: Store, run_id: int) -> bool:
    """Say whether a run has submissions to be claimed."""
    unclaimed = select(SubmissionRow.id).where(SubmissionRow.run_id == run_id, SubmissionRow.claimed_at.is_(None))
    with Session(store.engine) as session:
        return session.scalar(unclaimed.limit(1)) is not None


def reopen(store: Store, run_id: int) -> None:
    """Let submissions be claimed again whose driver ended before it answered them."""
    unanswered = SubmissionRow.candidate_id.is_(None) & (SubmissionRow.refusal == "")
    store._write(
        lambda s: s.execute(
            update(SubmissionRow).where(SubmissionRow.run_id == run_id, unanswered).values(claimed_at=None)
        )
    )


def settle(store: Store, candidate_id: int, outcome: str) -> None:
    """Write what came out of what was tried."""
    values = {"outcome": rows.text(outcome)}
    store._write(lambda s: s.execute(update(LessonRow).where(LessonRow.candidate_id == candidate_id).values(**values)))


def conversations_about(store: Store, candidate_id: int) -> list[Conversation]:
    """Return the conversations that a candidate came of, the latest last."""
    from evokernel.store.store import Conversation

    with Session(store.engine) as session:
        found = session.scalars(
            select(ConversationRow).filter_by(candidate_id=candidate_id).order_by(ConversationRow.id)
        )
        return [Conversation(r.model, r.messages, r.candidate_id, r.tokens, r.cost_usd) for r in found]


def spent_on_models(session: Session, run_id: int) -> tuple[float, int]:
    """Return USD and tokens of a run: of its conversations, and of candidates that came without one."""
    talked = exists().where(ConversationRow.candidate_id == CandidateRow.id)
    usd, tokens = session.execute(
        select(func.sum(ConversationRow.cost_usd), func.sum(ConversationRow.tokens)).where(
            ConversationRow.run_id == run_id
        )
    ).one()
    more_usd, more_tokens = session.execute(
        select(func.sum(CandidateRow.cost_usd), func.sum(CandidateRow.tokens)).where(
            CandidateRow.run_id == run_id, ~talked
        )
    ).one()
    return (usd or 0.0) + (more_usd or 0.0), (tokens or 0) + (more_tokens or 0)


def keep_unfinished(store: Store, run_id: int, row_id: int | None, tokens: int, cost_usd: float) -> int | None:
    """Keep what conversations under way have cost, so that a killed driver's successor knows; returns the row."""
    from evokernel.store.store import now

    def work(session: Session) -> int | None:
        if row_id is not None and not tokens and not cost_usd:
            session.execute(delete(ConversationRow).where(ConversationRow.id == row_id))
            return None
        row = session.get(ConversationRow, row_id) if row_id is not None else None
        if row is None:
            row = ConversationRow(run_id=run_id, candidate_id=None, model=OPEN, messages=[], created_at=now())
        row.tokens, row.cost_usd = tokens, cost_usd
        session.add(row)
        session.flush()
        return row.id

    return store._write(work)


def leading(store: Store, run_name: str, shape_class: str | None, count: int) -> list[tuple[str, int, float, str]]:
    """Return (shape class, candidate, score, operator) of the best candidates."""
    chosen = "AND shape_class = :shape_class" if shape_class else ""
    query = text(
        f"SELECT shape_class, candidate, score, operator FROM leaderboard WHERE run = :run {chosen} "
        "ORDER BY score DESC LIMIT :count"
    )
    with Session(store.engine) as session:
        found = session.execute(query, {"run": run_name, "shape_class": shape_class, "count": count})
        return [(row[0], row[1], row[2], row[3]) for row in found]


def failed(store: Store, run_id: int, parent_id: int | None, count: int) -> list[tuple[int, str, str, str]]:
    """Return (candidate, outcome, message, note) of the latest failures, of a parent's children or of any."""
    query = (
        select(CandidateRow.id, MeasurementRow.outcome, MeasurementRow.message, CandidateRow.note)
        .join(MeasurementRow, MeasurementRow.candidate_id == CandidateRow.id)
        .where(CandidateRow.run_id == run_id, MeasurementRow.outcome != "PASSED")
        .order_by(MeasurementRow.id.desc())
        .limit(count)
    )
    if parent_id is not None:
        children = select(CandidateParentRow.candidate_id).where(CandidateParentRow.parent_id == parent_id)
        query = query.where(CandidateRow.id.in_(children))
    with Session(store.engine) as session:
        return [(row[0], row[1], row[2], row[3]) for row in session.execute(query)]
