"""Measure what the default campaign finds: its champions beside torch's SDPA and beside 50 random valid genomes.

Everything is timed by the project's own worker in one sitting: champion, default and random genomes of each shape
class alternate with the same baseline on the same cores. Needs a finished run: evokernel run --config cpu.yaml
"""

from __future__ import annotations

import random
import sys
from typing import Any

from benchmarks.record import Figure, write
from evokernel import devices
from evokernel.candidate import Body, find_module
from evokernel.cli.options import DEFAULT_DB
from evokernel.export import champions
from evokernel.measurement import Fidelity, Measurement, score
from evokernel.store import Store
from evokernel.worker.parent import CpuWorker

RANDOM = 50


def pairs(measurement: Measurement) -> dict[str, list[float]]:
    return {
        t.workload: [round(b / c, 4) for b, c in zip(t.baseline_samples_us, t.samples_us, strict=True)]
        for t in measurement.timings
        if not t.held_out
    }


def main() -> None:
    store = Store.open(DEFAULT_DB, create=False)
    run = store.run(sys.argv[1] if len(sys.argv) > 1 else None)
    device = devices.cpu()
    worker = CpuWorker(device, run.problem.dtype, ("sdpa",))
    body = Body.load(find_module("flash_forward_numba", "search_spaces"))
    rng = random.Random(0)
    cells: dict[str, list[float]] = {}
    scores: dict[str, dict[str, Any]] = {}
    for champion in champions(store, run):
        shape_class = next(c for c in run.problem.shape_classes() if c.name == champion.shape_class)
        part = run.problem.in_class(shape_class)
        context = run.problem.context(shape_class, device.context())

        def measured(source: str, fidelity: Fidelity = Fidelity.FULL, part: Any = part) -> Measurement:
            return worker.measure(source, "numba", part, fidelity)

        random_scores = []
        while len(random_scores) < RANDOM:
            knobs = body.space.sample(rng, context)
            value = score([measured(body.render(knobs))], part)
            if value is not None:
                random_scores.append(value)
        best = [measured(champion.candidate.genome.source, Fidelity.VERIFY) for _ in range(5)]
        default = [measured(body.render(body.defaults)) for _ in range(5)]
        cells |= pairs(best[2])
        scores[champion.shape_class] = {
            "champion": [score([m], part) for m in best],
            "default": [score([m], part) for m in default],
            "random": random_scores,
        }
    worker.close()
    write(
        "cpu_campaign.json",
        [
            Figure("cpu_best_vs_random", "ratio", ">= 1.5", "champion_over_median_random", scores),
            Figure("cpu_default_vs_random", "ratio", ">= 1", "default_over_median_random", scores),
            Figure("cpu_best_vs_sdpa", "ratio", ">= 0.3", "geomean_of_medians", cells),
            Figure("cpu_worst_cell_vs_sdpa", "ratio", ">= 0.3", "worst_of_medians", cells),
        ],
        templates=["flash_forward_numba"],
    )


if __name__ == "__main__":
    main()
