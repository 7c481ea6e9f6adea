"""The command that compiles GPU kernels without a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from evokernel.cli.options import Json


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
    from evokernel.backends.compile_child import compile_in_child
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
    space = genome.body.space
    if space.backend != "triton":
        raise CandidateError(f"{file} is a {space.backend} kernel; only triton kernels are compiled ahead of time")
    # Two lengths: what is specialised on one shows as a second binary.
    shapes = [Workload(2, 8, 8, seq, seq, head_dim, causal) for seq in (1024, 2000)]
    problem = Problem("forward", dtype, tuple(shapes))
    genome.body.require_entry(problem.entry)
    context = problem.context(shapes[0].shape_class(dtype), chosen.context())
    knobs = space.canonical({**genome.knobs, **_parsed(knob or [], space.knobs)}, context)
    space.check_names(knobs, str(file))
    if reason := space.broken_constraint(knobs, context):
        raise ConfigError(f"{file} on {target}: {reason}")
    outcome, message, kernels = compile_in_child(genome.body.render(knobs), problem.entry, problem.to_json(), target)
    if as_json:
        print(
            json.dumps({"outcome": outcome.value, "message": message, "target": target, "kernels": kernels}, indent=2)
        )
    else:
        print(f"{outcome.value} {file} for {target}, {dtype}, head_dim {head_dim}, {'causal' if causal else 'full'}")
        if message:
            print(message)
        for facts in kernels:
            for name, value in facts.items():
                print(f"  {name:22} {value}")
    raise typer.Exit(0 if outcome is Outcome.PASSED else 1)


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
