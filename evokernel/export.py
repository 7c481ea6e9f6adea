"""Write a run's champions as one standalone module: provenance, kernel sections, a dispatcher, --check and --bench."""

from __future__ import annotations

import ast
import hashlib
import pprint
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evokernel import __version__
from evokernel.candidate import MARKER, Body, Candidate
from evokernel.errors import EvokernelError
from evokernel.measurement import Measurement, score, workload_speedups
from evokernel.problem import LENGTH_BANDS, Problem
from evokernel.search import best_by_class
from evokernel.store import Run, Store


@dataclass(frozen=True)
class Champion:
    """The candidate that serves a shape class, with everything measured about it."""

    shape_class: str
    candidate: Candidate
    measurements: tuple[Measurement, ...]


def champions(store: Store, run: Run) -> list[Champion]:
    """Return the best candidate of every shape class that has one, by its score over all its measurements."""
    problem = run.problem
    parts = {c.name: problem.in_class(c) for c in problem.shape_classes()}
    by_candidate: dict[int, tuple[Candidate, list[Measurement]]] = {}
    for record in store.records(run.id):
        by_candidate.setdefault(record.candidate.id, (record.candidate, []))[1].append(record.measurement)
    best = best_by_class(by_candidate.values(), parts)
    if not best:
        raise EvokernelError(f"run {run.name} has no candidate that passed; nothing to export")
    return [Champion(name, candidate, tuple(found)) for name, (candidate, found) in sorted(best.items())]


def module(run: Run, problem: Problem, chosen: list[Champion]) -> str:
    """Return the text of the standalone module."""
    bodies = {c.candidate.genome.key: c.candidate for c in chosen}
    suffixes = {key: f"_k{index}" for index, key in enumerate(bodies)}  # kernels of one file must not share names
    sections, imports = [], _imports_of("dispatch.py") | _imports_of("standalone.py")
    for key, candidate in bodies.items():
        own_imports, text = kernel_section(candidate.genome.body, candidate.genome.source, suffixes[key])
        imports |= own_imports
        served = ", ".join(c.shape_class for c in chosen if c.candidate.genome.key == key)
        sections.append(f"{MARKER}\n# candidate {candidate.id}: serves {served}\n{text.strip()}\n")
    entries = {c.shape_class: problem.entry + suffixes[c.candidate.genome.key] for c in chosen}
    return "\n\n".join(
        [
            _header(run, chosen, problem),
            "\n".join(sorted(imports, key=lambda line: (line.startswith("from"), line))),
            "PROVENANCE = " + pprint.pformat(_provenance(run, problem, chosen), width=116, sort_dicts=False),
            *sections,
            _given(run, problem, entries),
            _copied("dispatch.py", "# ---- dispatch ----\n"),
            _copied("standalone.py", "# ---- check and bench ----\n"),
            f'if __name__ == "__main__":\n    raise SystemExit(main({problem.entry}, PROVENANCE))\n',
        ]
    )


def write(store: Store, run: Run, path: Path) -> list[Champion]:
    """Write the module and return whom it embeds."""
    chosen = champions(store, run)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(module(run, run.problem, chosen))
    return chosen


def kernel_section(body: Body, source: str, suffix: str) -> tuple[set[str], str]:
    """Split a rendered candidate into its imports and the rest, with `suffix` on every top-level name."""
    tree = ast.parse(source)
    lines = source.splitlines()
    imports: set[str] = set()
    drop: set[int] = set()
    for index, node in enumerate(tree.body):
        docstring = index == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        space = isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "SPACE" for t in node.targets)
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.add(ast.unparse(node))
        if docstring or space or isinstance(node, ast.Import | ast.ImportFrom):
            drop.update(range(node.lineno - 1, node.end_lineno or node.lineno))
    imports.discard("from __future__ import annotations")
    names = {n for node in tree.body for n in _defined(node)} - {"SPACE"}
    text = _rename(tree, lines, names, suffix, drop)
    return imports, text.replace(MARKER, "").strip() + "\n"


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    return [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]


def _keep(lines: list[str], drop: set[int]) -> str:
    return "\n".join(line for number, line in enumerate(lines) if number not in drop)


def _rename(tree: ast.Module, lines: list[str], names: set[str], suffix: str, drop: set[int]) -> str:
    """Put `suffix` on the given module-level names wherever they are meant, not where a local shadows them."""
    places: list[tuple[int, int, str]] = []

    def visit(node: ast.AST, shadowed: frozenset[str]) -> None:
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            arguments = {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}
            stored = {
                n.id
                for statement in (node.body if isinstance(node, ast.FunctionDef) else [])
                for n in ast.walk(statement)
                if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            }
            if isinstance(node, ast.FunctionDef):
                if node.name in names - shadowed:
                    places.append((node.lineno, node.col_offset + len("def "), node.name))
                for decorator in node.decorator_list:
                    visit(decorator, shadowed)
            shadowed = shadowed | arguments | stored
            inside = node.body if isinstance(node.body, list) else [node.body]
            for child in [*node.args.defaults, *filter(None, node.args.kw_defaults), *inside]:
                visit(child, shadowed)
            for annotation in filter(None, (a.annotation for a in ast.walk(node.args) if isinstance(a, ast.arg))):
                visit(annotation, shadowed)
            return
        if isinstance(node, ast.Name) and node.id in names - shadowed:
            places.append((node.lineno, node.col_offset, node.id))
        for child in ast.iter_child_nodes(node):
            visit(child, shadowed)

    for statement in tree.body:
        visit(statement, frozenset())
    encoded = [line.encode() for line in lines]
    for line, column, name in sorted(set(places), reverse=True):
        text = encoded[line - 1]
        end = column + len(name)
        if text[column:end].decode() != name:  # inside an f-string, where Python 3.11 gives no true positions
            raise EvokernelError(f"line {line}: {name} inside an f-string cannot be renamed; bind it to a local first")
        encoded[line - 1] = text[:end] + suffix.encode() + text[end:]
    return _keep([line.decode() for line in encoded], drop)


def _given(run: Run, problem: Problem, entries: Mapping[str, str]) -> str:
    """Return what dispatch.py expects to find."""
    bands = [(name, None if longest == float("inf") else int(longest)) for name, longest in LENGTH_BANDS]
    table = "".join(f"    {name!r}: {function},\n" for name, function in entries.items())
    digest = hashlib.sha256(f"{run.name}{problem.to_json()}{entries}".encode()).hexdigest()[:12]
    return f"KERNELS = {{\n{table}}}\nBANDS = {bands!r}\nNAMESPACE = 'evokernel_{digest}'"


def _copied(name: str, start: str) -> str:
    """Return the text of one of our modules from a line on."""
    text = (Path(__file__).parent / name).read_text()
    return start + text.partition(start)[2].rstrip() + "\n"


def _imports_of(name: str) -> set[str]:
    tree = ast.parse((Path(__file__).parent / name).read_text())
    return {ast.unparse(n) for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)}


def _header(run: Run, chosen: list[Champion], problem: Problem) -> str:
    lines = [
        f'"""Attention kernels found by evokernel {__version__}, run {run.name}, {datetime.now(UTC):%Y-%m-%d}.',
        "",
        f"Device: {chosen[0].measurements[0].environment.get('device', 'unknown')}",
        "Speed is that of the fastest baseline divided by ours, median of interleaved pairs; above 1 is faster.",
        "",
        f"{'workload':40} {'latency_us':>10}  speed  held out",
    ]
    for champion in chosen:
        for held_out in (False, True):
            for name, speedup in workload_speedups(list(champion.measurements), held_out).items():
                latency = next(
                    t.latency_us for m in reversed(champion.measurements) for t in m.timings if t.workload == name
                )
                lines.append(f"{name:40} {latency:10.1f}  {speedup:5.3f}  {'yes' if held_out else 'no'}")
    lines += [
        "",
        f"Use: from this_module import {problem.entry}; out = {problem.entry}(q, k, v, causal=True)",
        "or scaled_dot_product_attention, with torch's arguments; explain() says who computes a call, and why.",
        'Prove: python this_module.py --check --bench"""',
    ]
    return "\n".join(lines)


def _provenance(run: Run, problem: Problem, chosen: list[Champion]) -> dict[str, Any]:
    environment = chosen[0].measurements[0].environment
    return {
        "run": run.name,
        "dtype": problem.dtype,
        "device": environment.get("device", "unknown"),
        "device_kind": environment.get("device_kind", "cpu"),
        "versions": environment.get("versions", {}),
        "groups": _proven_groups(problem, chosen),
        "evaluator": environment.get("evaluator", ""),
        "champions": [
            {
                "shape_class": c.shape_class,
                "candidate": c.candidate.id,
                "operator": c.candidate.operator,
                "parents": list(c.candidate.parents),
                "generation": c.candidate.generation,
                "knobs": dict(c.candidate.genome.knobs),
                "score": score(list(c.measurements), _part(problem, c.shape_class)),
            }
            for c in chosen
        ],
        "workloads": [
            {k: v for k, v in w.to_json().items() if k in WORKLOAD_KEYS}
            for c in chosen
            for w in _part(problem, c.shape_class).workloads
        ],
    }


def _proven_groups(problem: Problem, chosen: list[Champion]) -> list[int]:
    """Return how many query heads shared one of K and V in what the champions were right on."""
    timed = {t.workload for c in chosen for m in c.measurements if m.passed for t in m.timings}
    known = (*problem.workloads, *problem.held_out)
    return sorted({w.heads // w.kv_heads for w in known if w.name in timed})


WORKLOAD_KEYS = {"batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim", "causal"}


def _part(problem: Problem, name: str) -> Problem:
    return next(problem.in_class(c) for c in problem.shape_classes() if c.name == name)
