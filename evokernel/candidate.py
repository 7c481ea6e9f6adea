"""Template, seed and candidate in one form: a module with literal SPACE and KNOBS and, below a marker, its kernels."""

from __future__ import annotations

import ast
import hashlib
import json
import pprint
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from evokernel import syntax
from evokernel.errors import CandidateError
from evokernel.space import Knobs, KnobValue, SearchSpace

MARKER = "# ---- kernel ----"
FRAGMENT_PACKAGE = "search_spaces.lib"


def digest(text: str) -> str:
    """Return the first 16 hex digits of SHA-256: a name for a source, short enough to read out."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def library() -> Path:
    """Return the folder that holds search_spaces/ and seeds/: the repository's, or the installed copy."""
    packaged = Path(__file__).parent / "library"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent


def find_module(name: str, folder: str) -> Path:
    """Find a template or seed: a path as given, or a bare name in `folder` here and then in the library."""
    given = Path(name)
    if given.suffix == ".py" or given.parent != Path():
        if given.is_file():
            return given
        raise CandidateError(f"{name}: no such file")
    for place in (Path(folder), library() / folder):
        if (path := place / f"{name}.py").is_file():
            return path
    raise CandidateError(f"{folder}: no {name!r}; choose one of {', '.join(available(folder))}")


def available(folder: str) -> list[str]:
    """List the templates or seeds that a bare name may mean."""
    found = {p.stem for place in (Path(folder), library() / folder) for p in place.glob("*.py")}
    return sorted(name for name in found if not name.startswith("_"))


def _lines(source: str) -> list[str]:
    """Split at newlines alone, as the parser counts them; str.splitlines also splits at form feeds and the like."""
    return source.removesuffix("\n").split("\n")


def _literal(tree: ast.Module, name: str, where: str) -> tuple[Any, ast.stmt]:
    found = [
        node
        for node in tree.body
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets)
    ]
    if not found:
        raise CandidateError(f"{where}: no {name} = {{...}} at the top level")
    if len(found) > 1:  # Python would use the last, rendering would change the first
        raise CandidateError(f"{where}:{found[1].lineno}: {name} is assigned twice")
    try:
        return ast.literal_eval(found[0].value), found[0]
    except (ValueError, TypeError):
        raise CandidateError(f"{where}:{found[0].lineno}: {name} must be a literal, without names or calls") from None


def _inline_fragments(source: str, where: str) -> str:
    """Replace each import from search_spaces.lib by the fragment's definitions, so that the module stands alone."""
    lines = _lines(source)
    for node in reversed(syntax.parse(source).body):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(FRAGMENT_PACKAGE + "."):
            path = library() / (node.module or "").replace(".", "/")
            path = path.with_suffix(".py")
            if not path.is_file():
                raise CandidateError(f"{where}:{node.lineno}: no fragment {node.module}")
            lines[node.lineno - 1 : node.end_lineno] = _definitions(path)
    return "\n".join(lines) + "\n"


def _definitions(path: Path) -> list[str]:
    """Return a fragment's lines without its docstring and imports."""
    text = path.read_text()
    lines = _lines(text)
    drop: set[int] = set()
    for index, node in enumerate(syntax.parse(text).body):
        docstring = index == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if docstring or isinstance(node, ast.Import | ast.ImportFrom):
            drop.update(range(node.lineno - 1, node.end_lineno or node.lineno))
    kept = [line for number, line in enumerate(lines) if number not in drop]
    return [f"# from {path.stem}", *"\n".join(kept).strip().splitlines()]


@dataclass(frozen=True)
class Body:
    """A module's text with its knobs' values left open; two candidates that differ in KNOBS alone share it."""

    source: str  # with fragments inlined and the default KNOBS in place
    where: str = field(default="<body>", compare=False)

    def __post_init__(self) -> None:
        try:
            syntax.parse(self.source)
        except SyntaxError as error:
            raise CandidateError(f"{self.where}:{error.lineno}: {error.msg}") from None
        if MARKER not in _lines(self.source):
            raise CandidateError(f"{self.where}: no line {MARKER!r} between KNOBS and the kernels")
        self.space.check_names(self.defaults, self.where)

    @classmethod
    def load(cls, path: Path) -> Body:
        """Read a template or candidate file, or raise CandidateError or SpaceError in one line."""
        try:
            text = Path(path).read_text()
            return cls(_inline_fragments(text, str(path)), str(path))
        except SyntaxError as error:
            raise CandidateError(f"{path}:{error.lineno}: {error.msg}") from None
        except (OSError, ValueError) as error:  # ValueError: bytes that are not text, or a null byte
            raise CandidateError(f"{path}: {error}") from None

    @cached_property
    def _tree(self) -> ast.Module:
        return syntax.parse(self.source)

    @cached_property
    def space(self) -> SearchSpace:
        return SearchSpace.from_literal(_literal(self._tree, "SPACE", self.where)[0], self.where)

    @cached_property
    def defaults(self) -> Knobs:
        knobs, _ = _literal(self._tree, "KNOBS", self.where)
        if not isinstance(knobs, dict):
            raise CandidateError(f"{self.where}: KNOBS is {type(knobs).__name__}; it must be a literal dict")
        return knobs

    @cached_property
    def digest(self) -> str:
        return digest(self.render({}))

    def restricted(self, grid: Mapping[str, list[KnobValue]], where: str) -> Body:
        """Return this body with fewer values to some knobs, a space of its own; SpaceError names what does not fit."""
        space = self.space.restricted(grid, where)
        knobs = {n: self.defaults[n] if self.defaults[n] in values else values[0] for n, values in space.knobs.items()}
        lines = _lines(self.render(knobs))
        _, node = _literal(syntax.parse("\n".join(lines)), "SPACE", self.where)
        literal = pprint.pformat(space.to_literal(), width=100, sort_dicts=False)
        lines[node.lineno - 1 : node.end_lineno] = [f"SPACE = {literal}"]
        return Body("\n".join(lines) + "\n", self.where)

    def entries(self) -> list[str]:
        """List the functions at the top level, among which the problem's entry must be."""
        return [node.name for node in self._tree.body if isinstance(node, ast.FunctionDef)]

    def require_entry(self, entry: str) -> None:
        if entry not in self.entries():
            raise CandidateError(
                f"{self.where}: no entry function {entry!r}; found: {', '.join(self.entries()) or 'none'}"
            )

    def render(self, knobs: Mapping[str, KnobValue]) -> str:
        """Return the standalone module with these knobs."""
        _, node = _literal(self._tree, "KNOBS", self.where)
        lines = _lines(self.source)
        lines[node.lineno - 1 : node.end_lineno] = [f"KNOBS = {dict(knobs)!r}"]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Genome:
    """What is inherited: a body and the values of its knobs."""

    body: Body
    knobs: Mapping[str, KnobValue]

    @cached_property
    def key(self) -> str:
        """Name the genome by its content; equal keys render equal modules."""
        return digest(self.body.digest + json.dumps(dict(self.knobs), sort_keys=True))

    @cached_property
    def source(self) -> str:
        return self.body.render(self.knobs)


def load_genome(path: Path) -> Genome:
    """Read a candidate file, or a seed: a template's name and the knobs in which it differs from the defaults."""
    path = Path(path)
    try:
        tree = syntax.parse(path.read_text())
    except (OSError, SyntaxError, ValueError) as error:
        raise CandidateError(f"{path}: {error}") from None
    names = {t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    if "TEMPLATE" not in names:
        body = Body.load(path)
        return Genome(body, body.defaults)
    template, _ = _literal(tree, "TEMPLATE", str(path))
    knobs, _ = _literal(tree, "KNOBS", str(path))
    if not isinstance(template, str) or not isinstance(knobs, dict):
        raise CandidateError(f"{path}: a seed has TEMPLATE = 'name' and KNOBS = {{...}}")
    body = Body.load(find_module(template, "search_spaces"))
    merged = {**body.defaults, **knobs}
    body.space.check_names(merged, str(path))
    return Genome(body, merged)


@dataclass(frozen=True)
class Candidate:
    """A genome proposed for one shape class, and where it came from."""

    genome: Genome
    shape_class: str
    operator: str
    parents: tuple[int, ...] = ()
    generation: int = 0
    note: str = ""  # the proposer's reason or prediction, stored before any measurement
    cost_usd: float = 0.0
    tokens: int = 0
    id: int = 0  # given by the store
