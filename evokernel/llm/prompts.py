"""What a model is told: the form of a candidate, the rules, its parent with measurements, and what others learnt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from evokernel.candidate import MARKER
from evokernel.llm import Message, library
from evokernel.llm.patch import END, MIDDLE, START
from evokernel.llm.tools import Tools, told

if TYPE_CHECKING:
    from evokernel.operators import Parent, Plan

FORM = f"""\
You improve attention kernels inside an evolutionary search. A candidate is one Python module:
- SPACE, a literal dict: op, backend, knobs (each with the list of its values), conditions, constraints;
- KNOBS, a literal dict with one listed value for every knob;
- the line {MARKER}
- below it imports, kernels, and the entry function.
A sampler tunes KNOBS within SPACE by itself and does it well. Your part is what it cannot reach: the structure of the
code, and new knobs for choices that your structure opens. You may change everything, SPACE included; list several
values for each new knob, and start KNOBS with the ones you trust. A new structure is judged after it has been tuned.

Rules that the evaluator keeps, and that no trick has passed yet:
- the entry returns (out, lse), right against float64 on inputs that no call has seen, in every timed call;
- imports and attributes are limited to an allow-list; no library's attention or matrix product may do the work where
  the backend has its own kernels; nothing is read from files, the network, the clock or other processes;
- inputs are never written to; host code does not depend on the data.

An edit quotes lines of the source exactly, and is written as
{START}
lines as they are
{MIDDLE}
lines as they shall be
{END}
Several edits may follow one another. A whole module may be given instead, in one ```python block.
"""

ONE_SHOT = """\
Answer with one line that begins with IDEA: and says what you change and why; one line that begins with PREDICTION: and
says what you expect it to do to the times, and why; then the edits."""

WITH_TOOLS = """\
Work with the tools: read, search the knowledge, edit, compile, check, and time what is right. Each check and each time
is charged to the campaign's budget. End by calling submit with your best edit of the parent."""


def opening(plan: Plan, tools: Tools, parent: Parent, inspirations: Sequence[Parent], manner: str) -> list[Message]:
    """Return the messages that begin a conversation about one parent."""
    space = parent.candidate.genome.body.space
    notes = library.search(f"{space.backend} kernel {'causal' if plan.shape_class.causal else ''}", limit=2)
    about = "\n".join(
        [
            f"Shape class {plan.shape_class.name}: op {plan.problem.op}, head_dim {plan.shape_class.head_dim}, "
            f"{'causal' if plan.shape_class.causal else 'full'}, {plan.problem.dtype}, backend {space.backend}.",
            f"Entry function: {plan.problem.entry}. Context: "
            + ", ".join(f"{name}={value}" for name, value in sorted(plan.context.items())),
            "Workloads: " + ", ".join(w.name for w in plan.problem.workloads),
        ]
    )
    parts = [about, _parent(parent)]
    for other in inspirations:
        knobs = ", ".join(f"{k}={v}" for k, v in other.candidate.genome.knobs.items())
        parts.append(f"Another candidate, {other.candidate.id}, scores {other.score:.4f} with {knobs}.")
        if other.candidate.genome.body.digest != parent.candidate.genome.body.digest:
            parts.append(f"Its module:\n```python\n{other.candidate.genome.source}```")
    parts += _listed("What was learnt before in this campaign:", list(tools.lessons())[-8:])
    parts += _listed("Children of this parent that failed:", list(tools.failures(parent.candidate.id))[-5:])
    parts += [f"From the notes:\n{note}" for note in notes]
    return [
        {"role": "system", "content": FORM},
        {"role": "user", "content": "\n\n".join([*parts, manner])},
    ]


def _parent(parent: Parent) -> str:
    candidate = parent.candidate
    said = told(parent.record.measurement, parent.score)
    return f"The parent is candidate {candidate.id}.\n```python\n{candidate.genome.source}```\nIt was measured:\n{said}"


def _listed(title: str, lines: Sequence[str]) -> list[str]:
    return [title + "\n" + "\n".join(f"- {line[:400]}" for line in lines)] if lines else []


def labelled(answer: str, label: str) -> str:
    """Return what follows `LABEL:` on its line, or nothing."""
    for line in answer.split("\n"):
        bare = line.strip().lstrip("*#- ")
        if bare.upper().startswith(label + ":"):
            return bare[len(label) + 1 :].strip(" *")
    return ""
