"""The command that hands a person's or a script's candidate to a running campaign."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evokernel.cli.options import DEFAULT_DB, Db

if TYPE_CHECKING:
    from evokernel.store import Run, Store

NAME_AND_FILE = 2


def submit(
    what: Annotated[
        list[str], typer.Argument(metavar="[NAME] FILE", help="The run (the latest when absent); a module, or edits.")
    ],
    parent: Annotated[int | None, typer.Option("--parent", help="The candidate that the edit starts from.")] = None,
    note: Annotated[str, typer.Option("--note", help="What is tried.")] = "",
    prediction: Annotated[str, typer.Option("--prediction", help="What you expect of it, kept before it runs.")] = "",
    shape_class: Annotated[str | None, typer.Option("--class", help="Its shape class; the parent's, or all.")] = None,
    db: Db = DEFAULT_DB,
) -> None:
    """Hand in a candidate: a whole module, or SEARCH/REPLACE edits to a parent. The campaign's driver claims it."""
    import sys

    from evokernel.errors import ConfigError
    from evokernel.store import Store
    from evokernel.toolbox import driven

    if len(what) > NAME_AND_FILE:
        raise ConfigError(f"submit takes [NAME] FILE; given: {' '.join(what)}")
    name, file = (what[0], what[1]) if len(what) == NAME_AND_FILE else (None, what[0])
    store = Store.open(db, create=False)
    run = store.run(name)
    numbers = _handed_in(store, run, Path(file), parent, note, prediction, shape_class)
    state = driven(store, run)
    later = "" if state == "running" else f"; run {run.name} is {state}, so it waits for: evokernel resume"
    print(f"submission {', '.join(map(str, numbers))} to run {run.name}{later}", file=sys.stderr)


def _handed_in(
    store: Store, run: Run, file: Path, parent: int | None, note: str, prediction: str, shape_class: str | None
) -> list[int]:
    """Refuse what can be refused now; the rest goes on the table, once for each shape class that is meant."""
    from evokernel.errors import CandidateError, ConfigError
    from evokernel.llm import patch
    from evokernel.llm.tools import ToolError
    from evokernel.toolbox import Reading

    classes = [c.name for c in run.problem.shape_classes()]
    if shape_class is not None and shape_class not in classes:
        raise ConfigError(f"--class is {shape_class!r}; choose one of {', '.join(classes)}")
    reading = Reading(store, run)
    try:
        text = file.read_text()
        origin = reading.candidate(parent) if parent is not None else None
        genome = origin.genome if origin else None
        if patch.parse(text) and genome is None:
            raise ConfigError(f"{file} holds edits; say of which candidate with --parent")
        source = patch.apply(genome.source, text) if genome and patch.parse(text) else text
        shape_class = shape_class or (origin.shape_class if origin else None)
        patch.checked(source, genome, run.problem.entry)
    except (OSError, UnicodeDecodeError) as error:
        raise CandidateError(f"{file}: {error}") from None
    except patch.PatchError as error:
        raise CandidateError(f"{file}: {error}".split("\n")[0]) from None
    except ToolError as error:
        raise ConfigError(f"--parent is {parent}: {error}") from None
    wanted = [shape_class] if shape_class else classes
    return [
        store.add_submission(run.id, source, parent, where, note, prediction=prediction) for where in wanted
    ]  # fmt: skip


COMMANDS = {"submit": submit}
