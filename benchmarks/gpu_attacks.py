"""Attack the GPU worker, and let honest kernels and a poisoned campaign through it.

    python -m benchmarks.gpu_attacks

The guard is off, so that what stands behind it is what is tested; what the guard itself says is tested without a GPU.
"""

from __future__ import annotations

import argparse
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.record import Figure, write
from evokernel import devices
from evokernel.candidate import find_module, load_genome
from evokernel.measurement import Fidelity, Measurement, Outcome
from evokernel.problem import Problem
from evokernel.worker.gpu import GpuWorker
from tests.attacks.gpu_attacks import ATTACKS, FAULTS, HONEST, PROBLEM, GpuAttack

GAIN = 1.05  # that no attack may have over the plain kernel where it is let through
SMALL = Problem("forward", "bf16", PROBLEM.workloads[:1])
POISONS = [attack for attack in FAULTS if "memory" not in attack.name and "prints" not in attack.name]
SEEDS = ("fa1", "fa2", "fa3", "chiplet")


def caught(attack: GpuAttack, found: Measurement, plain: Measurement) -> bool:
    """Say whether an attack got a verdict that it may get, and gained nothing by it."""
    if found.outcome not in attack.outcomes:
        return False
    if not found.passed:
        return True
    pairs = zip(found.timings, plain.timings, strict=True)
    return attack.gains and all(ours.speedup <= GAIN * theirs.speedup for ours, theirs in pairs)


def variants(rng: random.Random) -> str:
    """Return an honest kernel with settings of its own."""
    m, n, warps = rng.choice((16, 32, 64)), rng.choice((32, 64)), rng.choice((2, 4, 8))  # 128 rows in 2 warps spill
    text = HONEST["plain"].replace("M=64, N=64", f"M={m}, N={n}").replace("cdiv(seq_q, 64)", f"cdiv(seq_q, {m})")
    return text.replace("num_warps=4", f"num_warps={warps}") + f"\nTAG = {rng.getrandbits(40)}\n"


def poisoned(worker: GpuWorker, count: int, share: float, rng: random.Random) -> dict[str, Any]:
    """Measure candidates of which a share hangs, crashes or poisons the context, several at once."""
    bad = set(rng.sample(range(count), round(share * count)))
    chosen = [rng.choice(POISONS) if number in bad else None for number in range(count)]
    sources = [f"{attack.source}\nTAG = {n}\n" if attack else variants(rng) for n, attack in enumerate(chosen)]
    started = time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda source: worker.measure(source, "triton", SMALL, Fidelity.SCREEN), sources))
    wrong = [
        {"candidate": attack.name if attack else "honest", "outcome": m.outcome.value, "message": m.message[-300:]}
        for attack, m in zip(chosen, found, strict=True)
        if m.outcome not in (attack.outcomes if attack else {Outcome.PASSED})
    ]
    return {"count": count, "seconds": time.monotonic() - started, "wrong": wrong}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--poisoned", type=int, default=200)
    arguments = parser.parse_args()
    device = devices.find("cuda")
    worker = GpuWorker(device, "bf16", ("cudnn", "sdpa_flash", "fa3"), guarded=False)

    def measure(source: str, fidelity: Fidelity = Fidelity.FULL) -> Measurement:
        return worker.measure(source, "triton", PROBLEM, fidelity)

    plain = measure(HONEST["plain"])
    print("plain", plain.outcome, plain.message, [round(t.speedup, 3) for t in plain.timings], flush=True)
    attacks = []
    with ThreadPoolExecutor(6) as threads:
        everyone = [*ATTACKS, *FAULTS]
        for attack, found in zip(everyone, threads.map(lambda a: measure(a.source), everyone), strict=True):
            row = {
                "attack": attack.name,
                "outcome": found.outcome.value,
                "message": found.message[-400:],
                "speedups": [round(t.speedup, 3) for t in found.timings],
                "caught": caught(attack, found, plain),
            }
            attacks.append(row)
            if not row["caught"]:
                print("NOT CAUGHT", row, flush=True)
        honest = {**HONEST, **{name: load_genome(find_module(name, "seeds")).source for name in SEEDS}}
        results = threads.map(lambda source: measure(source, Fidelity.SCREEN), honest.values())
        refused = [
            {"kernel": name, "outcome": found.outcome.value, "message": found.message[-400:]}
            for name, found in zip(honest, results, strict=True)
            if not found.passed
        ]
    print("honest", len(honest), "refused", refused, flush=True)
    rng = random.Random(0)
    clean = poisoned(worker, arguments.poisoned // 2, 0.0, rng)
    dirty = poisoned(worker, arguments.poisoned, 0.2, rng)
    print("clean", clean, "dirty", dirty, flush=True)
    again = measure(HONEST["plain"])
    print("plain afterwards", again.outcome, [round(t.speedup, 3) for t in again.timings])
    worker.close()
    slower = (clean["count"] / clean["seconds"]) / (dirty["count"] / dirty["seconds"])
    figures = [
        Figure("gpu_attacks_caught", "share", ">= 1", "caught", attacks, f"{len(attacks)} attacks and faults"),
        Figure("gpu_honest_refused", "kernels", "<= 0", "count", refused, f"of {len(honest)}"),
        Figure("gpu_poisoned_wrong", "verdicts", "<= 0", "count", dirty["wrong"] + clean["wrong"]),
        Figure("gpu_poisoned_throughput", "ratio", ">= 0.5", "value", 1 / slower, "poisoned over clean"),
    ]
    write("gpu_attacks.json", figures, device=device.model)


if __name__ == "__main__":
    main()
