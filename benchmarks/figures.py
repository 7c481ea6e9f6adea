"""Recompute every published figure from its raw samples and print one a line: name value unit target file."""

from __future__ import annotations

import json
import math
import operator
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS, template_digest
from evokernel.errors import EvokernelError
from evokernel.worker.provenance import evaluator_version


def geometric_mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def _over_random(scores: dict[str, list[float]], which: str) -> float:
    return statistics.median(scores[which]) / statistics.median(scores["random"])


FORMULAS: dict[str, Callable[[Any], float]] = {
    "value": float,
    "total": lambda found: float(sum(found.values())),  # {"case": number}
    "count": lambda found: float(len(found)),
    "per_minute": lambda s: 60 * s["count"] / s["seconds"],
    "total_less_sampler": lambda s: s["total_s"] - s["sampler_s"],
    "mean": statistics.fmean,
    "largest": max,
    "caught": lambda rows: statistics.fmean(float(row["caught"]) for row in rows),
    "median": statistics.median,
    "p95": lambda samples: statistics.quantiles(samples, n=20)[-1],
    # {"first": [seconds of each, ...], "second": [...]}: how fast the second is beside the first
    "speed_of_second": lambda s: statistics.fmean(s["first"]) / statistics.fmean(s["second"]),
    # {"cell": [ratio of each interleaved pair, ...]}: the median of each cell, then their geometric mean
    "geomean_of_medians": lambda cells: geometric_mean([statistics.median(c) for c in cells.values()]),
    "worst_of_medians": lambda cells: min(statistics.median(c) for c in cells.values()),
    # {"shape class": {"champion": [scores], "default": [scores], "random": [scores]}}: the worst class counts
    "champion_over_median_random": lambda classes: min(_over_random(c, "champion") for c in classes.values()),
    "default_over_median_random": lambda classes: min(_over_random(c, "default") for c in classes.values()),
}
COMPARISONS = {">=": operator.ge, "<=": operator.le, "=": operator.eq}


@dataclass(frozen=True)
class Row:
    name: str
    value: float
    unit: str
    target: str
    file: str
    stale: bool
    note: str

    @property
    def met(self) -> bool:
        sign, _, bound = self.target.partition(" ")
        return COMPARISONS[sign](self.value, float(bound))


def rows(folder: Path = RESULTS) -> Iterator[Row]:
    """Read every result file; a figure is stale when the evaluator or a template has changed since."""
    for path in sorted(folder.glob("*.json")):
        data = json.loads(path.read_text())
        provenance = data["provenance"]
        stale = provenance["evaluator"] != evaluator_version() or any(
            _digest(name) != digest for name, digest in provenance["templates"].items()
        )
        for figure in data["figures"]:
            value = FORMULAS[figure["formula"]](figure["samples"])
            yield Row(figure["name"], value, figure["unit"], figure["target"], path.name, stale, figure["note"])


def _digest(name: str) -> str:
    try:
        return template_digest(name)
    except EvokernelError:
        return "gone"


def main() -> None:
    for row in rows():
        marks = ("" if row.met else "  MISSED") + ("  STALE" if row.stale else "")
        print(f"{row.name:24} {row.value:10.4g} {row.unit:12} {row.target:10} {row.file}{marks}")


if __name__ == "__main__":
    main()
