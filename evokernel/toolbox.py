"""The tools of agents over a run's store: one set measures through this driver, the other through submissions."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from evokernel import run_folder, syntax
from evokernel.candidate import Candidate, Genome
from evokernel.errors import StoreError
from evokernel.llm.tools import Draft, Judged, ToolError
from evokernel.measurement import Fidelity, Measurement, score
from evokernel.problem import Problem
from evokernel.store import Run, Store, exchange

LEADERS = 10
FAILURES = 10
POLL_S = 0.2
COMPILE_TARGET = "cuda:90"
COMPILE_LIMIT_S = 180.0


class Reading:
    """What may be read of a run, in words."""

    def __init__(self, store: Store, run: Run) -> None:
        self.store = store
        self.run = run
        self.parts = {c.name: run.problem.in_class(c) for c in run.problem.shape_classes()}

    def leaders(self, shape_class: str | None) -> str:
        found = exchange.leading(self.store, self.run.name, shape_class or None, LEADERS)
        lines = [f"candidate {number}: {value:.4f}, {where}, by {operator}" for where, number, value, operator in found]
        return "\n".join(lines) or "nothing has passed yet"

    def lineage(self, candidate: int) -> str:
        lines = []
        for ancestor in self.store.ancestry(self.candidate(candidate).id):
            value = self.score(ancestor.shape_class, self.store.measurements(ancestor.id))
            how = f"{value:.4f}" if value is not None else "no score"
            parents = f" of {', '.join(map(str, ancestor.parents))}" if ancestor.parents else ""
            lines.append(f"{ancestor.id} by {ancestor.operator}{parents}: {how} {ancestor.note}".rstrip())
        return "\n".join(lines)

    def candidate(self, number: int) -> Candidate:
        """Return a candidate, of this run alone."""
        try:
            found = self.store.candidate(number)
            if self.store.run_of(number).id == self.run.id:
                return found
        except StoreError:
            pass
        raise ToolError(f"run {self.run.name} has no candidate {number}")

    def failures(self, parent: int | None) -> Sequence[str]:
        return [
            f"candidate {number}, {note or 'no note'}: {outcome} {message[-600:]}"
            for number, outcome, message, note in exchange.failed(self.store, self.run.id, parent, FAILURES)
        ]

    def lessons(self) -> Sequence[str]:
        return [
            f"{x.tried}; expected: {x.prediction or 'nothing said'}; came out: {x.outcome or 'not known yet'}"
            for x in self.store.lessons(self.run.id)
        ]

    def score(self, shape_class: str, measurements: list[Measurement]) -> float | None:
        part = self.parts.get(shape_class)
        return score(measurements, part) if part else None

    def compile(self, draft: Draft) -> str:
        """Compile for Hopper without a device; a Numba kernel compiles where it is checked."""
        if draft.genome.body.space.backend != "triton":
            return f"a {draft.genome.body.space.backend} kernel compiles when it is checked: use check"
        return compiled(draft.genome, self.parts[draft.shape_class])


def compiled(genome: Genome, problem: Problem) -> str:
    """Answer with what `evokernel compile` says, from a process of its own and without this one's keys."""
    from evokernel.bench import guard
    from evokernel.worker.compile_pool import KEPT_VARIABLES

    with syntax.LOCK:
        broken = guard.violation(genome.source, genome.body.space.backend)
    if broken:
        return f"REJECTED {broken}"
    workload = problem.workloads[0]
    options = ["--target", COMPILE_TARGET, "--dtype", problem.dtype, "--head-dim", str(workload.head_dim)]
    options += ["--causal" if workload.causal else "--full"]
    with tempfile.TemporaryDirectory(prefix="evokernel-") as folder:
        path = Path(folder) / "candidate.py"
        path.write_text(genome.source)
        command = [sys.executable, "-m", "evokernel", "compile", str(path), *options]
        kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        try:
            done = subprocess.run(
                command, env=kept, capture_output=True, text=True, timeout=COMPILE_LIMIT_S, check=False
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ToolError(f"compiling took longer than {COMPILE_LIMIT_S:g} s") from None
    if done.returncode not in (0, 1):
        raise ToolError((done.stderr.strip().splitlines() or ["compiling failed"])[-1])
    return done.stdout.replace(str(path), f"candidate {genome.key}")[:6000]


class Inside(Reading):
    """For a proposer in this process: measuring is asked of the driver."""

    measures = True

    def __init__(self, store: Store, run: Run, request: Callable[[Draft, Fidelity], Judged]) -> None:
        super().__init__(store, run)
        self.request = request

    def measure(self, draft: Draft, fidelity: Fidelity) -> Judged:
        return self.request(draft, fidelity)


def driven(store: Store, run: Run) -> str:
    """Return a run's status, or that its driver died, as far as this machine can tell."""
    status = store.run(run.name).status
    return "without a driver, which died" if status == "running" and run_folder.driver(run.name) == "" else status


class Outside(Reading):
    """For another process: drafts go through the table of submissions, which the run's driver claims."""

    measures = True

    def __init__(self, store: Store, run: Run, operator: str, patience_s: float = 600.0) -> None:
        super().__init__(store, run)
        self.operator = operator
        self.patience_s = patience_s

    def hand_in(self, draft: Draft, fidelity: Fidelity = Fidelity.FULL) -> int:
        """Put a draft on the table; returns the submission's number."""
        parent = draft.parents[0] if draft.parents else None
        return self.store.add_submission(
            self.run.id, draft.genome.source, parent, draft.shape_class, draft.note, self.operator, fidelity,
            draft.prediction,
        )  # fmt: skip

    def measure(self, draft: Draft, fidelity: Fidelity) -> Judged:
        """Hand in and wait for the measurement."""
        self._require_driver("so nothing is measured; hand it in with submit, or go on with: evokernel resume")
        number = self.hand_in(draft, fidelity)
        deadline = time.monotonic() + self.patience_s
        while time.monotonic() < deadline:
            answer = exchange.answered(self.store, number)
            if answer is not None and answer.candidate_id is None:
                raise ToolError(answer.refusal)
            if answer is not None and answer.candidate_id is not None:
                judged = self._judged(answer.candidate_id, draft.shape_class, fidelity)
                if judged is not None:
                    return judged
            self._require_driver(f"submission {number} waits until it goes on")
            time.sleep(POLL_S)
        raise ToolError(f"submission {number} has no answer after {self.patience_s:g} s; ask for its candidate later")

    def _require_driver(self, consequence: str) -> None:
        state = driven(self.store, self.run)
        if state != "running":
            raise ToolError(f"run {self.run.name} is {state}: {consequence}")

    def _judged(self, candidate: int, shape_class: str, fidelity: Fidelity) -> Judged | None:
        """Return what is known of a candidate, once it answers what was asked."""
        found = self.store.measurements(candidate)
        latest = enough(found, fidelity)
        return Judged(candidate, latest, self.score(shape_class, found)) if latest else None


def enough(measurements: Sequence[Measurement], fidelity: Fidelity) -> Measurement | None:
    """Return the measurement that answers a question: a failure answers any, a check none that asks for times."""
    failures = [m for m in measurements if not m.passed]
    if failures:
        return failures[-1]
    fits = [
        m for m in measurements if fidelity is Fidelity.SCREEN or m.given_up or m.fidelity is not Fidelity.SCREEN
    ]  # fmt: skip
    return fits[-1] if fits else None
