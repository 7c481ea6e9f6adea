"""Compare runs at equal budgets: the best score so far, with quantiles over repeats, as a table and as a figure."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evokernel.errors import EvokernelError
from evokernel.measurement import Fidelity, Measurement, Record, geometric_mean, score
from evokernel.problem import Problem
from evokernel.search import best_by_class
from evokernel.store import Run, Store

OVER = {"evaluations": "measurements of the search", "seconds": "worker seconds of the search"}
FORMATS = (".png", ".svg")
SHARES = (0.25, 0.5, 1.0)  # of the common budget, at which the table shows medians
POINTS = 200  # on the budget axis of a figure
ALL = "all classes"  # their geometric mean


@dataclass(frozen=True)
class Trace:
    """How one run went: after each measurement what was spent, and the leader's score of every shape class."""

    spent: Sequence[float]
    best: Mapping[str, Sequence[float]]  # 0 while nothing has passed
    verified: Mapping[str, float]  # the champions that verification measured again

    def at(self, shape_class: str, budget: float) -> float:
        index = int(np.searchsorted(self.spent, budget, side="right")) - 1
        return self.best[shape_class][index] if index >= 0 else 0.0


@dataclass(frozen=True)
class Row:
    """One label in one shape class: scores at the common budget over the repeats."""

    label: str
    repeats: int
    shape_class: str
    budget: float
    medians: tuple[float, ...]  # at each of SHARES
    low: float  # quartiles at the whole budget
    high: float
    worst: float
    best: float
    verified: float | None  # median


@dataclass(frozen=True)
class Comparison:
    """Runs of one problem by label; the budget is what every run has spent at least."""

    over: str
    classes: Sequence[str]
    traces: Mapping[str, Sequence[Trace]]

    @property
    def budget(self) -> float:
        return min(trace.spent[-1] for traces in self.traces.values() for trace in traces)

    def rows(self) -> list[Row]:
        return [self._row(label, name) for name in self.classes for label in self.traces]

    def _row(self, label: str, name: str) -> Row:
        traces = self.traces[label]
        medians = [float(np.median([t.at(name, share * self.budget) for t in traces])) for share in SHARES]
        final = [trace.at(name, self.budget) for trace in traces]
        low, high = (float(np.quantile(final, q)) for q in (0.25, 0.75))
        verified = [trace.verified[name] for trace in traces if name in trace.verified]
        median = float(np.median(verified)) if verified else None
        return Row(label, len(traces), name, self.budget, tuple(medians), low, high, min(final), max(final), median)

    def draw(self, path: Path) -> None:
        """Write the curves, medians with their quartiles; the suffix chooses the format."""
        check_format(path)
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError:
            raise EvokernelError("figures need matplotlib: pip install 'evokernel-attention[figures]'") from None
        columns = min(3, len(self.classes))
        lines = math.ceil(len(self.classes) / columns)
        figure = Figure(figsize=(5 * columns, 3.5 * lines), layout="constrained")
        axes = figure.subplots(lines, columns, squeeze=False)
        budgets = np.linspace(0, self.budget, POINTS)
        for axis, name in itertools.zip_longest(axes.flat, self.classes):
            if name is None:
                axis.set_visible(False)
                continue
            for label, traces in self.traces.items():
                values = np.array([[trace.at(name, budget) for budget in budgets] for trace in traces])
                values[values == 0] = np.nan  # nothing to draw before anything has passed
                middle, low, high = (_quantile(values, q) for q in (0.5, 0.25, 0.75))
                (line,) = axis.plot(budgets, middle, label=f"{label} ({len(traces)})", drawstyle="steps-post")
                axis.fill_between(budgets, low, high, step="post", alpha=0.2, color=line.get_color(), linewidth=0)
            axis.set_title(name, fontsize="medium")
            axis.set_xlabel(OVER[self.over])
            axis.set_ylabel("fastest baseline ÷ best")
            axis.grid(alpha=0.3)
        axes.flat[0].legend(title="median and quartiles (runs)", fontsize="small", title_fontsize="small")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)


def _quantile(values: np.ndarray, q: float) -> np.ndarray:
    """Return the quantile of each column; NaN where a run has no value yet, so that no run is left out of a median."""
    result: np.ndarray = np.quantile(values, q, axis=0)
    return result


def check_format(path: Path) -> None:
    if path.suffix not in FORMATS:
        raise EvokernelError(f"--output is {path}; choose a name that ends in {' or '.join(FORMATS)}")


def compare(store: Store, names: Sequence[str], over: str) -> Comparison:
    """Read runs, each name one label: a run, or what `--repeats` numbered (NAME-1, NAME-2, ...).

    Raises EvokernelError when a run is unknown or unmeasured, and when two are about different problems or devices.
    """
    if over not in OVER:
        raise EvokernelError(f"--over is {over!r}; choose one of {', '.join(OVER)}")
    labelled = {name: runs_named(store, name) for name in dict.fromkeys(names)}
    first = next(iter(labelled.values()))[0]
    traces: dict[str, list[Trace]] = {}
    for label, runs in labelled.items():
        for run in runs:
            if _compared(run) != _compared(first):
                raise EvokernelError(
                    f"run {run.name} cannot be compared with {first.name}: another problem or device; "
                    f"choose runs of the same dtype and workloads on {first.device_model}"
                )
            traces.setdefault(label, []).append(trace(run.problem, store.records(run.id), over, run.name))
    classes = [c.name for c in first.problem.shape_classes()]
    return Comparison(over, [*classes, ALL] if len(classes) > 1 else classes, traces)


def runs_named(store: Store, name: str) -> list[Run]:
    """Return the run of that name, or its numbered repeats."""
    runs = store.runs()
    exact = [run for run in runs if run.name == name]
    repeats = [run for run in runs if re.fullmatch(re.escape(name) + r"-\d+", run.name)]
    return exact or repeats or [store.run(name)]  # the last raises, with the names that exist


def _compared(run: Run) -> tuple[object, ...]:
    return run.problem.op, run.problem.dtype, frozenset(run.problem.workloads), run.device_model


def trace(problem: Problem, records: Iterable[Record], over: str, name: str) -> Trace:
    """Follow a run's leaders as the search saw them; verification is no part of its budget, and stands apart."""
    parts = {c.name: problem.in_class(c) for c in problem.shape_classes()}
    searched: dict[int, list[Measurement]] = {}
    everything: dict[int, tuple[Record, list[Measurement]]] = {}
    scores: dict[str, dict[int, float]] = {c: {} for c in parts}
    leaders: dict[str, float] = dict.fromkeys(parts, 0.0)
    spent: list[float] = []
    best: dict[str, list[float]] = {c: [] for c in [*parts, ALL]}
    for record in records:
        candidate, measurement = record.candidate, record.measurement
        everything.setdefault(candidate.id, (record, []))[1].append(measurement)
        if measurement.fidelity is Fidelity.VERIFY:
            continue
        spent.append((spent[-1] if spent else 0.0) + (1 if over == "evaluations" else measurement.seconds))
        found = searched.setdefault(candidate.id, [])
        found.append(measurement)
        here = scores[candidate.shape_class]
        before = here.pop(candidate.id, None)
        value = score(found, parts[candidate.shape_class])
        if value is not None:
            here[candidate.id] = value
        if before is not None:  # measured again: the leader may have fallen
            leaders[candidate.shape_class] = max(here.values(), default=0.0)
        elif value is not None:
            leaders[candidate.shape_class] = max(value, leaders[candidate.shape_class])
        for shape_class, leader in leaders.items():
            best[shape_class].append(leader)
        best[ALL].append(across_classes(list(leaders.values())))
    if not spent:
        raise EvokernelError(f"run {name} has measured nothing yet; there is nothing to compare")
    champions = best_by_class(((record.candidate, ms) for record, ms in everything.values()), parts)
    verified = {
        shape_class: score(ms, parts[shape_class]) or 0.0
        for shape_class, (_, ms) in champions.items()
        if any(m.passed and m.fidelity is Fidelity.VERIFY for m in ms)
    }
    if verified.keys() == parts.keys():
        verified[ALL] = across_classes(list(verified.values()))
    return Trace(spent, best, verified)


def across_classes(values: Sequence[float]) -> float:
    """Return the geometric mean, 0 when any value is 0: a class without a candidate that passed."""
    return geometric_mean([(value, 1.0) for value in values]) if all(values) else 0.0
