"""Write and read runs, candidates and measurements. One driver writes; anyone may read."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import Engine, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from evokernel.budget import Spent
from evokernel.candidate import Body, Candidate, Genome
from evokernel.devices import Device
from evokernel.errors import StoreError
from evokernel.measurement import Fidelity, Measurement, Outcome, Record, Timing
from evokernel.problem import Problem
from evokernel.store.engine import open_engine
from evokernel.store.tables import (
    BodyRow,
    CandidateParentRow,
    CandidateRow,
    DeviceRow,
    MeasurementRow,
    RunRow,
    SubmissionRow,
    TimingRow,
)

Result = TypeVar("Result")

ADJECTIVES = (
    "amber",
    "brisk",
    "calm",
    "dusky",
    "eager",
    "fleet",
    "golden",
    "hushed",
    "jolly",
    "keen",
    "lucid",
    "mellow",
)
NOUNS = ("badger", "comet", "dune", "ember", "falcon", "glade", "heron", "island", "kestrel", "lynx", "maple", "otter")


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


def now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None)


class Store:
    """The database. Every method is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.bodies: dict[str, Body] = {}
        self.weights: dict[int, dict[str, float]] = {}

    @classmethod
    def open(cls, url: str, *, create: bool = True) -> Store:
        """Open a database, made or migrated as needed; StoreError in one line when it cannot be."""
        return cls(open_engine(url, create=create))

    def _write(self, work: Callable[[Session], Result]) -> Result:
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            return work(session)

    # ---- runs ----

    def create_run(self, name: str, config: dict[str, Any], problem: Problem, device: Device, seed: int) -> Run:
        def work(session: Session) -> RunRow:
            known = session.scalar(select(DeviceRow).filter_by(model=device.model, uuid=device.uuid))
            if known is None:
                known = DeviceRow(kind=device.kind, model=device.model, uuid=device.uuid, facts=dict(device.facts))
                session.add(known)
                session.flush()
            row = RunRow(
                name=name,
                status="created",
                config=config,
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
        raise StoreError(f"no run named {name!r}; runs: {', '.join(run.name for run in runs[-10:])}")

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
            usd, tokens = session.execute(
                select(func.sum(CandidateRow.cost_usd), func.sum(CandidateRow.tokens)).where(
                    CandidateRow.run_id == run_id
                )
            ).one()
        return Spent(elapsed, count, device_s or 0.0, usd or 0.0, tokens or 0)

    # ---- candidates and measurements ----

    def add_candidate(self, run_id: int, candidate: Candidate) -> Candidate:
        """Store a proposal; returns it with its id."""
        body = candidate.genome.body
        row = CandidateRow(
            run_id=run_id,
            body_digest=body.digest,
            knobs=dict(candidate.genome.knobs),
            genome_key=candidate.genome.key,
            shape_class=candidate.shape_class,
            operator=candidate.operator,
            generation=candidate.generation,
            note=candidate.note,
            cost_usd=candidate.cost_usd,
            tokens=candidate.tokens,
            created_at=now(),
        )

        def work(session: Session) -> None:
            if body.digest not in self.bodies and session.get(BodyRow, body.digest) is None:
                session.add(BodyRow(digest=body.digest, source=body.source))
                session.flush()
            session.add(row)
            session.flush()
            for position, parent in enumerate(dict.fromkeys(candidate.parents)):
                session.add(CandidateParentRow(candidate_id=row.id, parent_id=parent, position=position))

        self._write(work)
        self.bodies.setdefault(body.digest, body)
        return _with_id(candidate, row.id)

    def add_measurement(self, run_id: int, candidate: Candidate, measurement: Measurement) -> Record:
        """Store what a device said; once this returns, no crash loses it."""
        row = MeasurementRow(
            candidate_id=candidate.id,
            run_id=run_id,
            outcome=measurement.outcome.value,
            message=measurement.message.replace("\x00", "�"),
            fidelity=measurement.fidelity.value,
            errors=dict(measurement.errors),
            resources=dict(measurement.resources),
            environment=dict(measurement.environment),
            seconds=measurement.seconds,
            device_seconds=measurement.device_seconds,
            worker=measurement.worker,
            created_at=now(),
        )
        weights = self._weights(run_id) if measurement.timings else {}

        def work(session: Session) -> None:
            session.add(row)
            session.flush()
            for timing in measurement.timings:
                session.add(_timing_row(row.id, timing, weights.get(timing.workload, 1.0)))

        self._write(work)
        return Record(candidate, measurement, row.id)

    def _weights(self, run_id: int) -> dict[str, float]:
        if run_id not in self.weights:
            with Session(self.engine) as session:
                problem = session.scalar(select(RunRow.problem).where(RunRow.id == run_id))
            self.weights[run_id] = {w.name: w.weight for w in Problem.from_json(problem or {}).workloads}
        return self.weights[run_id]

    def records(self, run_id: int) -> Iterator[Record]:
        """Yield every measurement with its candidate, in completion order."""
        candidates = {c.id: c for c in self._candidates(CandidateRow.run_id == run_id)}
        with Session(self.engine) as session:
            timings: dict[int, list[Timing]] = {}
            for row in session.scalars(
                select(TimingRow)
                .join(MeasurementRow, MeasurementRow.id == TimingRow.measurement_id)
                .where(MeasurementRow.run_id == run_id)
            ):
                timings.setdefault(row.measurement_id, []).append(_timing(row))
            rows = session.scalars(
                select(MeasurementRow).where(MeasurementRow.run_id == run_id).order_by(MeasurementRow.id)
            )
            for found in rows:
                measured = _measurement(found, tuple(timings.get(found.id, ())))
                yield Record(candidates[found.candidate_id], measured, found.id)

    def pending(self, run_id: int) -> list[Candidate]:
        """Return the candidates that were proposed and never measured."""
        measured = select(MeasurementRow.candidate_id).where(MeasurementRow.run_id == run_id)
        return self._candidates(CandidateRow.run_id == run_id, CandidateRow.id.not_in(measured))

    def candidate(self, candidate_id: int) -> Candidate:
        found = self._candidates(CandidateRow.id == candidate_id)
        if not found:
            raise StoreError(f"no candidate {candidate_id} in {self.engine.url}")
        return found[0]

    def run_of(self, candidate_id: int) -> Run:
        with Session(self.engine) as session:
            run_id = session.scalar(select(CandidateRow.run_id).where(CandidateRow.id == candidate_id))
        return next(run for run in self.runs() if run.id == run_id)

    def measurements(self, candidate_id: int) -> list[Measurement]:
        with Session(self.engine) as session:
            timings: dict[int, list[Timing]] = {}
            for row in session.scalars(
                select(TimingRow)
                .join(MeasurementRow, MeasurementRow.id == TimingRow.measurement_id)
                .where(MeasurementRow.candidate_id == candidate_id)
            ):
                timings.setdefault(row.measurement_id, []).append(_timing(row))
            rows = session.scalars(
                select(MeasurementRow).where(MeasurementRow.candidate_id == candidate_id).order_by(MeasurementRow.id)
            )
            return [_measurement(row, tuple(timings.get(row.id, ()))) for row in rows]

    def _candidates(self, *where: Any) -> list[Candidate]:
        with Session(self.engine) as session:
            rows = list(session.scalars(select(CandidateRow).where(*where).order_by(CandidateRow.id)))
            missing = {row.body_digest for row in rows} - self.bodies.keys()
            for body in session.scalars(select(BodyRow).where(BodyRow.digest.in_(missing))) if missing else ():
                self.bodies[body.digest] = Body(body.source, f"body {body.digest}")
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
                for row in rows
            ]

    # ---- submissions ----

    def add_submission(
        self, run_id: int, source: str, parent_id: int | None, shape_class: str | None, note: str
    ) -> int:
        """Hand in a candidate for the run's driver to claim; returns the submission's id."""
        row = SubmissionRow(
            run_id=run_id, source=source, parent_id=parent_id, shape_class=shape_class, note=note, created_at=now()
        )
        self._write(lambda session: session.add(row))
        return row.id

    def claim_submissions(self, run_id: int) -> list[Submission]:
        """Take what was handed in since the last call; each is given out once."""

        def work(session: Session) -> list[Submission]:
            rows = list(
                session.scalars(
                    select(SubmissionRow).filter_by(run_id=run_id, claimed_at=None).order_by(SubmissionRow.id)
                )
            )
            for row in rows:
                row.claimed_at = now()
            return [Submission(r.id, r.source, r.parent_id, r.shape_class, r.note) for r in rows]

        return self._write(work)


def _with_id(candidate: Candidate, number: int) -> Candidate:
    from dataclasses import replace

    return replace(candidate, id=number)


def _timing_row(measurement_id: int, timing: Timing, weight: float) -> TimingRow:
    return TimingRow(
        measurement_id=measurement_id,
        workload=timing.workload,
        held_out=timing.held_out,
        weight=weight,
        latency_us=timing.latency_us,
        spread=timing.spread,
        baseline=timing.baseline,
        baseline_us=timing.baseline_us,
        speedup=timing.speedup,
        samples_us=[round(x, 3) for x in timing.samples_us],
        baseline_samples_us=[round(x, 3) for x in timing.baseline_samples_us],
    )


def _timing(row: TimingRow) -> Timing:
    return Timing(row.workload, tuple(row.samples_us), row.baseline, tuple(row.baseline_samples_us), row.held_out)


def _measurement(row: MeasurementRow, timings: tuple[Timing, ...]) -> Measurement:
    return Measurement(
        Outcome(row.outcome),
        row.message,
        Fidelity(row.fidelity),
        timings,
        row.errors,
        row.resources,
        row.environment,
        row.seconds,
        row.device_seconds,
        row.worker,
    )


def made_up_name(store: Store) -> str:
    """Return a name no run has yet."""
    taken = {run.name for run in store.runs()}
    pick = random.SystemRandom()
    while True:
        name = f"{pick.choice(ADJECTIVES)}-{pick.choice(NOUNS)}"
        if name in taken:
            name += f"-{pick.randrange(2, 1000)}"
        if name not in taken:
            return name
