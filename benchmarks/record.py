"""Write measured figures as data: raw samples with everything needed to judge and repeat them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evokernel import devices
from evokernel.candidate import Body, find_module
from evokernel.worker.provenance import evaluator_version

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Figure:
    """A published number as raw samples and the name of the formula that makes it (figures.py)."""

    name: str
    unit: str
    target: str  # such as ">= 0.3"
    formula: str
    samples: Any
    note: str = ""


def template_digest(name: str) -> str:
    return Body.load(find_module(name, "search_spaces")).digest


def commit() -> str:
    """Name the sources; whoever sends a copy of the tree without its history says which it was."""
    if given := os.environ.get("EVOKERNEL_COMMIT"):
        return given
    git = ["git", "-C", str(Path(__file__).parent.parent)]
    named = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    changes = [*git, "status", "--porcelain", "--", "evokernel", "search_spaces"]
    dirty = subprocess.run(changes, capture_output=True, check=False)
    return named.stdout.strip() + ("+changes" if dirty.stdout.strip() else "")


def write(file: str, figures: Iterable[Figure], templates: Iterable[str] = (), device: str = "") -> Path:
    """Write benchmarks/results/<file> with today's provenance."""
    provenance: Mapping[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "device": device or devices.cpu().model,
        "versions": devices.versions(),
        "command": "python " + " ".join([str(Path("benchmarks") / Path(sys.argv[0]).name), *sys.argv[1:]]),
        "evaluator": evaluator_version(),
        "templates": {name: template_digest(name) for name in templates},
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / file
    path.write_text(json.dumps({"provenance": provenance, "figures": [asdict(f) for f in figures]}, indent=1) + "\n")
    return path
