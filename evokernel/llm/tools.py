"""What an agent may do: read the lineage, search knowledge, compile, check, time. One list for models and for MCP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from evokernel.candidate import Candidate, Genome
from evokernel.llm import ToolSchema
from evokernel.measurement import Fidelity, Measurement, Outcome


class ToolError(Exception):
    """A tool that cannot do what was asked; the message goes back to whoever asked."""


@dataclass(frozen=True)
class Draft:
    """A module to be measured: its genome, where it comes from, and what is expected of it."""

    genome: Genome
    shape_class: str
    parents: tuple[int, ...] = ()
    note: str = ""
    prediction: str = ""
    operator: str = "agent"


@dataclass(frozen=True)
class Judged:
    """A draft's candidate number, what its device said, and the score that follows, if it was timed."""

    candidate: int
    measurement: Measurement
    score: float | None = None

    def text(self) -> str:
        """Say it as a person or a model wants to hear it."""
        return f"candidate {self.candidate}: {told(self.measurement, self.score)}"


class Tools(Protocol):
    """Given to a proposer. Reading is free; measuring goes through the campaign's own evaluator and is charged."""

    measures: bool  # whether measure() can be had at all

    def leaders(self, shape_class: str | None) -> str:
        """List the best candidates, by shape class."""

    def lineage(self, candidate: int) -> str:
        """Tell what a candidate descends from, and how each of its ancestors did."""

    def failures(self, parent: int | None) -> Sequence[str]:
        """Tell how candidates failed lately: those made from a parent, or any."""

    def lessons(self) -> Sequence[str]:
        """Tell what was tried, expected and measured, the latest last."""

    def candidate(self, number: int) -> Candidate:
        """Return a candidate of the campaign, to be read or edited; ToolError when there is none."""

    def compile(self, draft: Draft) -> str:
        """Compile without measuring; registers, spills, shared memory and the order of the main loop."""

    def measure(self, draft: Draft, fidelity: Fidelity) -> Judged:
        """Check a draft (SCREEN) or check and time it (FULL); ToolError when the budget is reached. Blocks."""


class Alone:
    """No campaign around: nothing to read, nothing that measures."""

    measures = False

    def leaders(self, shape_class: str | None) -> str:
        return ""

    def lineage(self, candidate: int) -> str:
        return ""

    def failures(self, parent: int | None) -> Sequence[str]:
        return ()

    def lessons(self) -> Sequence[str]:
        return ()

    def candidate(self, number: int) -> Candidate:
        raise ToolError("there is no campaign to read from")

    def compile(self, draft: Draft) -> str:
        raise ToolError("nothing compiles here")

    def measure(self, draft: Draft, fidelity: Fidelity) -> Judged:
        raise ToolError("nothing is measured here")


def told(measurement: Measurement, score: float | None = None) -> str:
    """Put a measurement in words: outcome, why, and each workload's time beside the fastest baseline's."""
    lines = [f"{measurement.outcome.value} {measurement.message}".strip()]
    if measurement.outcome is Outcome.PASSED and measurement.errors:
        lines.append(f"uses {max(measurement.errors.values()):.2f} of the tolerance at worst")
    for timing in measurement.timings:
        if not timing.held_out:  # held-out workloads steer nobody
            lines.append(
                f"{timing.workload}: {timing.latency_us:.1f} us; {timing.baseline} {timing.baseline_us:.1f} us; "
                f"{timing.speedup:.3f} of it"
            )
    facts = ", ".join(f"{name} {value}" for name, value in measurement.resources.items())
    if facts:
        lines.append(f"facts: {facts}"[:1500])
    if score is not None:
        lines.append(f"score {score:.4f} (the fastest baseline's time divided by this one's; higher is better)")
    return "\n".join(lines)


def _schema(name: str, description: str, required: Sequence[str] = (), **properties: Any) -> ToolSchema:
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


NUMBER = {"type": "integer", "description": "A candidate's number."}
TEXT = {"type": "string"}
EDITS = {
    "type": "string",
    "description": "SEARCH/REPLACE edits to the parent's source, or a whole module in one ```python block.",
}
NOTE = {"type": "string", "description": "What is tried, in a sentence."}
PREDICTION = {"type": "string", "description": "What you expect and why; stored before anything is measured."}

SCHEMAS: tuple[ToolSchema, ...] = (
    _schema("leaders", "List the best candidates of the campaign.", shape_class=TEXT),
    _schema("lineage", "Show a candidate's ancestors with their scores.", ["candidate"], candidate=NUMBER),
    _schema("source", "Show a candidate's whole module.", ["candidate"], candidate=NUMBER),
    _schema("failures", "Show how recent candidates failed, in the compiler's and the checker's words.", parent=NUMBER),
    _schema("lessons", "Show what was tried before, what was expected and what came out."),
    _schema("knowledge", "Search notes on hardware, kernel languages and attention.", ["query"], query=TEXT),
    _schema(
        "compile",
        "Compile an edit without measuring it: registers, spills, shared memory, order of the main loop.",
        ["parent", "edits"],
        parent=NUMBER,
        edits=EDITS,
    ),
    _schema(
        "check",
        "Compare an edit with exact attention on small shapes. Costs a little of the budget.",
        ["parent", "edits"],
        parent=NUMBER,
        edits=EDITS,
        note=NOTE,
    ),
    _schema(
        "time",
        "Check an edit and time it beside the fastest baseline. Costs one evaluation.",
        ["parent", "edits"],
        parent=NUMBER,
        edits=EDITS,
        note=NOTE,
        prediction=PREDICTION,
    ),
    _schema(
        "submit",
        "Hand in an edit as a candidate. Ends the work on it.",
        ["parent", "edits", "note", "prediction"],
        parent=NUMBER,
        edits=EDITS,
        note=NOTE,
        prediction=PREDICTION,
    ),
)
MEASURING = {"check": Fidelity.SCREEN, "time": Fidelity.FULL}
