"""Kill -9 what measures, a hundred times at random moments of one campaign: `faults_lost` candidates got no record."""

from __future__ import annotations

import argparse
import collections
import os
import random
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.record import Figure, write
from evokernel import assemble, devices
from evokernel.config import validate
from evokernel.evaluators.ray import Hand, Ray
from evokernel.loop import Campaign
from evokernel.reporters import Silent
from evokernel.store import Store
from tests.processes import alive, descendants
from tests.toys import RIGHT

WAIT_S = (0.2, 2.0)  # between faults
TARGETS = ("worker", "zygote", "child")  # the Ray actor, its process that forks, a candidate or the baseline
LAST_BREATH_S = 20.0


def toy() -> str:
    """Return a right, slow candidate in a space that is not soon exhausted; each evaluation takes about a second."""
    source = RIGHT.replace('"only_a": [1, 2]}', f'"only_a": [1, 2], "number": {list(range(1000))}}}')
    return source.replace('"only_a": 1}', '"only_a": 1, "number": 0}')


def configuration(folder: Path, workers: int) -> dict[str, Any]:
    (folder / "toy.py").write_text(toy())
    rows = [{"heads": heads, "seq": 96, "head_dim": 16, "causal": True} for heads in (2, 3)]
    return {
        "problem": {"op": "forward", "dtype": "fp32", "workloads": {"rows": rows}},
        "spaces": [str(folder / "toy.py")],
        "operators": {"random": {"weight": 1}},
        "evaluator": {"type": "ray", "device": "cpu", "address": "local", "workers": workers},
        "budget": {"evaluations": 10_000, "wall": 540},
        "store": f"sqlite:///{folder / 'faults.db'}",
    }


class Faults(threading.Thread):
    """Kills a random process of a worker that holds a candidate, until it has done so often enough."""

    def __init__(self, campaign: Campaign, count: int, seed: int) -> None:
        super().__init__(daemon=True)
        assert isinstance(campaign.evaluator, Ray)
        self.campaign = campaign
        self.hands = campaign.evaluator
        self.count = count
        self.rng = random.Random(seed)
        self.injected: list[dict[str, Any]] = []
        self.orphans: set[int] = set()  # what was below a process when that was killed

    def run(self) -> None:
        started = time.monotonic()
        while len(self.injected) < self.count:
            time.sleep(self.rng.uniform(*WAIT_S))
            busy = [hand for hand in list(self.hands.hands) if hand.task and hand.step == "measure"]
            if busy and (fault := self.strike(self.rng.choice(busy))):
                self.injected.append({**fault, "at_s": round(time.monotonic() - started, 2)})
        self.campaign.stop("stop requested")

    def strike(self, hand: Hand) -> dict[str, Any] | None:
        """Kill one process; None when there is no such process at this moment."""
        task, target = hand.task, self.rng.choice(TARGETS)
        zygotes = [pid for pid in descendants(hand.pid) if alive(pid)]
        below = {pid: descendants(pid) for pid in zygotes}
        chosen = {
            "worker": [hand.pid],
            "zygote": [pid for pid in zygotes if below[pid]],
            "child": [pid for pid in zygotes if not below[pid]],
        }[target]
        if not chosen or task is None:
            return None
        pid = self.rng.choice(chosen)
        self.orphans |= descendants(pid)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return None
        return {"target": target, "candidate": task.job.candidate.id}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=100, help="faults")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        config = validate(configuration(Path(name), arguments.workers), "benchmarks/faults.py")
        device = devices.cpu()
        store = Store.open(config.store)
        run = store.create_run("faults", {}, config.problem.problem(), device, config.seed)
        campaign = assemble.campaign(config, store, run, device, Silent())
        faults = Faults(campaign, arguments.n, arguments.seed)
        started = time.monotonic()
        faults.start()
        try:
            campaign.execute()
        finally:
            campaign.evaluator.close()
        wall_s = time.monotonic() - started
        lost = [candidate.id for candidate in store.pending(run.id)]
        outcomes = collections.Counter(record.measurement.outcome.value for record in store.records(run.id))
        assert isinstance(campaign.evaluator, Ray)
        note = (
            f"{sum(outcomes.values())} records in {wall_s:.0f} s by {arguments.workers} workers: "
            f"{dict(sorted(outcomes.items()))}; {len(campaign.evaluator.quarantined)} quarantined; faults "
            f"{dict(sorted(collections.Counter(fault['target'] for fault in faults.injected).items()))}"
        )
        deadline = time.monotonic() + LAST_BREATH_S
        while (left := [pid for pid in faults.orphans if alive(pid)]) and time.monotonic() < deadline:
            time.sleep(0.1)
    write(
        "faults.json",
        [
            Figure("faults_lost", "candidates", "= 0", "count", lost, note),
            Figure("faults_injected", "faults", f">= {arguments.n}", "count", faults.injected),
            Figure("faults_orphans", "processes", "= 0", "count", left, "alive although what started them was killed"),
        ],
    )
    print(f"faults_lost {len(lost)} faults_injected {len(faults.injected)} faults_orphans {len(left)}; {note}")


if __name__ == "__main__":
    main()
