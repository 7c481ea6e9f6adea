"""Time a candidate beside the fastest baseline: interleaved pairs, secret inputs, timed answers judged."""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass

from evokernel.bench import baselines, inputs
from evokernel.measurement import Fidelity, Timing
from evokernel.problem import Workload
from evokernel.roofline import Roofline
from evokernel.worker.arena import Arena
from evokernel.worker.processes import Child
from evokernel.worker.session import Bound, Incorrect, Player, Pools

PAIRS = {Fidelity.SCREEN: (3, 5), Fidelity.FULL: (7, 25), Fidelity.VERIFY: (25, 61)}  # least and most of them
ENOUGH_S = {Fidelity.SCREEN: 0.05, Fidelity.FULL: 0.35, Fidelity.VERIFY: 1.5}  # once the least are done
AUDITED = 4  # timed calls whose answers are judged, chosen at random and unknown to the candidate
CALIBRATIONS = 9
# How far the baseline inside a measurement may stray from its record before it is timed again. On shared CPUs single
# batches differ by up to 34%; the ratio of a pair is steadier, but a machine this disturbed is not worth believing.
DRIFT = 1.35
STOLEN_SHARE = 0.1  # of the baseline's time that an idle candidate may use: wake-ups and page cleaning
HANG_FACTOR = 20
HANG_FLOOR_S = 1.0


class Disturbing(Exception):
    """The candidate kept computing while the baseline was timed, which would make the baseline look slow."""


class TooFast(Exception):
    """Faster than the roofline allows: whatever ran did not do the work."""


@dataclass
class Timer:
    """Times workloads for one device; remembers what the baselines take."""

    arena: Arena
    pools: Pools
    roofline: Roofline
    names: tuple[str, ...]
    rng: random.Random

    def __post_init__(self) -> None:
        self.fastest: dict[str, tuple[str, float]] = {}  # workload -> baseline and its microseconds

    def calibrate(self, child: Child, workload: Workload) -> tuple[str, float]:
        """Find the fastest baseline of a workload, once."""
        if workload.name not in self.fastest:
            bound = Bound.make(self.arena, workload, self.pools.dtype, inputs.PLAIN)
            player = Player(child, 60.0)
            found = {}
            for name in self.names:
                if baselines.serves(name, workload):
                    self._prepare(player, name, workload, bound)
                    bound.give(self.pools.draw(workload))
                    player.run()
                    found[name] = statistics.median(player.run() for _ in range(CALIBRATIONS))
            best = min(found, key=lambda name: found[name])
            self.fastest[workload.name] = (best, found[best])
        return self.fastest[workload.name]

    def _prepare(self, player: Player, name: str, workload: Workload, bound: Bound) -> None:
        player.ask("baseline", name=name, workload=workload.to_json())
        player.bind(bound, {})

    def hang_limit_s(self, child: Child, workload: Workload) -> float:
        return HANG_FACTOR * self.calibrate(child, workload)[1] * 1e-6 + HANG_FLOOR_S

    def time(
        self, candidate: Player, baseline: Child, workload: Workload, cores: int, fidelity: Fidelity, held_out: bool
    ) -> Timing:
        """Return the pairs, or raise Incorrect, TooFast, Failed, wire.Late or wire.Gone."""
        name, recorded_us = self.calibrate(baseline, workload)
        for attempt in range(3):
            timing = self._pairs(candidate, baseline, name, workload, cores, fidelity, held_out)
            drift = timing.baseline_us / recorded_us
            if 1 / DRIFT <= drift <= DRIFT or attempt == 2:
                break
        # The record follows a machine that has become slower or faster for good.
        self.fastest[workload.name] = (name, 0.8 * recorded_us + 0.2 * timing.baseline_us)
        floor_us = self.roofline.floor_us(workload, self.pools.dtype)
        if timing.latency_us < floor_us:
            raise TooFast(
                f"{workload.name} in {timing.latency_us:.1f} us; the device cannot in less than {floor_us:.1f}"
            )
        return timing

    def _pairs(
        self,
        candidate: Player,
        baseline: Child,
        name: str,
        workload: Workload,
        cores: int,
        fidelity: Fidelity,
        held_out: bool,
    ) -> Timing:
        candidate.limit_s = self.hang_limit_s(baseline, workload)
        bound = Bound.make(self.arena, workload, self.pools.dtype, inputs.PLAIN)
        peer = Player(baseline, 60.0)
        candidate.bind(bound, {**workload.arguments(), "num_sms": cores})
        self._prepare(peer, name, workload, bound)
        least, most = PAIRS[fidelity]
        audited = {0, *self.rng.sample(range(least), min(AUDITED, least))}
        ours: list[float] = []
        theirs: list[float] = []
        self._judged(candidate, bound, workload)  # warm, and right, before anything is timed
        stolen_s = 0.0
        started = time.perf_counter()
        while len(ours) < least or (len(ours) < most and time.perf_counter() - started < ENOUGH_S[fidelity]):
            for side in ("candidate", "baseline") if len(ours) % 2 else ("baseline", "candidate"):
                secret = self.pools.draw(workload)
                bound.give(secret)
                if side == "candidate":
                    elapsed_us = candidate.run()
                    if len(ours) in audited:
                        bound.judge(secret)
                    ours.append(elapsed_us)
                else:
                    before_s = candidate.child.cpu_s()
                    theirs.append(peer.run())
                    stolen_s += candidate.child.cpu_s() - before_s
        if stolen_s > STOLEN_SHARE * sum(theirs) * 1e-6:
            raise Disturbing(
                f"{workload.name}: the candidate used {stolen_s * 1e3:.1f} ms of CPU while the baseline was timed"
            )
        return Timing(workload.name, tuple(ours), name, tuple(theirs), held_out)

    def _judged(self, candidate: Player, bound: Bound, workload: Workload) -> None:
        secret = self.pools.draw(workload)
        bound.give(secret)
        candidate.run()
        try:
            bound.judge(secret)
        except Incorrect as wrong:
            raise Incorrect(f"{workload.name}: {wrong}") from None
