"""Check the GPU templates on a GPU: every seed and default, and random genomes of each space, against float64.

    python -m benchmarks.bring_up [-n 50]

Each genome runs on lengths below and beside every tile, on GQA, on more queries than keys and fewer, in every input
family and layout (bench/correctness.py); `templates_wrong` counts what is not right. A spill or shared memory beyond
the limit is a rejection by the compile pool, and not wrong, but a constraint of the space should have ruled it out.
"""

from __future__ import annotations

import argparse
import collections
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.record import Figure, write
from evokernel import devices
from evokernel.candidate import Genome, find_module, load_genome
from evokernel.errors import EvokernelError
from evokernel.measurement import Fidelity, Outcome
from evokernel.problem import Problem, Workload
from evokernel.worker.start import start

TEMPLATES = ("flash_forward_gluon", "flash_forward_triton")
SEEDS = ("fa1", "fa2", "fa3", "fa3_d256", "chiplet")
HEAD_DIMS = (64, 96, 128, 256)
RIGHT = (Outcome.PASSED, Outcome.REJECTED)


def problem(head_dim: int, causal: bool, dtype: str) -> Problem:
    grouped = Workload(2, 4, 2, 515, 515, head_dim, causal)
    return Problem("forward", dtype, (grouped, Workload(1, 4, 4, 300, 777, head_dim, causal)))


def trials(n: int, dtype: str, device: devices.Device, rng: random.Random) -> list[tuple[str, Genome, Problem]]:
    """Return n random genomes of each template for a dtype, and whatever seeds and defaults a class admits."""
    classes = [problem(head_dim, causal, dtype) for head_dim in HEAD_DIMS for causal in (False, True)]
    found = []
    for name in (*TEMPLATES, *SEEDS):
        genome = load_genome(find_module(name, "search_spaces" if name in TEMPLATES else "seeds"))
        space = genome.body.space
        contexts = [(p, p.context(p.shape_classes()[0], device.context())) for p in classes]
        for part, context in contexts:
            if space.valid(genome.knobs, context):
                found.append((name, genome, part))
        drawn: dict[str, tuple[str, Genome, Problem]] = {}
        while name in TEMPLATES and len(drawn) < n:
            part, context = rng.choice(contexts)
            try:
                drawn_genome = Genome(genome.body, space.sample(rng, context))
            except EvokernelError:  # this class has no genome of the space
                continue
            drawn[f"{drawn_genome.key}/{part.workloads[0].name}"] = (name, drawn_genome, part)
        found += drawn.values()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", type=int, default=50, help="random genomes of each template, over both dtypes")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    device = devices.find("cuda")
    rows: list[dict[str, Any]] = []
    for dtype, share in (("bf16", arguments.n - arguments.n // 2), ("fp16", arguments.n // 2)):
        chosen = trials(share, dtype, device, random.Random(f"{arguments.seed}/{dtype}"))
        started = time.perf_counter()
        worker = start(device, dtype, ("sdpa_flash",))
        print(f"{dtype}: worker up in {time.perf_counter() - started:.1f} s, {len(chosen)} genomes", flush=True)
        try:
            with ThreadPoolExecutor(8) as threads:

                def measure(trial: tuple[str, Genome, Problem]) -> dict[str, Any]:
                    name, genome, part = trial
                    done = worker.measure(genome.source, "triton", part, Fidelity.SCREEN)  # noqa: B023
                    return {
                        "genome": name,
                        "class": part.shape_classes()[0].name,
                        "knobs": dict(genome.knobs),
                        "outcome": done.outcome.value,
                        "message": done.message,
                        "used": max(done.errors.values(), default=0.0),
                        "device_s": round(done.device_seconds, 3),
                        "seconds": round(done.seconds, 3),
                    }

                rows += threads.map(measure, chosen)
        finally:
            worker.close()
        print(f"{dtype}: {time.perf_counter() - started:.1f} s", flush=True)
    wrong = [row for row in rows if Outcome(row["outcome"]) not in RIGHT]
    for row in [r for r in rows if r["outcome"] != "PASSED"]:
        print(row["outcome"], row["genome"], row["class"], row["message"][-160:].replace("\n", " "))
    print(dict(collections.Counter((row["genome"], row["outcome"]) for row in rows)))
    print("device seconds a genome:", sum(r["device_s"] for r in rows) / len(rows), "largest share of a tolerance:",
          max((r["used"] for r in rows if r["outcome"] == "PASSED"), default=None))  # fmt: skip
    figures = [
        Figure("templates_wrong", "genomes", "<= 0", "count", wrong),
        Figure("templates_checked", "genomes", ">= 100", "count", rows),
    ]
    write("gpu_templates.json", figures, templates=TEMPLATES, device=f"{device.model}")


if __name__ == "__main__":
    main()
