"""What the commands that drive a run share: one driver a run, a log beside it, and how signals end it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evokernel.loop import Campaign
    from evokernel.reporters import Reporter
    from evokernel.store import Run, Store
    from evokernel.sweep import Sweep


def drive(store: Store, run: Run, build: Callable[[Reporter], Campaign | Sweep], again: str) -> str:
    """Execute a campaign or a sweep; returns the run's status. `again` is the command that goes on with it."""
    from evokernel import run_folder
    from evokernel.reporters import Journal, Several, for_terminal

    with run_folder.driving(run.name):
        store.clear_stop(run.id)
        journal = Journal(run_folder.folder(run.name) / run_folder.LOG)
        driver = build(Several(for_terminal(), journal))
        try:
            with drain_on_interrupt(driver):
                status = driver.execute()
        except BaseException as error:
            journal.event("failed", error=f"{type(error).__name__}: {error}")
            raise
        finally:
            driver.evaluator.close()
            journal.close()
    if status == "stopped":
        print(f"run {run.name} stopped; go on with it: {again}", file=sys.stderr)
    return status


@contextmanager
def drain_on_interrupt(driver: Campaign | Sweep) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM finishes what is in flight; the second ends the process."""

    def handler(number: int, frame: Any) -> None:
        if driver.stopping == "interrupted":
            raise KeyboardInterrupt
        driver.stop("interrupted")
        driver.stopping = "interrupted"
        driver.reporter.note("stopping: finishing what is in flight; once more to end at once")

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, kept in before.items():
            signal.signal(number, kept)
