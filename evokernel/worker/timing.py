"""Time a candidate beside the fastest baseline: interleaved pairs, unseen inputs, every timed answer judged."""

from __future__ import annotations

import os
import random
import statistics
import time
from dataclasses import dataclass

from evokernel.bench import baselines, correctness, inputs
from evokernel.bench.correctness import Spots
from evokernel.measurement import Fidelity, Timing
from evokernel.problem import Workload
from evokernel.roofline import Roofline
from evokernel.worker.arena import Arena
from evokernel.worker.neighbours import Neighbours
from evokernel.worker.processes import Child
from evokernel.worker.session import Bound, Incorrect, Peer, Player, Pools

PAIRS = {Fidelity.SCREEN: (3, 5), Fidelity.FULL: (7, 25), Fidelity.VERIFY: (25, 61)}  # least and most of them
ENOUGH_S = {Fidelity.SCREEN: 0.05, Fidelity.FULL: 0.35, Fidelity.VERIFY: 1.5}  # once the least are done
AUDIT_SHARE = 0.15  # of the timed calls, chosen at random, that are judged in whole; the others in secret rows
CALIBRATIONS = 9
# How far the baseline inside a measurement may stray from its record before it is timed again. On shared CPUs single
# batches differ by up to 34%; the ratio of a pair is steadier, but a machine this disturbed is not worth believing.
DRIFT = 1.35
FOREIGN_CORES = 0.5  # that others may keep busy meanwhile; half a core slows one of two threads by a third
ATTEMPTS = 3
HANG_FACTOR = 20
HANG_FLOOR_S = 1.0
BASELINE_LIMIT_S = 60.0


class TooFast(Exception):
    """Faster than the roofline allows: whatever ran did not do the work."""


@dataclass(frozen=True)
class Taken:
    """Pairs, and what disturbed them."""

    timing: Timing
    drift: float  # between the baseline's median and its record, as a ratio of at least 1
    foreign_cores: float

    @property
    def quiet(self) -> bool:
        return self.drift <= DRIFT and self.foreign_cores <= FOREIGN_CORES


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

    def time(
        self,
        candidate: Player,
        baseline: Child,
        workload: Workload,
        cores: int,
        fidelity: Fidelity,
        held_out: bool,
        errors: dict[str, float],
    ) -> Taken:
        """Return the pairs and how quiet it was; raise Incorrect, TooFast or what a child does.

        `errors` receives the largest share of the tolerance that was used, by workload and family.

        Pairs during which the baseline strayed are void. What it takes with the candidate stopped then becomes the
        record, for the machine itself may have changed, and the pairs are taken again. So are pairs taken beside other
        programs. Where it stays loud, the quietest attempt stands, and says how loud it was.
        """
        peer = Peer(baseline, BASELINE_LIMIT_S)
        attempts: list[Taken] = []
        while len(attempts) < ATTEMPTS and not (attempts and attempts[-1].quiet):
            if attempts or workload.name not in self.fastest:
                self._calibrate(peer, workload)
            name, recorded_us = self.fastest[workload.name]
            neighbours = Neighbours([os.getpid(), candidate.child.pid, baseline.pid])
            timing = self._pairs(candidate, peer, name, workload, cores, fidelity, held_out, errors)
            drift = timing.baseline_us / recorded_us
            attempts.append(Taken(timing, max(drift, 1 / drift), neighbours.cores()))
        floor_us = self.roofline.floor_us(workload, self.pools.dtype)
        quietest = min(attempts, key=lambda taken: (not taken.quiet, taken.drift + taken.foreign_cores))
        if quietest.timing.latency_us < floor_us:
            raise TooFast(
                f"{workload.name} in {quietest.timing.latency_us:.1f} us; the device cannot in less than {floor_us:.1f}"
            )
        return quietest

    def _calibrate(self, peer: Peer, workload: Workload) -> None:
        """Find the fastest baseline of a workload."""
        bound = Bound.make(self.arena, workload, self.pools.dtype, inputs.PLAIN)
        found = {}
        for name in self.names:
            if baselines.serves(name, workload):
                self._prepare(peer, name, workload, bound)
                times_us = []
                for _ in range(CALIBRATIONS):
                    bound.give(self.pools.fresh(workload))
                    times_us.append(peer.run())
                found[name] = statistics.median(times_us)
        best = min(found, key=lambda name: found[name])
        self.fastest[workload.name] = (best, found[best])

    def _prepare(self, peer: Peer, name: str, workload: Workload, bound: Bound) -> None:
        peer.ask("baseline", name=name, workload=workload.to_json())
        peer.bind(bound, {})
        bound.give(self.pools.fresh(workload))
        peer.run()
        peer.child.spread()

    def _pairs(
        self,
        candidate: Player,
        peer: Peer,
        name: str,
        workload: Workload,
        cores: int,
        fidelity: Fidelity,
        held_out: bool,
        errors: dict[str, float],
    ) -> Timing:
        candidate.limit_s = HANG_FACTOR * self.fastest[workload.name][1] * 1e-6 + HANG_FLOOR_S
        bound = Bound.make(self.arena, workload, self.pools.dtype, inputs.PLAIN)
        candidate.bind(bound, {**workload.arguments(), "num_sms": cores})
        self._prepare(peer, name, workload, bound)
        family, hard = self.pools.hard_one(workload)
        # Warm, and right, before the clock is looked at.
        _note(errors, workload, family, correctness.judge(*candidate.answer(bound, hard.tensors), hard.expected))
        candidate.child.spread()
        secrets = self.pools.secrets(workload)
        tolerances = secrets[0].expected
        least, most = PAIRS[fidelity]
        ours: list[float] = []
        theirs: list[float] = []
        started = time.perf_counter()
        while len(ours) < least or (len(ours) < most and time.perf_counter() - started < ENOUGH_S[fidelity]):
            for side in self.rng.sample((candidate, peer), 2):
                if side is peer:
                    bound.give(self.pools.fresh(workload))
                    theirs.append(peer.run())
                elif secrets and (not ours or self.rng.random() < AUDIT_SHARE):
                    secret = secrets.pop()
                    bound.give(secret.tensors)
                    ours.append(candidate.run())
                    _note(errors, workload, "random", correctness.judge(*bound.taken(), secret.expected))
                    bound.check_inputs(secret.tensors)
                else:
                    tensors = self.pools.fresh(workload)
                    bound.give(tensors)
                    ours.append(candidate.run())
                    spots = Spots.choose(workload, self.rng)
                    verdict = correctness.spot_check(*bound.taken(), tensors, workload, tolerances, spots)
                    _note(errors, workload, "random", verdict)
        return Timing(workload.name, tuple(ours), name, tuple(theirs), held_out)


def _note(errors: dict[str, float], workload: Workload, family: str, verdict: tuple[float, str]) -> None:
    """Keep the share of the tolerance that a call used, or raise Incorrect."""
    used, wrong = verdict
    name = f"{workload.name}/{family}"
    if wrong:
        raise Incorrect(f"{name}: {wrong}")
    errors[name] = max(errors.get(name, 0.0), used)
