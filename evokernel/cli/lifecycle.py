"""Commands that look after runs and what they leave: status, gc, db upgrade."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from evokernel.cli.options import DEFAULT_DB, Db, Json

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}

db = typer.Typer(help="Look after the database.", no_args_is_help=True)


def status(db: Db = DEFAULT_DB, as_json: Json = False) -> None:
    """Show every run at a glance: what it does, whether its driver is alive, what it reached."""
    from evokernel import lifecycle
    from evokernel.cli import show
    from evokernel.store import Store

    columns = ("name", "status", "driver", "evaluations", "wall_s", "best", "last_measured", "device")
    found = [
        (
            s.run.name,
            s.run.status,
            s.driver,
            s.evaluations,
            s.run.elapsed_s,
            s.best,
            s.last_measured,
            s.run.device_model,
        )
        for s in lifecycle.states(Store.open(db, create=False), db)
    ]
    show.rows(columns, found, as_json)
    if not as_json:
        for name, _, driver, *_ in found:
            if driver == "dead":
                print(f"the driver of {name} died; go on with it: evokernel resume {name}")


def gc(
    cache_cap: Annotated[str, typer.Option("--cache-cap", help="Of compiled kernels to keep.")] = "5G",
    sources_cap: Annotated[str, typer.Option("--sources-cap", help="Of runs' source folders to keep.")] = "1G",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and leave it.")] = False,
) -> None:
    """Remove what is over the caps, the longest unused first; results and live runs are not touched."""
    from evokernel import lifecycle

    caps = parsed_bytes("--cache-cap", cache_cap), parsed_bytes("--sources-cap", sources_cap)
    for cache in lifecycle.caches(*caps):
        surplus = cache.surplus()
        for piece in surplus:
            print(f"{'would remove' if dry_run else 'removed'} {piece.path} ({_size(piece.size)})")
            if not dry_run:
                lifecycle.remove(piece)
        total, gone = sum(p.size for p in cache.pieces), sum(p.size for p in surplus)
        print(f"{cache.what}: {_size(total)} before, {_size(total - gone)} after, cap {_size(cache.cap)}")


def parsed_bytes(place: str, text: str) -> int:
    """Read 500M, 5G or a number of bytes; ConfigError otherwise."""
    from evokernel.errors import ConfigError

    parts = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)B?", text.strip().upper())
    if not parts:
        raise ConfigError(f"{place} is {text!r}; write bytes, or a size such as 500M or 5G")
    return int(float(parts[1]) * UNITS[parts[2]])


def _size(count: int) -> str:
    unit = max((u for u, size in UNITS.items() if count >= size), key=lambda u: UNITS[u], default="")
    return f"{count / UNITS[unit]:.3g} {unit}B"


@db.command("upgrade")
def upgrade(url: Db = DEFAULT_DB) -> None:
    """Bring the database to the newest schema; every command that writes does so too."""
    from evokernel.store.upgrade import upgrade as bring

    before, after = bring(url)
    print(f"schema {before} upgraded to {after}" if before != after else f"schema {after} is the newest")


COMMANDS = {"status": status, "gc": gc}
