"""Commands about what is to be searched for: init, trace, plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evokernel.cli.options import Json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evokernel.planning import Outlook
    from evokernel.problem import Workload

Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]


def init(
    path: Annotated[Path, typer.Argument(help="Where to write the configuration.")] = Path("campaign.yaml"),
    force: Force = False,
    model: Annotated[Path | None, typer.Option(help="A Hugging Face config.json to take the shapes from.")] = None,
    batch: Annotated[str, typer.Option(help="With --model: batch sizes, as 1,8.")] = "1",
    seqlen: Annotated[str, typer.Option(help="With --model: prompt lengths, as 512,4096.")] = "1024,4096",
) -> None:
    """Write a configuration to start from: a commented one, or the attention shapes of a model."""
    _may_write(path, force)
    if model is None:
        from evokernel.config import BUILT_IN

        path.write_text((BUILT_IN / "start.yaml").read_text())
    else:
        from evokernel.huggingface import shapes

        found = shapes(model, _numbers("--batch", batch), _numbers("--seqlen", seqlen))
        path.write_text(_campaign(f"Attention of {found.name}.", found.dtype, found.workloads, found.notes))
        for note in found.notes:
            print(f"note: {note}")
    print(f"wrote {path}; edit it, then: evokernel run --config {path}")


def trace(
    command: Annotated[list[str], typer.Argument(metavar="-- PROGRAM [ARGUMENT]...", help="What to run.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the configuration.")] = Path(
        "campaign.yaml"
    ),
    force: Force = False,
) -> None:
    """Run a program and write a configuration of the attention calls it made, weighted by their work."""
    from evokernel import tracing

    _may_write(output, force)
    found = tracing.trace(command)
    notes = [f"left out, {count} calls: {reason}" for reason, count in found.left_out.items()]
    title = f"{found.calls} attention calls of: {' '.join(command)}"
    output.write_text(_campaign(title, found.dtype, found.workloads, notes))
    for workload in found.workloads[:20]:
        print(f"{workload.weight:8.3f}  {workload.name}")
    for note in notes:
        print(note)
    print(f"wrote {output}: {len(found.workloads)} workloads, {found.dtype}; now: evokernel plan --config {output}")
    raise typer.Exit(found.status)


def plan(
    config: Annotated[str, typer.Option("--config", "-c", help="A path, a built-in name, or auto.")] = "auto",
    override: Annotated[list[str] | None, typer.Option("-o", help="key.sub=value, over the configuration.")] = None,
    price: Annotated[float, typer.Option(help="Of the device, an hour.", min=0)] = 0.0,
    as_json: Json = False,
) -> None:
    """Time the baselines beside the roofline: is a search worth it, how long will it take, what may it cost?"""
    from contextlib import closing

    from evokernel import assemble, planning
    from evokernel.config import load, locate
    from evokernel.measurement import Fidelity
    from evokernel.worker.start import start

    settings = load(locate(config), override or [])
    problem = settings.problem.problem()
    device = assemble.device_for(settings)
    templates = assemble.templates(settings, problem)
    worker = start(device, problem.dtype, tuple(settings.baselines))
    try:
        roofline = device.roofline(problem.dtype)
        outlooks = [
            planning.outlook(w, worker.baseline_latencies(w), roofline, problem.dtype) for w in problem.workloads
        ]
        part = problem.in_class(problem.shape_classes()[0])
        backend = templates[0].body.space.backend
        worker.measure(templates[0].source, backend, part, Fidelity.FULL)  # the first also makes the oracle's secrets
        trial = worker.measure(templates[0].source, backend, part, Fidelity.FULL)
    finally:
        worker.close()
    with closing(assemble.evaluator(settings, device)) as evaluator:
        candidate_s = max(trial.device_seconds, trial.seconds / evaluator.slots)
    foreseen = planning.estimate(problem, settings.budget.budget(), candidate_s, price)
    if as_json:
        rows = [{**_row(o), "worth_it": o.worth_it} for o in outlooks]
        print(json.dumps({"device": device.model, "workloads": rows, "estimate": vars(foreseen)}, indent=2))
        return
    print(f"{device.model}, {problem.dtype}")
    for found in outlooks:
        others = ", ".join(f"{name} {us:.1f}" for name, us in found.latencies_us.items() if name != found.fastest)
        print(
            f"  {found.workload.name:36} {found.fastest:10} {found.latencies_us[found.fastest]:10.1f} us  "
            f"{found.share:6.1%} of the roofline" + (f"  ({others})" if others else "")
        )
    worth = sum(o.worth_it for o in outlooks)
    print(f"{worth} of {len(outlooks)} workloads are below {planning.LITTLE:.0%} of the roofline: ", end="")
    print("a search is worth it" if worth else "little is left to win")
    print(
        f"with this budget: {foreseen.wall_s / 60:.1f} min, about {foreseen.candidates} candidates in "
        f"{foreseen.classes} classes, one each {foreseen.candidate_s:.1f} s; {foreseen.cost:.2f} for the device"
    )


def _row(found: Outlook) -> dict[str, Any]:
    return {
        "workload": found.workload.name,
        "latencies_us": dict(found.latencies_us),
        "floor_us": found.floor_us,
        "share": found.share,
    }


def _may_write(path: Path, force: bool) -> None:
    from evokernel.errors import EvokernelError

    if path.exists() and not force:
        raise EvokernelError(f"{path} exists; choose another name or --force")
    path.parent.mkdir(parents=True, exist_ok=True)


def _numbers(option: str, text: str) -> list[int]:
    from evokernel.errors import EvokernelError

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise EvokernelError(f"{option} is {text!r}; give positive numbers such as 1,8")
    return [int(part) for part in parts]


def _campaign(title: str, dtype: str, workloads: Sequence[Workload], notes: Sequence[str]) -> str:
    """Return the text of a configuration for some workloads, with what fits their dtype."""
    import yaml

    rows = []
    for w in workloads:
        row: dict[str, Any] = {"batch": w.batch, "heads": w.heads, "head_dim": w.head_dim}
        if w.kv_heads != w.heads:
            row["kv_heads"] = w.kv_heads
        row |= {"seq": w.seq_q} if w.seq_q == w.seq_kv else {"seq_q": w.seq_q, "seq_kv": w.seq_kv}
        if w.causal:
            row["causal"] = True
        if w.weight != 1.0:
            row["weight"] = w.weight
        rows.append(row)
    on_gpu = dtype != "fp32"
    parts = {
        "problem": {"op": "forward", "dtype": dtype, "workloads": {"rows": rows}},
        "spaces": ["flash_forward_gluon", "flash_forward_triton"] if on_gpu else ["flash_forward_numba"],
        "seeds": ["fa2", "fa3"] if on_gpu else ["fa1_cpu", "fa2_cpu"],
        "operators": {"tune": {"sampler": "tpe", "weight": 4}, "mutate": {"weight": 2}, "cross": {"weight": 1}},
        "evaluator": {"type": "local", "device": "cuda" if on_gpu else "cpu"},
        "baselines": ["cudnn", "fa3", "sdpa_flash"] if on_gpu else ["sdpa"],
        "budget": {"wall": "30m"},
    }
    comments = "".join(f"# {line}\n" for line in (title, *notes))
    return comments + yaml.safe_dump(parts, sort_keys=False, width=110)


COMMANDS = {"init": init, "trace": trace, "plan": plan}
