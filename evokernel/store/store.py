"""Write and read runs, candidates and measurements. One driver writes; anyone may read."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Engine, func, literal, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from evokernel.budget import Spent
from evokernel.candidate import Body, Candidate, Genome
from evokernel.devices import Device
from evokernel.errors import StoreError
from evokernel.measurement import Fidelity, Measurement, Outcome, Record, Timing
from evokernel.problem import Problem
from evokernel.store import exchange, names, rows
from evokernel.store.engine import WRITES, open_engine
from evokernel.store.tables import (
    BodyRow,
    CandidateParentRow,
    CandidateRow,
    ConversationRow,
    DeviceRow,
    LessonRow,
    MeasurementRow,
    RunRow,
    SubmissionRow,
    TimingRow,
)

Result = TypeVar("Result")

LARGEST_ID = 2**31 - 1  # of an INTEGER column in PostgreSQL; a larger one is an error of the driver's, not an answer
# What the same source does again, always: a timeout or a crash may have been the machine's.
DETERMINISTIC = (Outcome.PASSED, Outcome.INCORRECT, Outcome.COMPILE_ERROR, Outcome.REJECTED)


@dataclass(frozen=True)
class Run:
    """A campaign as it was started, and its state."""

    id: int
    name: str
    status: str
    config: dict[str, Any]
    problem: Problem
    seed: int
    device_model: str
    started_at: datetime
    finished_at: datetime | None
    elapsed_s: float


@dataclass(frozen=True)
class Submission:
    """A candidate handed in from outside."""

    id: int
    source: str
    parent_id: int | None
    shape_class: str | None
    note: str
    operator: str = "submit"
    fidelity: Fidelity = Fidelity.FULL
    prediction: str = ""


@dataclass(frozen=True)
class Conversation:
    """What was said to a model and what it answered, for the candidate that came of it, if one did."""

    model: str
    messages: list[Any]
    candidate_id: int | None = None
    tokens: int = 0
    cost_usd: float = 0.0


@dataclass(frozen=True)
class Lesson:
    """What was tried, what was expected of it, and what came out."""

    tried: str
    prediction: str
    outcome: str
    candidate_id: int | None = None


def now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None)


class Store:
    """The database. Every method is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.bodies: dict[str, Body] = {}
        self.weights: dict[int, dict[tuple[str, bool], float]] = {}

    @classmethod
    def open(cls, url: str, *, create: bool = True, read_only: bool = False) -> Store:
        """Open a database, made or migrated as needed; StoreError in one line when it cannot be."""
        return cls(open_engine(url, create=create, read_only=read_only))

    def _write(self, work: Callable[[Session], Result]) -> Result:
        writing = self.engine.execution_options(**{WRITES: True})
        with Session(writing, expire_on_commit=False) as session, session.begin():
            return work(session)

    # ---- runs ----

    def create_run(self, name: str, config: dict[str, Any], problem: Problem, device: Device, seed: int) -> Run:
        if name != rows.text(name) or not name.strip():
            raise StoreError(f"a run cannot be named {name!r}; choose another --name")

        def work(session: Session) -> RunRow:
            known = session.scalar(select(DeviceRow).filter_by(model=device.model, uuid=device.uuid))
            if known is None:
                known = DeviceRow(kind=device.kind, model=device.model, uuid=device.uuid, facts=dict(device.facts))
                session.add(known)
                session.flush()
            row = RunRow(
                name=name,
                status="created",
                config=rows.plain(config),
                problem=problem.to_json(),
                seed=seed,
                device_id=known.id,
                started_at=now(),
            )
            session.add(row)
            return row

        try:
            self._write(work)
        except IntegrityError:
            raise StoreError(
                f"a run named {name!r} exists; choose another --name, or go on with it: evokernel resume {name}"
            ) from None
        return self.run(name)

    def _run(self, row: RunRow, device_model: str) -> Run:
        return Run(
            row.id,
            row.name,
            row.status,
            row.config,
            Problem.from_json(row.problem),
            row.seed,
            device_model,
            row.started_at,
            row.finished_at,
            row.elapsed_s,
        )

    def runs(self) -> list[Run]:
        """Return every run, the latest last."""
        with Session(self.engine) as session:
            found = session.execute(
                select(RunRow, DeviceRow.model).join(DeviceRow, DeviceRow.id == RunRow.device_id).order_by(RunRow.id)
            )
            return [self._run(row, model) for row, model in found]

    def run(self, name: str | None) -> Run:
        """Return the run of that name, or the latest."""
        runs = self.runs()
        if not runs:
            raise StoreError(f"{self.engine.url} holds no run yet")
        if name is None:
            return runs[-1]
        for run in runs:
            if run.name == name:
                return run
        known = [run.name for run in runs]
        close = difflib.get_close_matches(name, known, n=3)
        raise StoreError(f"no run named {name!r}; runs: {', '.join(close or known[-10:])}")

    def latest_run(self) -> Run | None:
        return next(reversed(self.runs()), None)

    def set_status(self, run_id: int, status: str) -> None:
        finished = now() if status in ("finished", "stopped", "failed") else None
        values = {"status": status, "finished_at": finished}
        self._write(lambda s: s.execute(update(RunRow).where(RunRow.id == run_id).values(**values)))

    def request_stop(self, run_id: int) -> None:
        self._write(lambda s: s.execute(update(RunRow).where(RunRow.id == run_id).values(stop_requested=True)))

    def clear_stop(self, run_id: int) -> None:
        self._write(lambda s: s.execute(update(RunRow).where(RunRow.id == run_id).values(stop_requested=False)))

    def stop_requested(self, run_id: int) -> bool:
        with Session(self.engine) as session:
            return bool(session.scalar(select(RunRow.stop_requested).where(RunRow.id == run_id)))

    def add_elapsed(self, run_id: int, seconds: float) -> None:
        grown = RunRow.elapsed_s + seconds
        self._write(lambda s: s.execute(update(RunRow).where(RunRow.id == run_id).values(elapsed_s=grown)))

    def spent(self, run_id: int) -> Spent:
        with Session(self.engine) as session:
            elapsed = session.scalar(select(RunRow.elapsed_s).where(RunRow.id == run_id)) or 0.0
            count, device_s = session.execute(
                select(func.count(MeasurementRow.id), func.sum(MeasurementRow.device_seconds)).where(
                    MeasurementRow.run_id == run_id
                )
            ).one()
            usd, tokens = exchange.spent_on_models(session, run_id)
        return Spent(elapsed, count, device_s or 0.0, usd, tokens)

    # ---- candidates and measurements ----

    def add_candidate(self, run_id: int, candidate: Candidate) -> Candidate:
        """Store a proposal; returns it as stored, with its id."""
        body = candidate.genome.body
        row = CandidateRow(
            run_id=run_id,
            body_digest=body.digest,
            knobs=dict(candidate.genome.knobs),
            genome_key=candidate.genome.key,
            shape_class=candidate.shape_class,
            operator=candidate.operator,
            generation=candidate.generation,
            note=rows.text(candidate.note),
            cost_usd=candidate.cost_usd,
            tokens=candidate.tokens,
            created_at=now(),
        )
        parents = tuple(dict.fromkeys(candidate.parents))

        def work(session: Session) -> None:
            if body.digest not in self.bodies and session.get(BodyRow, body.digest) is None:
                session.add(BodyRow(digest=body.digest, source=body.source))
                session.flush()
            session.add(row)
            session.flush()
            for position, parent in enumerate(parents):
                session.add(CandidateParentRow(candidate_id=row.id, parent_id=parent, position=position))

        self._write(work)
        self.bodies.setdefault(body.digest, body)
        return replace(candidate, id=row.id, note=row.note, parents=parents)

    def add_measurement(self, run_id: int, candidate: Candidate, measurement: Measurement) -> Record:
        """Store what a device said, and return it as stored; once this returns, no crash loses it."""
        row = rows.measurement_row(run_id, candidate.id, measurement, now())
        weights = self._weights(run_id) if measurement.timings else {}

        def work(session: Session) -> None:
            session.add(row)
            session.flush()
            for position, timing in enumerate(measurement.timings):
                weight = weights.get((timing.workload, timing.held_out), 1.0)
                session.add(rows.timing_row(row.id, position, timing, weight))

        self._write(work)
        return Record(candidate, rows.measurement(row, measurement.timings), row.id)

    def _weights(self, run_id: int) -> dict[tuple[str, bool], float]:
        if run_id not in self.weights:
            with Session(self.engine) as session:
                stored = session.scalars(select(RunRow.problem).where(RunRow.id == run_id)).one()
            problem = Problem.from_json(stored)
            searched = {(w.name, False): w.weight for w in problem.workloads}
            self.weights[run_id] = searched | {(w.name, True): w.weight for w in problem.held_out}
        return self.weights[run_id]

    def records(self, run_id: int) -> Iterator[Record]:
        """Yield every measurement with its candidate, in completion order."""
        found = self._measured(MeasurementRow.run_id == run_id)
        # Read after the measurements: a driver may be writing, and then every candidate measured is among them.
        candidates = {c.id: c for c in self._candidates(CandidateRow.run_id == run_id)}
        for number, candidate_id, measured in found:
            yield Record(candidates[candidate_id], measured, number)

    def measurements(self, candidate_id: int) -> list[Measurement]:
        return [measured for _, _, measured in self._measured(MeasurementRow.candidate_id == candidate_id)]

    def find_reusable(self, reuse_key: str, fidelity: Fidelity = Fidelity.FULL) -> Measurement | None:
        """Return the latest measurement of this key that would come out again, or None.

        The caller makes the key (worker/provenance.py) of all that must agree: rendered source, problem, device model,
        software and evaluator.
        """
        latest = (
            select(func.max(MeasurementRow.id))
            .where(MeasurementRow.reuse_key == reuse_key, MeasurementRow.fidelity == fidelity.value)
            .where(MeasurementRow.outcome.in_([outcome.value for outcome in DETERMINISTIC]))
            .scalar_subquery()
        )
        return next((measured for _, _, measured in self._measured(MeasurementRow.id == latest)), None)

    def _measured(self, where: ColumnElement[bool]) -> Iterator[tuple[int, int, Measurement]]:
        """Return measurements in completion order, each with its id and its candidate's."""
        with Session(self.engine) as session:
            found = list(session.scalars(select(MeasurementRow).where(where).order_by(MeasurementRow.id)))
            timings: dict[int, list[Timing]] = {}
            for row in session.scalars(
                select(TimingRow)
                .join(MeasurementRow, MeasurementRow.id == TimingRow.measurement_id)
                .where(where)
                .order_by(TimingRow.measurement_id, TimingRow.position)
            ):
                timings.setdefault(row.measurement_id, []).append(rows.timing(row))
        return ((row.id, row.candidate_id, rows.measurement(row, timings.get(row.id, ()))) for row in found)

    def pending(self, run_id: int) -> list[Candidate]:
        """Return the candidates that were proposed and never measured."""
        measured = select(MeasurementRow.candidate_id).where(MeasurementRow.run_id == run_id)
        return self._candidates(CandidateRow.run_id == run_id, CandidateRow.id.not_in(measured))

    def candidate(self, candidate_id: int) -> Candidate:
        found = self._candidates(CandidateRow.id == candidate_id) if 0 < candidate_id <= LARGEST_ID else []
        if not found:
            raise StoreError(f"no candidate {candidate_id} in {self.engine.url}")
        return found[0]

    def ancestry(self, candidate_id: int) -> list[Candidate]:
        """Return a candidate and all it descends from, each once, the latest first."""
        line = select(literal(self.candidate(candidate_id).id).label("id")).cte("line", recursive=True)
        line = line.union(select(CandidateParentRow.parent_id).join(line, CandidateParentRow.candidate_id == line.c.id))
        return self._candidates(CandidateRow.id.in_(select(line.c.id)))[::-1]

    def run_of(self, candidate_id: int) -> Run:
        with Session(self.engine) as session:
            run_id = session.scalar(select(CandidateRow.run_id).where(CandidateRow.id == candidate_id))
        return next(run for run in self.runs() if run.id == run_id)

    def _candidates(self, *where: ColumnElement[bool]) -> list[Candidate]:
        with Session(self.engine) as session:
            found = list(session.scalars(select(CandidateRow).where(*where).order_by(CandidateRow.id)))
            if any(row.body_digest not in self.bodies for row in found):
                theirs = select(CandidateRow.body_digest).where(*where)  # a list of digests could pass SQLite's limit
                for body in session.scalars(select(BodyRow).where(BodyRow.digest.in_(theirs))):
                    self.bodies.setdefault(body.digest, Body(body.source, f"body {body.digest}"))
            parents: dict[int, list[int]] = {}
            chosen = select(CandidateRow.id).where(*where)
            for link in session.scalars(
                select(CandidateParentRow)
                .where(CandidateParentRow.candidate_id.in_(chosen))
                .order_by(CandidateParentRow.position)
            ):
                parents.setdefault(link.candidate_id, []).append(link.parent_id)
            return [
                Candidate(
                    Genome(self.bodies[row.body_digest], row.knobs),
                    row.shape_class,
                    row.operator,
                    tuple(parents.get(row.id, ())),
                    row.generation,
                    row.note,
                    row.cost_usd,
                    row.tokens,
                    row.id,
                )
                for row in found
            ]

    # ---- submissions, conversations, lessons ----

    def add_submission(
        self,
        run_id: int,
        source: str,
        parent_id: int | None,
        shape_class: str | None,
        note: str,
        operator: str = "submit",
        fidelity: Fidelity = Fidelity.FULL,
        prediction: str = "",
    ) -> int:
        """Hand in a candidate for the run's driver to claim; returns the submission's id."""
        row = SubmissionRow(
            run_id=run_id,
            source=rows.text(source),
            parent_id=parent_id,
            shape_class=shape_class,
            note=rows.text(note),
            operator=operator,
            fidelity=fidelity.value,
            prediction=rows.text(prediction),
            created_at=now(),
        )
        self._write(lambda session: session.add(row))
        return row.id

    def claim_submissions(self, run_id: int) -> list[Submission]:
        """Take what was handed in since the last call; each is given out once, whoever asks."""
        claim = (
            update(SubmissionRow)
            .where(SubmissionRow.run_id == run_id, SubmissionRow.claimed_at.is_(None))
            .values(claimed_at=now())
            .returning(
                SubmissionRow.id,
                SubmissionRow.source,
                SubmissionRow.parent_id,
                SubmissionRow.shape_class,
                SubmissionRow.note,
                SubmissionRow.operator,
                SubmissionRow.fidelity,
                SubmissionRow.prediction,
            )
        )
        claimed = sorted(self._write(lambda session: list(session.execute(claim))), key=lambda row: int(row[0]))
        return [Submission(*row[:6], Fidelity(row[6]), row[7]) for row in claimed]

    def add_conversation(self, run_id: int, said: Conversation) -> None:
        row = ConversationRow(
            run_id=run_id,
            candidate_id=said.candidate_id,
            model=said.model,
            messages=rows.plain(said.messages),
            tokens=said.tokens,
            cost_usd=said.cost_usd,
            created_at=now(),
        )
        self._write(lambda session: session.add(row))

    def conversations(self, run_id: int) -> list[Conversation]:
        """Return a run's conversations, the latest last."""
        with Session(self.engine) as session:
            found = session.scalars(select(ConversationRow).filter_by(run_id=run_id).order_by(ConversationRow.id))
            return [Conversation(r.model, r.messages, r.candidate_id, r.tokens, r.cost_usd) for r in found]

    def add_lesson(self, run_id: int, lesson: Lesson) -> None:
        row = LessonRow(
            run_id=run_id,
            candidate_id=lesson.candidate_id,
            tried=rows.text(lesson.tried),
            prediction=rows.text(lesson.prediction),
            outcome=rows.text(lesson.outcome),
            created_at=now(),
        )
        self._write(lambda session: session.add(row))

    def lessons(self, run_id: int) -> list[Lesson]:
        """Return a run's lessons, the latest last."""
        with Session(self.engine) as session:
            found = session.scalars(select(LessonRow).filter_by(run_id=run_id).order_by(LessonRow.id))
            return [Lesson(r.tried, r.prediction, r.outcome, r.candidate_id) for r in found]


def made_up_name(store: Store) -> str:
    """Return a name no run has yet."""
    return names.unused({run.name for run in store.runs()})
