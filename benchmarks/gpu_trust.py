"""Whether the GPU worker's verdicts can be believed: its rule on the libraries' kernels, its clock on equal ones.

    python -m benchmarks.gpu_trust

`peers_wrong`: cuDNN, FlashAttention-2 and -3 under our own rule, on every input family (or the rule is wrong).
`aa_false_claims`: one kernel in two processes, timed as a champion is; how often a difference is claimed.
`ab_power`: the same with one side slowed by 1.5% on the device; how often that is seen.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from typing import Any

from benchmarks.record import Figure, write
from evokernel import devices
from evokernel.bench import correctness, inputs
from evokernel.measurement import Fidelity, Timing
from evokernel.problem import Workload
from evokernel.worker import timing
from evokernel.worker.gpu import GpuWorker
from evokernel.worker.session import Bound, GpuPlayer, Player, Secret

PEERS = ("cudnn", "sdpa_flash", "fa3")
SHORT = Workload(32, 16, 16, 512, 512, 128, True)  # 0.1 ms
MIDDLE = Workload(8, 16, 16, 2048, 2048, 128, False)  # 0.4 ms
SLOWDOWN = 0.015
# A kernel as such, slowed by a busy wait whose length the benchmark fits.
SLOWED = """
import torch
from fa3_fwd_interface import flash_attn_func

def attention(q, k, v, *, scale, causal, num_sms):
    found = flash_attn_func(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), softmax_scale=scale, causal=causal)
    torch.cuda._sleep({cycles})
    return (found[0] if isinstance(found, tuple) else found).transpose(1, 2), None
"""


def peers(worker: GpuWorker) -> list[dict[str, Any]]:
    """Judge each library kernel on each family, at lengths of tiles and beside them."""
    rows = []
    for head_dim in (64, 128, 256):
        for causal in (False, True):
            for shape in ((2, 4, 4, 515), (1, 4, 2, 1024), (2, 8, 8, 4096)):
                batch, heads, kv_heads, seq = shape
                workload = Workload(batch, heads, kv_heads, seq, seq, head_dim, causal)
                bound = Bound.make(worker.arena, workload, "bf16", inputs.PLAIN)
                for name in PEERS:
                    player = Player(worker.baseline, 60.0)
                    player.ask("baseline", name=name, workload=workload.to_json())
                    player.bind(bound, {})
                    for family in inputs.FAMILIES:
                        secret = Secret.make(workload, family, "bf16", 7, "cuda")
                        bound.give(secret.tensors)
                        player.ask("run")
                        lse = secret.expected.answer.lse.float()  # what a library does not return is not judged
                        used, wrong = correctness.judge(bound.taken().out, lse, secret.expected)
                        rows.append({"peer": name, "case": f"{workload.name}/{family}", "used": used, "wrong": wrong})
    return rows


def pairs(worker: GpuWorker, sides: tuple[Player, Player], workload: Workload) -> Timing:
    """Time two sides as a champion and its baseline are timed: unseen inputs, random order, cold cache."""
    bound = Bound.make(worker.arena, workload, "bf16", inputs.PLAIN)
    least, _ = timing.GPU.pairs[Fidelity.VERIFY]
    samples: tuple[list[float], list[float]] = ([], [])
    for _ in range(least):
        for side in random.sample((0, 1), 2):
            bound.give(worker.pools.fresh(workload))
            samples[side].append(sides[side].run())
    return Timing(workload.name, tuple(samples[0]), "fa3", tuple(samples[1]))


def ready(worker: GpuWorker, player: Player, workload: Workload, **arguments: Any) -> Player:
    bound = Bound.make(worker.arena, workload, "bf16", inputs.PLAIN)
    player.bind(bound, arguments)
    bound.give(worker.pools.fresh(workload))
    player.call()
    player.ready()
    return player


def trusted(worker: GpuWorker, workload: Workload) -> Player:
    player = GpuPlayer(worker.start_baseline(), 60.0)
    player.ask("baseline", name="fa3", workload=workload.to_json())
    return ready(worker, player, workload)


def slowed(worker: GpuWorker, workload: Workload, cycles: int) -> Player:
    player = GpuPlayer(worker.spares.take(), 60.0)
    source = player.child.home / "candidate.py"
    source.write_text(SLOWED.format(cycles=cycles))
    player.ask("import", source=str(source), backend_name="triton", entry="attention", cache=str(player.child.home))
    return ready(worker, player, workload, scale=workload.scale, causal=workload.causal, num_sms=worker.cores)


def trials(worker: GpuWorker, workload: Workload, count: int) -> tuple[list[float], list[str], list[float], list[str]]:
    """Return median ratios and verdicts of A/A trials, then of A/B trials."""
    left, right = trusted(worker, workload), trusted(worker, workload)
    equal = [pairs(worker, (left, right), workload) for _ in range(count)]
    base_us = statistics.median(t.latency_us for t in equal)
    wait_us, cycles = SLOWDOWN * base_us, 400
    for _ in range(6):  # fit the busy wait: it costs a launch within the graph beside its cycles
        other = slowed(worker, workload, cycles)
        taken = statistics.median(pairs(worker, (other, right), workload).speedup for _ in range(4))
        found_us = (1 / taken - 1) * base_us
        other.child.kill()
        if abs(found_us - wait_us) < 0.1 * wait_us:
            break
        cycles = max(0, cycles + round((wait_us - found_us) * 1700))
    other = slowed(worker, workload, cycles)
    unequal = [pairs(worker, (other, right), workload) for _ in range(count // 2)]
    for player in (left, right, other):
        player.child.kill()
    return (
        [t.speedup for t in equal],
        [t.verdict() for t in equal],
        [t.speedup for t in unequal],
        [t.verdict() for t in unequal],
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=200, help="A/A trials of each of two workloads")
    arguments = parser.parse_args()
    device = devices.find("cuda")
    worker = GpuWorker(device, "bf16", PEERS)
    rows = peers(worker)
    wrong = [row for row in rows if row["wrong"]]
    print(len(rows), "peer cases, wrong:", len(wrong), *wrong[:8], sep="\n")
    claims: list[bool] = []
    seen: list[bool] = []
    ratios: dict[str, Any] = {}
    for workload in (SHORT, MIDDLE):
        started = time.perf_counter()
        equal, verdicts, unequal, found = trials(worker, workload, arguments.trials)
        claims += [verdict != "" for verdict in verdicts]
        seen += [verdict == "slower" for verdict in found]
        ratios[workload.name] = {"equal": equal, "slowed": unequal}
        print(workload.name, f"A/A {min(equal):.4f}..{statistics.median(equal):.4f}..{max(equal):.4f}",
              f"A/B {statistics.median(unequal):.4f} claims {sum(claims)} seen {sum(seen)}/{len(seen)}",
              f"{time.perf_counter() - started:.0f} s", flush=True)  # fmt: skip
    worker.close()
    errors = [100 * abs(ratio - 1) for found in ratios.values() for ratio in found["equal"]]
    figures = [
        Figure("peers_wrong", "cases", "<= 0", "count", wrong, f"of {len(rows)} cases"),
        Figure("peers_used", "share", "<= 1", "largest", [row["used"] for row in rows]),
        Figure("aa_false_claims", "share", "<= 0.01", "mean", list(map(float, claims))),
        Figure("ab_power", "share", ">= 0.95", "mean", list(map(float, seen))),
        Figure("aa_largest_error_pct", "%", "<= 1", "largest", errors),
    ]  # fmt: skip
    write("gpu_trust.json", figures, device=device.model)


if __name__ == "__main__":
    main()
