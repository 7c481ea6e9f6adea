"""Run a real campaign on a GPU for some minutes, and say what its worker did with the time.

    python -m benchmarks.gpu_campaign [--seconds 330] [--store URL]

`candidates_per_minute` counts distinct candidates that were launched on the GPU; `full_candidates_per_minute` those
timed on every workload of their class; `gpu_busy_share` is the share of the time that the GPU was held by a check or a
timing, baselines and oracle included, and `gpu_baseline_share` the baselines' part. One candidate is measured again and
again all along: `repeatability_pct` is how far its score strays from its median at most.
"""

from __future__ import annotations

import argparse
import collections
import statistics
import time
from typing import Any

from benchmarks.record import Figure, write
from evokernel import assemble
from evokernel.candidate import Candidate
from evokernel.config import load, locate
from evokernel.loop import Campaign
from evokernel.measurement import Fidelity, Record
from evokernel.reporters import Silent
from evokernel.store import Store

REPEATS = 20


class Repeating:
    """Hands one candidate out again at even distances in time."""

    def __init__(self, campaign: Campaign, seconds: float) -> None:
        self.search = campaign.search
        self.in_flight = campaign.in_flight
        self.ask = campaign.search.remeasure
        self.every_s = seconds / (REPEATS + 2)
        self.last = time.monotonic()
        self.chosen: Candidate | None = None

    def __call__(self) -> Candidate | None:
        now = time.monotonic()
        if now - self.last >= self.every_s:
            if self.chosen is None:
                leaders = [
                    e for state in self.search.states.values() for e in self.search.leaders(state.shape_class, 1)
                ]
                self.chosen = leaders[0].record.candidate if leaders else None
            if self.chosen is not None and self.chosen.id not in self.in_flight:
                self.last = now
                return self.chosen
        found = self.ask()
        return None if found and found.id in self.in_flight else found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=330)
    parser.add_argument("--config", default="h200.yaml")
    parser.add_argument("--store", default="sqlite:///runs/gpu_campaign.db")
    arguments = parser.parse_args()
    overrides = [f"store={arguments.store}", f"budget={{wall: {arguments.seconds}, verify_share: 0}}"]
    config = load(locate(arguments.config), overrides)
    device = assemble.device_for(config)
    store = Store.open(config.store)
    run = store.create_run(
        "gpu_campaign", config.model_dump(mode="json"), config.problem.problem(), device, config.seed
    )
    campaign = assemble.campaign(config, store, run, device, Silent())
    repeating = Repeating(campaign, arguments.seconds)
    campaign.search.remeasure = repeating  # type: ignore[method-assign]
    started = time.monotonic()
    try:
        campaign.explore()
    finally:
        campaign.evaluator.close()
    wall_s = time.monotonic() - started
    records = list(store.records(run.id))
    parts = campaign.parts
    first: dict[int, Record] = {}
    for record in records:
        first.setdefault(record.candidate.id, record)
    launched = [r for r in first.values() if r.measurement.device_seconds > 0]
    full = [r for r in launched if r.measurement.passed and r.measurement.fidelity is Fidelity.FULL]
    held_s = [r.measurement.device_seconds for r in records]
    baseline_s = [float(r.measurement.resources.get("baseline_s", 0.0)) for r in records]
    again = [r for r in records if repeating.chosen and r.candidate.id == repeating.chosen.id]
    scores = [s for r in again if (s := r.score(parts[r.candidate.shape_class])) is not None]
    middle = statistics.median(scores)
    rows: list[dict[str, Any]] = [
        {
            "class": r.candidate.shape_class,
            "outcome": r.measurement.outcome.value,
            "fidelity": r.measurement.fidelity.value,
            "device_s": round(r.measurement.device_seconds, 3),
            "check_s": r.measurement.resources.get("check_s", 0.0),
            "compile_s": r.measurement.resources.get("compile_s", 0.0),
            "seconds": round(r.measurement.seconds, 3),
        }
        for r in first.values()
    ]
    print(collections.Counter((row["outcome"], row["fidelity"]) for row in rows))
    for name in ("device_s", "check_s", "compile_s", "seconds"):
        print(name, "median", statistics.median(row[name] for row in rows))
    for record in [r for r in first.values() if not r.measurement.passed][:40]:
        print(
            record.measurement.outcome,
            record.candidate.shape_class,
            record.measurement.message[-150:].replace("\n", " "),
        )
    for state in campaign.search.states.values():
        best = campaign.search.best(state.shape_class)
        print(state.shape_class.name, len(state.measurements), f"{best.score:.3f}" if best else None)
    samples = {"count": len(launched), "seconds": wall_s, "samples": rows}
    deviations = [100 * abs(s / middle - 1) for s in scores]
    figures = [
        Figure("candidates_per_minute", "1/min", ">= 100", "per_minute", samples),
        Figure("full_candidates_per_minute", "1/min", ">= 10", "per_minute", {"count": len(full), "seconds": wall_s}),
        Figure("gpu_busy_share", "share", ">= 0.7", "value", sum(held_s) / wall_s),
        Figure("gpu_baseline_share", "share", "<= 1", "value", sum(baseline_s) / wall_s),
        Figure("repeatability_pct", "%", "<= 1.5", "largest", deviations, f"{len(scores)} times"),
    ]  # fmt: skip
    write("gpu_campaign.json", figures, templates=config.spaces, device=device.model)


if __name__ == "__main__":
    main()
