"""Whether the CPU evaluator can be fooled, accuses the honest, or falls over: attacks, honest kernels, faults.

    python -m benchmarks.attacks

`attacks_caught`: the share of the attacks that get their verdict, from the guard and without it.
`honest_refused`: correct kernels of unusual build that are refused.
`poisoned_wrong_verdicts`: of 200 candidates, a fifth of which hang, crash or poison their process.
`poisoned_throughput`: that campaign's speed beside one without the faulty fifth, with limits of a second for a hang.
"""

from __future__ import annotations

import random
import time

from benchmarks.record import Figure, write
from evokernel import devices
from evokernel.bench import guard
from evokernel.measurement import Fidelity, Outcome
from evokernel.worker.parent import CpuWorker
from tests.attacks.catalogue import ATTACKS, HARMLESS, Attack, broken
from tests.attacks.faults import FAULTS, allowed, faulty
from tests.attacks.honest import HONEST
from tests.toys import PROBLEM, RIGHT

CANDIDATES = 200
FAULTY_EVERY = 5
WRONG_EVERY = 8
HANG_LIMIT_S = 1.0


def caught(worker: CpuWorker, attack: Attack) -> bool:
    """Say whether the guard refuses what it must, and whether nothing is gained without it."""
    if attack.guard_rule and attack.guard_rule not in (guard.violation(attack.code, "numba") or ""):
        return False
    if attack.guard_alone:
        return True
    found = worker.measure(attack.code, "numba", attack.problem, Fidelity.FULL)
    if attack.outcomes == HARMLESS:
        return found.passed and found.timings[0].speedup < 1
    return found.outcome in attack.outcomes


def refused(worker: CpuWorker) -> list[str]:
    names = []
    for name, source in HONEST.items():
        broken_rule = guard.violation(source, "numba")
        found = worker.measure(source, "numba", PROBLEM, Fidelity.FULL)
        if broken_rule or not found.passed:
            names.append(f"{name}: {broken_rule or found.message}")
    return names


def campaign(worker: CpuWorker, faults: bool) -> tuple[list[float], list[str]]:
    """Measure 200 candidates in random order; returns the seconds of each and the wrong verdicts."""
    rng = random.Random(0)
    wrong_kernel = broken("<= rows, s", "<= rows + 1, s")
    candidates: list[tuple[str, str, tuple[Outcome, ...]]] = []
    for number in range(CANDIDATES):
        if faults and number % FAULTY_EVERY == 0:
            name = list(FAULTS)[number // FAULTY_EVERY % len(FAULTS)]
            candidates.append((name, faulty(FAULTS[name][0]), allowed(name)))
        elif number % WRONG_EVERY == 0:
            candidates.append(("wrong", wrong_kernel, (Outcome.INCORRECT,)))
        else:
            candidates.append(("right", RIGHT, HARMLESS))
    rng.shuffle(candidates)
    seconds, wrong = [], []
    for number, (name, source, outcomes) in enumerate(candidates):
        started = time.perf_counter()
        found = worker.measure(f"{source}# {number}\n", "numba", PROBLEM, Fidelity.SCREEN)
        seconds.append(time.perf_counter() - started)
        if found.outcome not in outcomes:
            wrong.append(f"{name}: {found.outcome} {found.message}")
    return seconds, wrong


def main() -> None:
    worker = CpuWorker(devices.cpu(), "fp32", ("sdpa",), guarded=False)
    verdicts = {attack.name: caught(worker, attack) for attack in ATTACKS}
    print("missed:", *[name for name, stopped in verdicts.items() if not stopped], sep="\n  ", flush=True)
    names = refused(worker)
    print("refused:", *names, sep="\n  ", flush=True)
    CpuWorker.check_limit_s = HANG_LIMIT_S
    clean_s, clean_wrong = campaign(worker, faults=False)
    poisoned_s, wrong = campaign(worker, faults=True)
    print("wrong:", *clean_wrong, *wrong, sep="\n  ", flush=True)
    worker.close()
    all_wrong = [*clean_wrong, *wrong]
    seconds = {"first": clean_s, "second": poisoned_s}
    faults = f"{CANDIDATES // FAULTY_EVERY} of {CANDIDATES} are faulty"
    caught_share = list(map(float, verdicts.values()))
    write(
        "attacks.json",
        [
            Figure("attacks_caught", "share", "= 1", "mean", caught_share, f"{len(verdicts)} on the CPU"),
            Figure("honest_refused", "kernels", "= 0", "count", names, f"of {len(HONEST)} on the CPU"),
            Figure("poisoned_wrong_verdicts", "verdicts", "= 0", "count", all_wrong, faults),
            Figure("poisoned_throughput", "ratio", ">= 0.5", "speed_of_second", seconds, faults),
        ],
    )


if __name__ == "__main__":
    main()
