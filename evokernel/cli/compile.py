"""The command that compiles GPU kernels without a GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evokernel.cli.options import Json

if TYPE_CHECKING:
    from evokernel.backends.targets import Target
    from evokernel.candidate import Genome
    from evokernel.problem import Problem, Workload
    from evokernel.worker.compile_pool import Compiled

COLUMNS = ("registers", "spill_bytes", "shared_bytes", "num_warps", "occupancy", "instructions", "loop_instructions")


def compile_(
    file: Annotated[Path, typer.Argument(help="A template, seed or candidate.")],
    target: Annotated[str, typer.Option("--target", help="cuda:90, cuda:80, cuda:100, hip:gfx942, ...")] = "cuda:90",
    dtype: Annotated[str, typer.Option("--dtype", help="bf16, fp16 or fp32.")] = "bf16",
    head_dim: Annotated[int, typer.Option("--head-dim", min=1)] = 128,
    causal: Annotated[bool, typer.Option("--causal/--full")] = True,
    knob: Annotated[list[str] | None, typer.Option("--knob", help="name=value, over the file's own.")] = None,
    as_json: Json = False,
) -> None:
    """Compile a GPU kernel for a target: registers, spills, shared memory, the order of the main loop."""
    from evokernel.backends import targets
    from evokernel.candidate import load_genome
    from evokernel.errors import CandidateError, ConfigError
    from evokernel.measurement import Outcome
    from evokernel.problem import DTYPE_BYTES, Problem, Workload

    if dtype not in DTYPE_BYTES:
        raise ConfigError(f"--dtype is {dtype!r}; choose one of {', '.join(DTYPE_BYTES)}")
    chosen = targets.parse(target)
    if not file.is_file():
        raise CandidateError(f"{file}: no such file")
    genome = load_genome(file)
    if genome.body.space.backend != "triton":
        raise CandidateError(f"{file} is a {genome.body.space.backend} kernel; only triton kernels compile for GPUs")
    workload = Workload(2, 8, 8, 1024, 1024, head_dim, causal)
    problem = Problem("forward", dtype, (workload,))
    genome.body.require_entry(problem.entry)
    knobs = _checked_knobs(file, genome, knob or [], problem, workload, chosen)
    compiled = _compiled(genome.body.render(knobs), problem, chosen)
    if as_json:
        fields = ("outcome", "message", "facts", "kernels", "binaries")
        print(json.dumps({"target": target, **{name: getattr(compiled, name) for name in fields}}, indent=2))
    else:
        print(f"{compiled.outcome} {file} for {target}, {dtype}, head_dim {head_dim}, {'causal' if causal else 'full'}")
        if compiled.message:
            print(compiled.message)
        if compiled.kernels:
            print(_table(compiled.facts, compiled.kernels))
    raise typer.Exit(0 if compiled.outcome is Outcome.PASSED else 1)


def _checked_knobs(
    file: Path, genome: Genome, settings: list[str], problem: Problem, workload: Workload, target: Target
) -> dict[str, Any]:
    """Return the file's knobs with the settings over them, or raise in one line what does not hold on the target."""
    import random

    from evokernel.errors import ConfigError, SpaceError

    space = genome.body.space
    context = problem.context(workload.shape_class(problem.dtype), target.context())
    knobs = space.canonical({**genome.knobs, **_parsed(settings, space.knobs)}, context)
    space.check_names(knobs, str(file))
    if reason := space.broken_constraint(knobs, context):
        try:
            space.sample(random.Random(0), context)
        except SpaceError as error:
            raise SpaceError(f"{file} on {target.name}: {error}") from None
        raise ConfigError(f"{file} on {target.name}: {reason}")
    return knobs


def _compiled(source: str, problem: Problem, target: Target) -> Compiled:
    import tempfile

    from evokernel.worker.compile_pool import CompilePool

    with tempfile.TemporaryDirectory(prefix="evokernel-") as folder, CompilePool(target, slots=1) as pool:
        path = Path(folder) / "candidate.py"
        path.write_text(source)
        return pool.submit(path, problem).result()


def _table(facts: Mapping[str, Any], kernels: Sequence[Mapping[str, Any]]) -> str:
    """Return one row a binary, then what is longer than a cell."""
    width = max(6, *(len(kernel["kernel"]) for kernel in kernels))
    rows = [f"{'kernel':{width}}  " + "  ".join(COLUMNS)]
    for kernel in kernels:
        cells = (f"{kernel.get(name, ''):>{len(name)}}" for name in COLUMNS)
        rows.append(f"{kernel['kernel']:{width}}  " + "  ".join(cells))
    for kernel in kernels:
        if kernel.get("order"):
            rows.append(f"{kernel['kernel']}: main loop {kernel['order']}  (G, M products; e exp2; Wn wait)")
        if kernel["wgmma_serialized"]:
            rows.append(f"{kernel['kernel']}: ptxas serialized its warpgroup products")
    if facts.get("extra_binaries"):
        rows.append(f"{facts['extra_binaries']} more for another length or stride, which should not be specialised")
    if facts.get("warnings"):
        rows.append(f"warning: {facts['warnings']}")
    return "\n".join(rows)


def _parsed(settings: list[str], knobs: Any) -> dict[str, Any]:
    """Read name=value pairs, each value as one of the knob's own."""
    from evokernel.errors import ConfigError

    result = {}
    for setting in settings:
        name, _, text = setting.partition("=")
        if name not in knobs:
            raise ConfigError(f"--knob {setting}: unknown knob {name!r}; knobs: {', '.join(knobs)}")
        matching = [value for value in knobs[name] if str(value) == text]
        if not matching:
            choices = ", ".join(map(str, knobs[name]))
            raise ConfigError(f"--knob {setting}: {name} has no value {text!r}; choose one of {choices}")
        result[name] = matching[0]
    return result


COMMANDS = {"compile": compile_}
