"""Measure the compile pool: `compiles_per_minute` over distinct random genomes, and what becomes of each of them."""

from __future__ import annotations

import argparse
import collections
import os
import random
import tempfile
import time
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any

from benchmarks.record import Figure, write
from evokernel.backends.targets import parse
from evokernel.candidate import Body, Genome, find_module
from evokernel.problem import Problem, Workload
from evokernel.worker.compile_pool import Compiled, CompilePool

TEMPLATES = ("flash_forward_triton", "flash_forward_gluon")
HEAD_DIMS = (64, 128, 256)
TARGET = "cuda:90"


def measure(n: int, seconds: float, slots: int | None = None, seed: int = 0) -> dict[str, Any]:
    """Compile n distinct random genomes, or as many as start within the seconds; returns raw samples and counts."""
    target = parse(TARGET)
    bodies = {name: Body.load(find_module(name, "search_spaces")) for name in TEMPLATES}
    rng = random.Random(seed)
    samples: list[dict[str, Any]] = []
    exceptions: list[str] = []
    seen: set[tuple[str, int, bool]] = set()
    running: dict[Future[Compiled], dict[str, Any]] = {}
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder, CompilePool(target, slots) as pool:
        started = time.perf_counter()
        cpu_before = pool.cpu_s()

        def start() -> None:
            while True:
                name = TEMPLATES[len(seen) % len(TEMPLATES)]
                head_dim, causal = rng.choice(HEAD_DIMS), rng.random() < 0.5
                workload = Workload(2, 8, 8, 4096, 4096, head_dim, causal)
                problem = Problem("forward", "bf16", (workload,))
                context = problem.context(workload.shape_class("bf16"), target.context())
                genome = Genome(bodies[name], bodies[name].space.sample(rng, context))
                key = genome.key, head_dim, causal
                if key not in seen:
                    break
            seen.add(key)
            path = Path(folder) / f"{len(seen)}.py"
            path.write_text(genome.source)
            what = {"template": name, "head_dim": head_dim, "causal": causal, "knobs": dict(genome.knobs)}
            running[pool.submit(path, problem)] = what

        while len(seen) < n and len(running) < 2 * pool.slots:
            start()
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                what = running.pop(future)
                at = round(time.perf_counter() - started, 3)
                if error := future.exception():
                    exceptions.append(f"{type(error).__name__}: {error}")
                    continue
                compiled = future.result()
                pool.discard(compiled)
                facts = {k: compiled.facts.get(k) for k in ("spill_bytes", "shared_bytes", "extra_binaries")}
                said = {"outcome": compiled.outcome.value, "message": compiled.message[:300]}
                samples.append({**what, **said, **facts, "compile_s": round(compiled.seconds, 3), "at_s": at})
                if len(seen) < n and at < seconds:
                    start()
        wall_s = time.perf_counter() - started
        cpu_s, slots_used = pool.cpu_s() - cpu_before, pool.slots
    return {
        "compiles_per_minute": 60 * len(samples) / wall_s,
        "compile_exceptions": len(exceptions),
        "exceptions": exceptions,
        "outcomes": dict(collections.Counter(sample["outcome"] for sample in samples)),
        "slots": slots_used,
        "wall_s": wall_s,
        # On a machine that others use too: what the slots would do with a core each.
        "cpu_s": cpu_s,
        "compiles_per_minute_undisturbed": 60 * slots_used * len(samples) / cpu_s,
        "load": [load_before, os.getloadavg()[0]],
        "samples": samples,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=500, help="genomes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start none after so long")
    parser.add_argument("--slots", type=int, help="concurrent compiles; default: the cores")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    result = measure(arguments.n, arguments.seconds, arguments.slots, arguments.seed)
    rate = {"count": len(result["samples"]), "seconds": result["wall_s"]}
    for sample in result["samples"]:
        del sample["knobs"], sample["message"]  # the seed gives the genomes again
    note = f"load {result['load'][0]:.2f} before and {result['load'][1]:.2f} after, {result['cpu_s']:.0f} CPU seconds"
    write(
        "compile.json",
        [
            Figure(
                "compiles_per_minute", "1/min", ">= 120", "per_minute", {**rate, "samples": result["samples"]}, note
            ),
            Figure(
                "compile_exceptions", "genomes", "= 0", "count", result["exceptions"], f"outcomes {result['outcomes']}"
            ),
        ],
        templates=TEMPLATES,
    )
    for name in ("compiles_per_minute", "compile_exceptions", "outcomes", "slots", "wall_s", "cpu_s", "load"):
        print(name, result[name])
    print("compiles_per_minute_undisturbed", result["compiles_per_minute_undisturbed"])


if __name__ == "__main__":
    main()
