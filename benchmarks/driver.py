"""Measure the driver alone: `driver_overhead_ms` with a null evaluator, `resume_10k_s` on 10,000 stored records."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.record import Figure, write
from evokernel import assemble, devices
from evokernel.config import load, locate
from evokernel.loop import Campaign
from evokernel.reporters import Silent
from evokernel.store import Store

RECORDS = 10_000


def campaign(url: str, evaluations: int, sampler: str) -> Campaign:
    overrides = [
        f"store={url}",
        f"operators={{{sampler}: {{weight: 1}}}}",  # the sampler's own time is not the driver's
        "evaluator={type: null, slots: 4}",
        f"budget={{evaluations: {evaluations}}}",
        "baselines=[sdpa]",
    ]
    config = load(locate("cpu.yaml"), [o.replace("type: null", "type: 'null'") for o in overrides])
    store = Store.open(url)
    problem = config.problem.problem()
    runs = store.runs()
    run = runs[0] if runs else store.create_run("driver", {}, problem, devices.cpu(), 0)
    return assemble.campaign(config, store, run, devices.cpu(), Silent())


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'driver.db'}"
        made = campaign(url, RECORDS, "random")
        asked = timed_proposals(made)
        stamps = [(time.perf_counter(), 0.0)]
        collect = made.collect

        def stamped() -> None:
            collect()
            stamps.append((time.perf_counter(), sum(asked)))
            asked[:] = [stamps[-1][1]]

        made.collect = stamped  # type: ignore[method-assign]
        made.execute()
        # Between two records: the time that passed, less what the operators took, however many were asked.
        overhead = [
            ((end - start) - (after - before)) * 1e3 for (start, before), (end, after) in itertools.pairwise(stamps)
        ]
        tenth = len(overhead) // 10
        again = campaign(url, RECORDS, "tune")  # resuming tells a real sampler too
        start = time.perf_counter()
        again.restore()
        resumed = time.perf_counter() - start
    write(
        "driver.json",
        [
            Figure("driver_overhead_ms", "ms", "<= 5", "mean", overhead[:: max(1, len(overhead) // 1000)]),
            Figure(
                "driver_overhead_growth",
                "ratio",
                "<= 1.5",
                "value",
                statistics.fmean(overhead[-tenth:]) / statistics.fmean(overhead[:tenth]),
                "mean of the last tenth of 10,000 records over the mean of the first",
            ),
            Figure("resume_10k_s", "s", "<= 10", "value", resumed),
        ],
    )


def timed_proposals(made: Campaign) -> list[float]:
    """Return a list that fills with the seconds that operators take, so that they can be left out."""
    spent: list[float] = []
    for operator, _ in made.search.operators:
        propose = operator.propose

        def timed(plan, propose=propose):  # type: ignore[no-untyped-def]
            start = time.perf_counter()
            try:
                return propose(plan)
            finally:
                spent.append(time.perf_counter() - start)

        operator.propose = timed  # type: ignore[method-assign]
    return spent


if __name__ == "__main__":
    main()
