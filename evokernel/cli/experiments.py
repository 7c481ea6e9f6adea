"""Commands that look at several runs together: compare, dataset."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from evokernel.cli.options import DEFAULT_DB, Db, Json

Runs = Annotated[list[str], typer.Argument(metavar="RUN...", help="Runs, or names that --repeats numbered.")]


def compare(
    names: Runs,
    over: Annotated[str, typer.Option("--over", help="The budget: evaluations, or seconds of the workers.")] = (
        "evaluations"
    ),
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A figure: FILE.png or FILE.svg.")] = None,
    db: Db = DEFAULT_DB,
    as_json: Json = False,
) -> None:
    """Compare runs at equal budgets: medians and quartiles of the best score, over repeats."""
    from evokernel import comparison
    from evokernel.cli import show
    from evokernel.store import Store

    if output is not None:
        comparison.check_format(output)
    found = comparison.compare(Store.open(db, create=False), names, over)
    if as_json:
        print(json.dumps({"over": over, "budget": found.budget, "rows": [asdict(r) for r in found.rows()]}, indent=2))
    else:
        print(f"best score within {found.budget:.6g} {over}, which every run has spent")
        shares = [f"at {share:.0%}" for share in comparison.SHARES]
        columns = ("shape_class", "run", "repeats", *shares, "quartiles", "range", "verified")
        cells = [
            (r.shape_class, r.label, r.repeats, *r.medians, _span(r.low, r.high), _span(r.worst, r.best), r.verified)
            for r in found.rows()
        ]
        show.rows(columns, cells, as_json=False)
    if output is not None:
        found.draw(output)
        print(f"wrote {output}", file=sys.stderr)


def _span(low: float, high: float) -> str:
    return f"{low:.3f}-{high:.3f}"


def dataset(
    names: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help="All runs when absent.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="A folder.")] = Path("runs/dataset"),
    db: Db = DEFAULT_DB,
) -> None:
    """Write runs, candidates, measurements and timings as Parquet."""
    from evokernel import dataset as writing
    from evokernel.errors import EvokernelError
    from evokernel.store import Store

    if output.exists() and not output.is_dir():
        raise EvokernelError(f"--output is {output}, a file; name a folder")
    store = Store.open(db, create=False)
    chosen = [store.run(name) for name in dict.fromkeys(names)] if names else store.runs()
    for name, count in writing.write(store, chosen, output).items():
        print(f"{output / name}.parquet: {count} rows")


COMMANDS = {"compare": compare, "dataset": dataset}
