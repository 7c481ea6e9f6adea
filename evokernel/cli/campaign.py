"""Commands that make and drive runs: run, resume, stop, export."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evokernel.cli.options import DEFAULT_DB, Db, RunArgument

if TYPE_CHECKING:
    from evokernel.config import Config
    from evokernel.devices import Device
    from evokernel.loop import Campaign
    from evokernel.store import Run, Store


def run(
    config: Annotated[str, typer.Option("--config", "-c", help="A file, or a built-in name.")] = "cpu.yaml",
    override: Annotated[list[str] | None, typer.Option("-o", help="key.sub=value, over the file.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="A name for the run; made up when absent.")] = None,
    db: Annotated[str | None, typer.Option("--db", help="Database URL, over the configuration's.")] = None,
) -> None:
    """Run a campaign to the end of its budget."""
    from evokernel import assemble
    from evokernel.config import load, locate
    from evokernel.errors import ConfigError
    from evokernel.llm.ledger import Ledger
    from evokernel.store import Store, made_up_name

    if name is not None and not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        raise ConfigError(f"--name is {name!r}; it names a folder too: use letters, digits, '.', '_' and '-'")
    path = locate(config)
    settings = load(path, [*(override or []), *([f"store={db}"] if db else [])])
    problem = settings.problem.problem()
    device = assemble.device_for(settings)
    assemble.search(settings, problem, device)  # refuse a bad configuration before the run exists
    assemble.evaluator(settings, device).close()
    store = Store.open(settings.store)
    assemble.models(settings, Ledger(), store)
    created = store.create_run(
        name or made_up_name(store), settings.model_dump(mode="json"), problem, device, settings.seed
    )
    print(f"configuration {path}, database {settings.store}, device {device.model}", file=sys.stderr)
    _write_copy(created, path, settings)
    _execute(settings, store, created, device)


def resume(name: RunArgument = None, db: Db = DEFAULT_DB) -> None:
    """Go on with a run that was stopped, interrupted or killed; nothing finished is measured again."""
    from evokernel import assemble
    from evokernel.config import validate
    from evokernel.errors import EvokernelError
    from evokernel.store import Store

    store = Store.open(db, create=False)
    found = store.run(name)
    settings = validate(found.config, f"run {found.name}")
    device = assemble.device_for(settings)
    if device.model != found.device_model:
        raise EvokernelError(
            f"run {found.name} was measured on {found.device_model}; this is {device.model}, and one run has one device"
        )
    _execute(settings, store, found, device)


def _execute(settings: Config, store: Store, run: Run, device: Device) -> None:
    from evokernel import assemble
    from evokernel.reporters import for_terminal

    store.clear_stop(run.id)
    campaign = assemble.campaign(settings, store, run, device, for_terminal())
    _drain_on_interrupt(campaign)
    try:
        status = campaign.execute()
    finally:
        campaign.evaluator.close()
    print(f"run {run.name} {status}; see it: evokernel top {run.name}", file=sys.stderr)
    if status == "stopped":
        print(f"go on with it: evokernel resume {run.name}", file=sys.stderr)


def _drain_on_interrupt(campaign: Campaign) -> None:
    """The first Ctrl-C or SIGTERM finishes what is in flight; the second ends the process."""

    def handler(number: int, frame: Any) -> None:
        if campaign.stopping == "interrupted":
            raise KeyboardInterrupt
        campaign.stop("interrupted")
        campaign.stopping = "interrupted"
        campaign.reporter.note("stopping: finishing what is in flight; once more to end at once")

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _write_copy(run: Run, path: Path, settings: Config) -> None:
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
