"""Look after runs: which are alive, what they reached, and what on disk can go."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evokernel import run_folder
from evokernel.store import Run, Store, queries

LEFT_BEHIND_S = 24 * 3600  # a worker's scratch folder that nothing touched for so long is a killed driver's
DRIVERS = {"": "dead", None: "unknown"}  # of a run that the database says is running


@dataclass(frozen=True)
class State:
    """A run at a glance."""

    run: Run
    driver: str  # "alive (PROCESS)", "dead", "unknown" (driven elsewhere); "-" when it does not run
    evaluations: int
    last_measured: str  # UTC; empty when nothing was
    best: float | None  # the worst of its classes' leaders


def states(store: Store, url: str) -> list[State]:
    """Return every run, the latest last."""
    # One question each for all runs: a glance must not read every measurement.
    last = _by_run(
        url, "SELECT r.name, MAX(m.created_at) FROM measurement m JOIN run r ON r.id = m.run_id GROUP BY r.name"
    )
    best = _by_run(
        url,
        "SELECT run, MIN(score) FROM (SELECT run, shape_class, MAX(score) AS score FROM leaderboard "
        "GROUP BY run, shape_class) AS leaders GROUP BY run",
    )
    return [
        State(
            run, driver(run), store.spent(run.id).evaluations, str(last.get(run.name, ""))[:19], _number(best, run.name)
        )
        for run in store.runs()
    ]


def _by_run(url: str, sql: str) -> dict[str, object]:
    _, rows, _ = queries.query(url, sql, limit=1_000_000, timeout_s=60)
    return {str(name): value for name, value in rows}


def _number(found: dict[str, object], name: str) -> float | None:
    value = found.get(name)
    return float(value) if isinstance(value, int | float) else None


def driver(run: Run) -> str:
    if run.status != "running":
        return "-"
    process = run_folder.driver(run.name)
    return DRIVERS.get(process, f"alive ({process})")


@dataclass(frozen=True)
class Piece:
    """A folder or file that can go without loss of a result."""

    path: Path
    size: int  # bytes
    used_at: float  # when anything in it last changed


@dataclass(frozen=True)
class Cache:
    """Pieces of one kind, of which the latest used are kept up to a cap."""

    what: str
    pieces: Sequence[Piece]
    cap: int  # bytes

    def surplus(self) -> list[Piece]:
        """Return what is over the cap, the longest unused first."""
        kept, over = 0, []
        for piece in sorted(self.pieces, key=lambda p: -p.used_at):
            kept += piece.size
            if kept > self.cap:
                over.append(piece)
        return over[::-1]


def caches(compile_cap: int, sources_cap: int) -> list[Cache]:
    """Find what can go: compiled kernels, the sources of runs that nobody drives, and what killed workers left."""
    compiled = sorted(run_folder.COMPILE_CACHE.glob("*"))
    sources = [
        path
        for path in sorted(run_folder.RUNS.glob(f"*/{run_folder.SOURCES}"))
        if not run_folder.driver(path.parent.name)
    ]
    locks = f"evokernel-{os.getuid()}"  # what devices are leased by, in use as long as the machine runs
    scratch = [p for p in sorted(Path(tempfile.gettempdir()).glob("evokernel-*")) if p.name != locks and _ours(p)]
    left = [piece for piece in map(_piece, scratch) if time.time() - piece.used_at > LEFT_BEHIND_S]
    return [
        Cache("compiled kernels", [_piece(path) for path in compiled], compile_cap),
        Cache("sources of runs", [_piece(path) for path in sources], sources_cap),
        Cache("scratch of killed workers", left, 0),
    ]


def remove(piece: Piece) -> None:
    if piece.path.is_dir() and not piece.path.is_symlink():
        shutil.rmtree(piece.path, ignore_errors=True)
    else:
        piece.path.unlink(missing_ok=True)


def _ours(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.getuid() and not path.is_symlink()
    except OSError:
        return False


def _piece(path: Path) -> Piece:
    size, used_at = 0, 0.0
    for place in (path, *path.rglob("*")):
        try:
            found = place.lstat()
        except OSError:
            continue  # gone meanwhile
        size += found.st_size
        used_at = max(used_at, found.st_mtime)
    return Piece(path, size, used_at)
