"""The command that measures a declared sub-grid of one space completely."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from evokernel.devices import Device
    from evokernel.store import Run, Store


def sweep(
    config: Annotated[str, typer.Option("--config", "-c", help="A file with a section `sweep`.")],
    override: Annotated[list[str] | None, typer.Option("-o", help="key.sub=value, over the file.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="The run; the configuration's name when absent.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="The landscape; runs/NAME/landscape.parquet when absent.")
    ] = None,
    db: Annotated[str | None, typer.Option("--db", help="Database URL, over the configuration's.")] = None,
) -> None:
    """Measure every genome of a declared grid and write the landscape; started again, it goes on where it was."""
    from evokernel import assemble, run_folder
    from evokernel.cli.campaign import check_name, write_copy
    from evokernel.cli.driving import drive
    from evokernel.config import SweepConfig, load_as
    from evokernel.errors import ConfigError
    from evokernel.store import Store
    from evokernel.sweep import genomes, write_landscape
    from evokernel.worker.provenance import evaluator_version

    path = Path(config)
    check_name("--name", name)
    run_name = name or path.stem
    check_name("--config", run_name)
    target = output or run_folder.folder(run_name) / "landscape.parquet"
    if target.suffix != ".parquet":
        raise ConfigError(f"--output is {target}; name a file that ends in .parquet")
    settings = load_as(SweepConfig, path, [*(override or []), *([f"store={db}"] if db else [])])
    problem = settings.problem.problem()
    body = assemble.sweep_body(settings, problem)
    device = assemble.device_for(settings)
    count = len(genomes(body, problem, device.context()))
    assemble.evaluator(settings, device).close()
    store = Store.open(settings.store)
    # A landscape is of one piece: a changed template, or a changed way of judging, is another sweep.
    made_of = {**settings.model_dump(mode="json"), "template": body.digest, "evaluator version": evaluator_version()}
    found = _earlier(store, run_name, made_of, device)
    if found is None:
        found = store.create_run(run_name, made_of, problem, device, 0)
        write_copy(found, path, settings)
    print(f"configuration {path}, database {settings.store}, {count} genomes on {device.model}", file=sys.stderr)
    run = found
    again = f"evokernel sweep --config {path}" + (f" --name {name}" if name else "")
    status = drive(store, run, lambda reporter: assemble.sweep(settings, body, store, run, device, reporter), again)
    if status == "finished":
        landscape = write_landscape(store, run, body, target)
        print(f"wrote {target}, {len(landscape)} measurements, and its space {target.with_suffix('.py')}")


def _earlier(store: Store, name: str, made_of: dict[str, object], device: Device) -> Run | None:
    """Return the run to go on with, None when there is none; ConfigError when the name stands for another sweep."""
    from evokernel.errors import ConfigError

    found = next((run for run in store.runs() if run.name == name), None)
    if found is None:
        return None
    parts = ("problem", "sweep", "baselines", "template", "evaluator version")
    differing = [part for part in parts if found.config.get(part) != made_of[part]]
    if differing:
        raise ConfigError(f"run {name} exists with another {', '.join(differing)}; choose another --name")
    if found.device_model != device.model:
        raise ConfigError(
            f"run {name} was measured on {found.device_model}; this is {device.model}: choose another --name"
        )
    return found


COMMANDS = {"sweep": sweep}
