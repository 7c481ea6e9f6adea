"""Show a campaign as it runs: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from evokernel.budget import Spent
from evokernel.measurement import Outcome, Record

if TYPE_CHECKING:
    from rich.table import Table

    from evokernel.store import Run

PLAIN_EVERY_S = 5.0  # a status line this often when not on a terminal


@dataclass(frozen=True)
class Progress:
    """A campaign at one moment."""

    spent: Spent
    used: Mapping[str, float]  # fraction of each cap
    left_s: float | None
    outcomes: Mapping[Outcome, int]
    per_minute: float
    busy_share: float
    in_flight: int
    best: Mapping[str, tuple[int, float] | None] = field(default_factory=dict)  # (candidate, score) by shape class

    def line(self) -> str:
        """Say it in one line."""
        outcomes = " ".join(f"{name}={count}" for name, count in sorted(self.outcomes.items()))
        best = " ".join(f"{name}={b[1]:.3f}" for name, b in self.best.items() if b)
        budget = " ".join(f"{name}={share:.0%}" for name, share in self.used.items())
        eta = f" eta={self.left_s:.0f}s" if self.left_s is not None else ""
        return (
            f"evaluations={self.spent.evaluations} {outcomes} per_minute={self.per_minute:.1f} "
            f"busy={self.busy_share:.0%} budget: {budget}{eta} best: {best or '-'}"
        )


class Reporter(ABC):
    """Told what happens; shows it."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Show one remark."""

    @abstractmethod
    def update(self, progress: Progress) -> None:
        """Show the campaign as it is now."""

    def start(self, run: Run, slots: int) -> None:
        self.note(f"run {run.name}: {slots} candidates in flight")

    def evaluated(self, record: Record, score: float | None, improved: bool) -> None:
        if improved and score is not None:
            candidate = record.candidate
            self.note(
                f"candidate {candidate.id} ({candidate.operator}) leads {candidate.shape_class}: "
                f"{score:.3f} of the fastest baseline"
            )

    def finish(self, progress: Progress, status: str, reason: str) -> None:
        self.note(f"{status}{f' ({reason})' if reason else ''}: {progress.line()}")


class Silent(Reporter):
    """Shows nothing: for tests and for programs that read the database."""

    def note(self, text: str) -> None:
        return None

    def update(self, progress: Progress) -> None:
        return None


class Plain(Reporter):
    """Lines on standard error."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.shown_at = 0.0

    def note(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def update(self, progress: Progress) -> None:
        if time.monotonic() - self.shown_at >= PLAIN_EVERY_S:
            self.shown_at = time.monotonic()
            self.note(progress.line())


class Journal(Reporter):
    """One JSON object a line and event, appended to a file: for programs, and to see later what happened when."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("a", buffering=1)  # a line is written whole, and before the next event

    def event(self, name: str, **facts: Any) -> None:
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        print(json.dumps({"time": moment, "event": name, **facts}, default=str), file=self.file)

    def close(self) -> None:
        self.file.close()

    def start(self, run: Run, slots: int) -> None:
        self.event("started", run=run.name, slots=slots, process=os.getpid())

    def note(self, text: str) -> None:
        self.event("note", text=text)

    def update(self, progress: Progress) -> None:
        return None

    def evaluated(self, record: Record, score: float | None, improved: bool) -> None:
        candidate, measured = record.candidate, record.measurement
        self.event(
            "evaluated",
            measurement=record.id,
            candidate=candidate.id,
            shape_class=candidate.shape_class,
            operator=candidate.operator,
            fidelity=measured.fidelity,
            outcome=measured.outcome,
            message=measured.message[:200],
            score=score,
            improved=improved,
            seconds=round(measured.seconds, 4),
            device_seconds=round(measured.device_seconds, 4),
            worker=measured.worker,
        )

    def finish(self, progress: Progress, status: str, reason: str) -> None:
        self.event("ended", status=status, reason=reason, **asdict(progress.spent), outcomes=dict(progress.outcomes))


class Several(Reporter):
    """Passes everything on to each of several reporters."""

    def __init__(self, *reporters: Reporter) -> None:
        self.reporters = reporters

    def start(self, run: Run, slots: int) -> None:
        for reporter in self.reporters:
            reporter.start(run, slots)

    def note(self, text: str) -> None:
        for reporter in self.reporters:
            reporter.note(text)

    def update(self, progress: Progress) -> None:
        for reporter in self.reporters:
            reporter.update(progress)

    def evaluated(self, record: Record, score: float | None, improved: bool) -> None:
        for reporter in self.reporters:
            reporter.evaluated(record, score, improved)

    def finish(self, progress: Progress, status: str, reason: str) -> None:
        for reporter in self.reporters:
            reporter.finish(progress, status, reason)


class Live(Reporter):
    """A table that redraws itself on a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self.live = RichLive(console=Console(stderr=True), refresh_per_second=4)
        self.live.start()

    def note(self, text: str) -> None:
        self.live.console.print(text, markup=False, highlight=False)

    def update(self, progress: Progress) -> None:
        self.live.update(_table(progress))

    def finish(self, progress: Progress, status: str, reason: str) -> None:
        self.live.stop()
        super().finish(progress, status, reason)


def _table(progress: Progress) -> Table:
    from rich.table import Table

    table = Table(show_header=False, box=None)
    rows: dict[str, Any] = {
        "evaluations": f"{progress.spent.evaluations} ({progress.in_flight} in flight)",
        "outcomes": "  ".join(f"{name} {count}" for name, count in sorted(progress.outcomes.items())) or "-",
        "pace": f"{progress.per_minute:.1f} a minute, busy {progress.busy_share:.0%}",
        "budget used": "  ".join(f"{name} {share:.0%}" for name, share in progress.used.items()),
        "time left": f"{progress.left_s:.0f} s" if progress.left_s is not None else "open",
    }
    for shape_class, best in progress.best.items():
        rows[f"best {shape_class}"] = f"{best[1]:.3f} (candidate {best[0]})" if best else "-"
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def for_terminal() -> Reporter:
    """Choose by where standard error goes."""
    return Live() if sys.stderr.isatty() else Plain()
