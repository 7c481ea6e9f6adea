"""Measure a replayed campaign: `replay_10k_s`, 10,000 evaluations from a landscape, beside the sampler's own time."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.record import Figure, write
from evokernel import assemble, devices
from evokernel.candidate import Body, Candidate, find_module
from evokernel.config import Config, validate
from evokernel.evaluators import Job
from evokernel.evaluators.null import Null
from evokernel.landscape import Landscape
from evokernel.measurement import Record
from evokernel.operators.tune import Tune
from evokernel.reporters import Silent
from evokernel.store import Store
from evokernel.sweep import genomes

TEMPLATE = "flash_forward_numba"
EVALUATIONS = 10_000
# 15,552 genomes in each of two shape classes: what is proposed is nearly always recorded.
GRID: dict[str, list[Any]] = {
    "block_m": [16, 32, 64, 128],
    "block_n": [32, 64, 128, 256],
    "rows": [2, 4, 8],
    "unroll": [1, 2, 4],
    "panel": [16, 32, 64],
    "loop_order": ["q_outer", "kv_outer"],
    "fusion": ["strip", "tile"],
    "exp_form": ["poly", "exp2", "exp"],
    "scale_where": ["query", "scores", "exp"],
}


def settings(folder: Path) -> Config:
    data = {
        "problem": {"dtype": "fp32", "workloads": {"grid": {"head_dim": 64, "seq": 512, "batch": 1, "heads": 4}}},
        "spaces": [str(folder / "space.py")],
        "operators": {"tune": {"sampler": "tpe", "weight": 2}, "mutate": {"weight": 3}, "cross": {"weight": 1}},
        "archive": {"type": "elites", "axes": ["loop_order", "block_m", "block_n"]},
        "evaluator": {"type": "replay", "landscape": str(folder / "made_up.parquet"), "workers": 4},
        "budget": {"evaluations": EVALUATIONS, "verify_share": 0},
        "store": f"sqlite:///{folder / 'replay.db'}",
    }
    return validate(data, "replay")


def record_landscape(folder: Path) -> int:
    """Write a space and what the null evaluator says about all of its genomes; returns how many those are."""
    body = Body.load(find_module(TEMPLATE, "search_spaces"))
    body = body.restricted({**{name: [value] for name, value in body.defaults.items()}, **GRID}, "GRID")
    (folder / "space.py").write_text(body.source)
    problem = settings(folder).problem.problem()
    parts = {c.name: problem.in_class(c) for c in problem.shape_classes()}
    landscape, null = Landscape(), Null()
    for number, (shape_class, genome) in enumerate(genomes(body, problem, devices.cpu().context()), 1):
        candidate = Candidate(genome, shape_class, "sweep", id=number)
        landscape.append(Record(candidate, null.measure(Job(candidate, parts[shape_class]))))
    landscape.save(folder / "made_up.parquet")
    return len(landscape)


def timed(tune: Tune) -> list[float]:
    """Return a list that fills with the seconds that the sampler takes to propose and to learn."""
    spent: list[float] = []
    for name in ("propose", "learn", "expect"):
        method = getattr(tune, name)

        def stamped(*arguments: Any, method: Any = method) -> Any:
            start = time.perf_counter()
            try:
                return method(*arguments)
            finally:
                spent.append(time.perf_counter() - start)

        setattr(tune, name, stamped)
    return spent


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recorded = record_landscape(folder)
        start = time.perf_counter()
        config = settings(folder)
        store = Store.open(config.store)
        run = store.create_run("replay", {}, config.problem.problem(), devices.cpu(), config.seed)
        campaign = assemble.campaign(config, store, run, devices.cpu(), Silent())
        sampler = timed(next(o for o, _ in campaign.search.operators if isinstance(o, Tune)))
        campaign.execute()
        total_s = time.perf_counter() - start
        outcomes = {outcome.value: count for outcome, count in campaign.outcomes.items()}
    note = f"{recorded} measurements in the landscape, loading it included; outcomes {outcomes}"
    samples = {"total_s": total_s, "sampler_s": sum(sampler)}
    write("replay.json", [Figure("replay_10k_s", "s", "<= 60", "total_less_sampler", samples, note)], [TEMPLATE])
    print(samples, note)


if __name__ == "__main__":
    main()
