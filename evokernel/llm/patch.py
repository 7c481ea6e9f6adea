"""Apply a model's SEARCH/REPLACE edits, or its whole module, to a candidate; refuse what would waste a measurement."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evokernel import syntax
from evokernel.candidate import MARKER, Body, Genome
from evokernel.errors import CandidateError, SpaceError

MOST_BYTES = 200_000  # of a module; the templates are near 20,000
START, MIDDLE, END = "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE"
FENCE = re.compile(r"^```(?:python|py)?[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
HUNK = re.compile(r"^@@ -\d+", re.MULTILINE)
HOW = f"write edits as {START} / {MIDDLE} / {END}, or the whole module in one ```python block"


class PatchError(Exception):
    """An edit that cannot be taken; says what to mend."""


@dataclass(frozen=True)
class Edit:
    search: str
    replace: str


def patched(parent: Genome, answer: str, entry: str, context: Mapping[str, Any]) -> Genome:
    """Return the genome that an answer makes of its parent, valid in its own space, or raise PatchError."""
    return genome(apply(parent.source, answer), parent, entry, context)


def apply(source: str, answer: str) -> str:
    """Return the module that an answer describes. The edits see the source as it was rendered, one after another."""
    answer = answer.replace("\r\n", "\n")
    edits = parse(answer)
    if not edits:
        return _whole(answer)
    for number, edit in enumerate(edits, 1):
        source = _replaced(source, edit, f"edit {number} of {len(edits)}")
    return source


def parse(answer: str) -> list[Edit]:
    """Read the edits of an answer; PatchError for one that does not end or has no middle."""
    edits: list[Edit] = []
    part: list[str] | None = None
    search: list[str] | None = None
    for number, line in enumerate(answer.split("\n"), 1):
        mark = line.strip()
        if mark == START:
            if part is not None:
                raise PatchError(f"line {number}: {START} inside an edit that has not ended; {HOW}")
            part = []
        elif mark == MIDDLE and part is not None and search is None:
            search, part = part, []
        elif mark == END:
            if part is None or search is None:
                raise PatchError(f"line {number}: {END} without {START if part is None else MIDDLE} before it; {HOW}")
            edits.append(Edit("\n".join(search), "\n".join(part)))
            part = search = None
        elif part is not None:
            part.append(line)
    if part is not None:
        raise PatchError(f"the last edit has no {END}: the answer was cut off, or it is malformed; {HOW}")
    return edits


def _whole(answer: str) -> str:
    blocks = [block for block in FENCE.findall(answer) if MARKER in block.split("\n")]
    if len(blocks) == 1:
        return str(blocks[0])
    if len(blocks) > 1:
        raise PatchError(f"the answer holds {len(blocks)} whole modules; give one")
    if MARKER in answer.split("\n") and "```" not in answer:
        return answer.rstrip() + "\n"
    if HUNK.search(answer):
        raise PatchError(f"unified diffs are not read; {HOW}")
    raise PatchError(f"the answer holds no edit and no module with the line {MARKER!r}; {HOW}")


def _replaced(source: str, edit: Edit, which: str) -> str:
    if not edit.search.strip():
        raise PatchError(f"{which} has an empty SEARCH; quote the lines that it replaces")
    lines, wanted = source.split("\n"), edit.search.split("\n")
    for loosened in (str, str.rstrip):
        places = _places([loosened(x) for x in lines], [loosened(x) for x in wanted])
        if len(places) > 1:
            raise PatchError(f"{which}: its SEARCH occurs {len(places)} times; quote more lines around the place")
        if places:
            replacement = edit.replace.split("\n") if edit.replace else []
            return "\n".join([*lines[: places[0]], *replacement, *lines[places[0] + len(wanted) :]])
    raise PatchError(f"{which}: its SEARCH is not in the source, which must be quoted exactly{_closest(lines, wanted)}")


def _places(lines: list[str], wanted: list[str]) -> list[int]:
    size = len(wanted)
    return [i for i in range(len(lines) - size + 1) if lines[i] == wanted[0] and lines[i : i + size] == wanted]


def _closest(lines: list[str], wanted: list[str]) -> str:
    """Show the lines that were probably meant."""
    telling = max(wanted, key=lambda line: len(line.strip()))
    near = difflib.get_close_matches(telling, lines, n=1, cutoff=0.6)
    if not near:
        return ""
    here = lines.index(near[0])
    start = max(0, here - wanted.index(telling))
    return "; the source has there:\n" + "\n".join(lines[start : start + min(len(wanted), 12)])


def genome(source: str, parent: Genome | None, entry: str, context: Mapping[str, Any]) -> Genome:
    """Make a genome of a module's text, or raise PatchError for what no measurement is needed to refuse."""
    body = checked(source, parent, entry)
    try:
        knobs = body.space.canonical(body.defaults, context)
        broken = body.space.broken_constraint(knobs, context)
    except SpaceError as error:
        raise PatchError(str(error)) from None
    if broken:
        raise PatchError(f"KNOBS break a constraint of SPACE: {broken}")
    return Genome(body, knobs)


def checked(source: str, parent: Genome | None, entry: str) -> Body:
    """Return a module's body if it has the form of a candidate and does something else than its parent."""
    if len(source.encode("utf-8", "replace")) > MOST_BYTES:
        raise PatchError(f"the module has more than {MOST_BYTES} bytes")
    try:
        body = Body(source, "module")
        body.require_entry(entry)
        same = parent is not None and _meaning(source) == _meaning(parent.source)
    except (CandidateError, SpaceError, ValueError) as error:
        raise PatchError(str(error)) from None
    except (RecursionError, MemoryError):
        raise PatchError("the module is nested too deeply to be read") from None
    if parent is not None:
        old, new = parent.body.space, body.space
        if (new.op, new.backend) != (old.op, old.backend):
            raise PatchError(f"SPACE says op {new.op!r}, backend {new.backend!r}; keep {old.op!r} and {old.backend!r}")
        if same:
            raise PatchError("the edits change nothing that runs")
    return body


def _meaning(source: str) -> str:
    """Return what a module does, without comments, layout and docstrings."""
    tree = syntax.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node, clean=False):
            node.body = node.body[1:]
    return ast.dump(tree)
