"""Commands that make and drive runs: run, resume, stop, export."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evokernel.cli.options import DEFAULT_DB, Db, RunArgument

if TYPE_CHECKING:
    from evokernel.config import Config, SweepConfig
    from evokernel.devices import Device
    from evokernel.loop import Campaign
    from evokernel.reporters import Reporter
    from evokernel.store import Run, Store


def run(
    config: Annotated[str, typer.Option("--config", "-c", help="A file, or a built-in name.")] = "cpu.yaml",
    override: Annotated[list[str] | None, typer.Option("-o", help="key.sub=value, over the file.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="A name for the run; made up when absent.")] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, help="Runs with successive seeds: NAME-1, NAME-2, ...")
    ] = 1,
    warm: Annotated[
        str | None, typer.Option("--warm-start", metavar="RUN", help="Begin with what this run measured.")
    ] = None,
    db: Annotated[str | None, typer.Option("--db", help="Database URL, over the configuration's.")] = None,
) -> None:
    """Run a campaign to the end of its budget."""
    from evokernel import assemble
    from evokernel.config import load, locate
    from evokernel.errors import StoreError
    from evokernel.llm.ledger import Ledger
    from evokernel.store import Store, made_up_name

    check_name("--name", name)
    path = locate(config)
    given = [f"store={db}"] if db else []
    given += [f"warm_start={json.dumps(warm)}"] if warm is not None else []
    settings = load(path, [*(override or []), *given])
    problem = settings.problem.problem()
    device = assemble.device_for(settings)
    assemble.search(settings, problem, device)  # refuse a bad configuration before the run exists
    assemble.evaluator(settings, device).close()
    store = Store.open(settings.store)
    assemble.models(settings, Ledger(), store)
    assemble.experience(settings, problem, store)
    base = name or made_up_name(store)
    names = [base] if repeats == 1 else [f"{base}-{number}" for number in range(1, repeats + 1)]
    if taken := [run.name for run in store.runs() if repeats > 1 and run.name in names]:
        raise StoreError(f"a run named {taken[0]!r} exists; choose another --name")
    for number, run_name in enumerate(names):
        seeded = settings.model_copy(update={"seed": settings.seed + number})
        created = store.create_run(run_name, seeded.model_dump(mode="json"), problem, device, seeded.seed)
        print(f"configuration {path}, database {settings.store}, device {device.model}", file=sys.stderr)
        write_copy(created, path, seeded)
        if _execute(seeded, store, created, device) == "stopped":
            break


def check_name(place: str, name: str | None) -> None:
    """Raise ConfigError for a name that could not be a folder's."""
    from evokernel.errors import ConfigError

    if name is not None and not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        raise ConfigError(f"{place} is {name!r}; it names a folder too: use letters, digits, '.', '_' and '-'")


def resume(name: RunArgument = None, db: Db = DEFAULT_DB) -> None:
    """Go on with a run that was stopped, interrupted or killed; nothing finished is measured again."""
    from evokernel import assemble
    from evokernel.config import validate
    from evokernel.errors import EvokernelError
    from evokernel.store import Store

    store = Store.open(db, create=False)
    found = store.run(name)
    if "sweep" in found.config:
        raise EvokernelError(f"run {found.name} is a sweep; go on with it: evokernel sweep, with its --config")
    settings = validate(found.config, f"run {found.name}")
    device = assemble.device_for(settings)
    if device.model != found.device_model:
        raise EvokernelError(
            f"run {found.name} was measured on {found.device_model}; this is {device.model}, and one run has one device"
        )
    _execute(settings, store, found, device)


def _execute(settings: Config, store: Store, run: Run, device: Device) -> str:
    from evokernel import assemble
    from evokernel.cli.driving import drive

    def build(reporter: Reporter) -> Campaign:
        return assemble.campaign(settings, store, run, device, reporter)

    status = drive(store, run, build, f"evokernel resume {run.name}")
    print(f"run {run.name} {status}; see it: evokernel top {run.name}", file=sys.stderr)
    return status


def write_copy(run: Run, path: Path, settings: Config | SweepConfig) -> None:
    """Keep the effective configuration beside the run, for people; the database holds the one that counts."""
    import yaml

    folder = Path("runs") / run.name
    folder.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(settings.model_dump(mode="json", exclude_none=True), sort_keys=False)
    (folder / "config.yaml").write_text(f"# run {run.name}, from {path.name}\n{text}")


def stop(name: RunArgument = None, db: Db = DEFAULT_DB) -> None:
    """Ask a running campaign to finish what is in flight and stop."""
    from evokernel.store import Store

    store = Store.open(db, create=False)
    found = store.run(name)
    if found.status != "running":
        print(f"run {found.name} is {found.status}", file=sys.stderr)
        return
    store.request_stop(found.id)
    print(f"run {found.name} will stop when what is in flight is done", file=sys.stderr)


def export(
    name: RunArgument = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file; runs/NAME/best.py when absent.")
    ] = None,
    db: Db = DEFAULT_DB,
) -> None:
    """Write the run's champions as one standalone module."""
    from evokernel import export as exporting
    from evokernel.measurement import score
    from evokernel.store import Store

    store = Store.open(db, create=False)
    found = store.run(name)
    path = output or Path("runs") / found.name / "best.py"
    chosen = exporting.write(store, found, path)
    parts = {c.name: found.problem.in_class(c) for c in found.problem.shape_classes()}
    for champion in chosen:
        value = score(list(champion.measurements), parts[champion.shape_class])
        print(f"{champion.shape_class}: candidate {champion.candidate.id}, {value:.3f} of the fastest baseline")
    print(f"wrote {path}; prove it: python {path} --check --bench")


COMMANDS = {"run": run, "resume": resume, "stop": stop, "export": export}
