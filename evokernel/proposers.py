"""Threads in which slow operators think, while the driver goes on; what they want measured waits for the driver."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from evokernel.llm.tools import Draft, Judged, ToolError
from evokernel.measurement import Fidelity
from evokernel.operators import Operator, Plan, Proposal, ProposalError

log = logging.getLogger(__name__)

Item = TypeVar("Item")


@dataclass(frozen=True)
class Request:
    """A measurement that a proposer waits for."""

    draft: Draft
    fidelity: Fidelity
    answer: Future[Judged] = field(default_factory=Future)

    def refuse(self, reason: str) -> None:
        self.answer.set_exception(ToolError(reason))


@dataclass(frozen=True)
class Thought:
    """How a slow operator answered a plan."""

    operator: Operator
    plan: Plan
    outcome: Proposal | ProposalError


class Proposers:
    """At most `limit` plans being thought about. All methods but request() belong to the driver's thread."""

    def __init__(self, limit: int = 1) -> None:
        self.limit = limit
        self._thinking: dict[int, threading.Thread] = {}
        self._started = 0
        self._thoughts: queue.SimpleQueue[tuple[int, Thought]] = queue.SimpleQueue()
        self._requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._news = threading.Event()

    @property
    def busy(self) -> int:
        return len(self._thinking)

    def start(self, operator: Operator, plan: Plan) -> None:
        """Think about a plan in a thread of its own, which no exit waits for."""
        self._started += 1
        number = self._started
        thread = threading.Thread(target=self._think, args=(number, operator, plan), daemon=True)
        self._thinking[number] = thread
        thread.start()

    def _think(self, number: int, operator: Operator, plan: Plan) -> None:
        outcome: Proposal | ProposalError
        try:
            outcome = operator.propose(plan)
        except ProposalError as error:
            outcome = error
        except Exception as error:  # a campaign of hours does not end because a model's words met a fault of ours
            log.exception("an operator failed", extra={"operator": operator.name})
            outcome = ProposalError(f"{operator.name} failed: {type(error).__name__}: {error}")
            outcome.__cause__ = error
        self._thoughts.put((number, Thought(operator, plan, outcome)))
        self._news.set()

    def request(self, draft: Draft, fidelity: Fidelity) -> Judged:
        """Ask the driver for a measurement, from a proposer's thread; blocks until it is known."""
        wanted = Request(draft, fidelity)
        self._requests.put(wanted)
        self._news.set()
        return wanted.answer.result()

    def requests(self) -> list[Request]:
        return _drained(self._requests)

    def thoughts(self) -> list[Thought]:
        """Return what has been thought since the last call."""
        found = _drained(self._thoughts)
        for number, _ in found:
            self._thinking.pop(number, None)
        return [thought for _, thought in found]

    def wait(self, timeout_s: float) -> None:
        """Return as soon as there is something to take, or the time is up."""
        if self._thinking:
            self._news.wait(timeout_s)
        self._news.clear()

    def close(self, grace_s: float, between: Callable[[], None]) -> None:
        """Give threads a moment to end, calling `between` to serve them; then leave them behind."""
        for thread in list(self._thinking.values()):
            between()
            thread.join(grace_s / max(1, len(self._thinking)))
        between()


def _drained(source: queue.SimpleQueue[Item]) -> list[Item]:
    found = []
    while True:
        try:
            found.append(source.get_nowait())
        except queue.Empty:
            return found
