"""Commands on one kernel module: check, bench."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evokernel.cli.options import Json

if TYPE_CHECKING:
    from evokernel.measurement import Measurement
    from evokernel.problem import Problem

File = Annotated[Path, typer.Argument(help="A template, seed, candidate or export.")]
ConfigName = Annotated[str, typer.Option("--config", "-c", help="Where the workloads come from.")]
Override = Annotated[list[str] | None, typer.Option("-o", help="key.sub=value, over the configuration.")]


def check(file: File, config: ConfigName = "cpu.yaml", override: Override = None, as_json: Json = False) -> None:
    """Compare a kernel with exact attention; prints the share of the tolerance that each case uses."""
    results = [(name, m) for name, _, m in _measured(file, config, override, screen=True)]
    if as_json:
        rows = [
            {"shape_class": n, "outcome": m.outcome.value, "message": m.message, "errors": dict(m.errors)}
            for n, m in results
        ]
        print(json.dumps(rows, indent=2))
    else:
        for name, measurement in results:
            for case, used in measurement.errors.items():
                print(f"  {used:6.3f}  {case}")
            print(f"{name}: {measurement.outcome.value} {measurement.message}".rstrip())
    raise typer.Exit(0 if all(m.passed for _, m in results) else 1)


def bench(file: File, config: ConfigName = "cpu.yaml", override: Override = None, as_json: Json = False) -> None:
    """Time a kernel beside the fastest baseline, interleaved, on the configuration's workloads."""
    from evokernel.measurement import score

    results = _measured(file, config, override, screen=False)
    rows: list[dict[str, Any]] = [
        {
            "shape_class": name,
            "outcome": m.outcome.value,
            "message": m.message,
            "score": score([m], part),
            "timings": [
                {"workload": t.workload, "latency_us": t.latency_us, "spread": t.spread, "baseline": t.baseline,
                 "baseline_us": t.baseline_us, "speedup": t.speedup, "held_out": t.held_out}
                for t in m.timings
            ],
        }
        for name, part, m in results
    ]  # fmt: skip
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        for row in rows:
            score_text = f"{row['score']:.3f} of the fastest baseline" if row["score"] else row["message"]
            print(f"{row['shape_class']}: {row['outcome']} {score_text}")
            for t in row["timings"]:
                print(
                    f"  {t['workload']:36} {t['latency_us']:10.1f} us ±{t['spread']:.1%}  "
                    f"{t['baseline']} {t['baseline_us']:10.1f} us  {t['speedup']:.3f}"
                )
    raise typer.Exit(0 if all(m.passed for _, _, m in results) else 1)


def _measured(
    file: Path, config: str, override: list[str] | None, *, screen: bool
) -> list[tuple[str, Problem, Measurement]]:
    """Measure a module in every shape class of a configuration."""
    from evokernel import assemble
    from evokernel.config import load, locate
    from evokernel.errors import EvokernelError
    from evokernel.measurement import Fidelity
    from evokernel.worker.start import start

    settings = load(locate(config), override or [])
    problem = settings.problem.problem()
    device = assemble.device_for(settings)
    source, backend = _source(file, problem.entry)
    if device.kind == "cpu" and backend != "numba":
        raise EvokernelError(
            f"{file} is a {backend} kernel: it cannot be checked or timed on {device.model}; "
            f"see what it compiles to with: evokernel compile {file} --target cuda:90"
        )
    worker = start(device, problem.dtype, tuple(settings.baselines), guarded=False)
    try:
        results = []
        for shape_class in problem.shape_classes():
            part = problem.in_class(shape_class)
            fidelity = Fidelity.SCREEN if screen else Fidelity.VERIFY
            results.append((shape_class.name, part, worker.measure(source, backend, part, fidelity)))
        return results
    finally:
        worker.close()


EXPORT_AS_CANDIDATE = """

policy("raise")
served = attention


def attention(q, k, v, *, scale, causal=False, num_sms=None):
    return served(q, k, v, scale=scale, causal=causal, return_lse=True)
"""


def _source(file: Path, entry: str) -> tuple[str, str]:
    """Read a candidate, seed or template; or any module that has the entry function, by what it imports."""
    import ast

    from evokernel.candidate import MARKER, load_genome
    from evokernel.errors import CandidateError

    if not file.is_file():
        raise CandidateError(f"{file}: no such file")
    text = file.read_text(errors="replace")
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise CandidateError(f"{file}:{error.lineno}: {error.msg}") from None
    assigned = {t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    if "TEMPLATE" in assigned or "SPACE" in assigned or (MARKER in text and "PROVENANCE" not in assigned):
        genome = load_genome(file)
        genome.body.require_entry(entry)
        return genome.source, genome.body.space.backend
    if not any(isinstance(n, ast.FunctionDef) and n.name == entry for n in tree.body):
        found = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]
        raise CandidateError(f"{file}: no entry function {entry!r}; found: {', '.join(found) or 'none'}")
    if "PROVENANCE" in assigned:  # an export: of its own, the log-sum-exp is on request, and what it cannot is torch's
        text += EXPORT_AS_CANDIDATE
    imported: set[Any] = {a.name.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    return text, "triton" if "triton" in imported else "numba"


COMMANDS = {"check": check, "bench": bench}
