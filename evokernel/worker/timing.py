"""Time a candidate beside the fastest baseline: interleaved pairs, unseen inputs, every timed answer judged."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass

from evokernel.bench import baselines, correctness, inputs
from evokernel.bench.correctness import Spots
from evokernel.measurement import Fidelity, Timing
from evokernel.problem import Workload
from evokernel.roofline import Roofline
from evokernel.worker.arena import Arena
from evokernel.worker.neighbours import Neighbours
from evokernel.worker.processes import Child
from evokernel.worker.session import BaselineLost, Bound, Failed, GpuPeer, Incorrect, Peer, Player, Pools

ATTEMPTS = 3
HANG_FACTOR = 20
HANG_FLOOR_S = 1.0
BASELINE_LIMIT_S = 60.0
SCREENED = 5  # pairs after which a candidate may be given up: all of them slower than the limit has odds of 1 in 32


@dataclass(frozen=True)
class Rules:
    """How much a kind of device is timed, and how steady it must be."""

    pairs: Mapping[Fidelity, tuple[int, int]]  # least and most of them
    enough_s: Mapping[Fidelity, float]  # once the least are done
    audit_share: float  # of the timed calls, chosen at random, that are judged in whole; the others in secret rows
    calibrations: int
    drift: float  # how far the baseline inside a measurement may stray from its record
    worse: float  # of the incumbent's speedup on a workload: a candidate below it is given up
    foreign_cores: float = 0.5  # that others may keep busy meanwhile; half of one slows one of two threads by a third
    void: bool = False  # whether pairs that stay loud are worth nothing


# On shared CPUs single batches differ by up to 34%; the ratio of a pair is steadier.
CPU = Rules(
    pairs={Fidelity.SCREEN: (3, 5), Fidelity.FULL: (7, 25), Fidelity.VERIFY: (25, 61)},
    enough_s={Fidelity.SCREEN: 0.05, Fidelity.FULL: 0.35, Fidelity.VERIFY: 1.5},
    audit_share=0.15,
    calibrations=9,
    drift=1.35,
    worse=0.75,
)
# Pairs of two processes on one H200 spread by 0.1%, and A/A reads 0.9995.
GPU = Rules(
    pairs={Fidelity.SCREEN: (3, 5), Fidelity.FULL: (7, 11), Fidelity.VERIFY: (25, 41)},
    enough_s={Fidelity.SCREEN: 0.01, Fidelity.FULL: 0.05, Fidelity.VERIFY: 0.3},
    audit_share=0.15,
    calibrations=7,
    drift=1.03,
    worse=0.9,
    void=True,
)


class Disturbed(Exception):
    """The baseline strayed from its record each time: something slows it, be it the candidate or the machine."""


class TooFast(Exception):
    """Faster than the roofline allows: whatever ran did not do the work."""


@dataclass(frozen=True)
class Taken:
    """Pairs, and what disturbed them."""

    timing: Timing
    drift: float  # between the baseline's median and its record, as a ratio of at least 1
    foreign_cores: float
    baseline_s: float  # that the baseline's process took, calibrations included
    records_us: Mapping[str, float]  # of every baseline that serves the workload, taken at its calibration
    rules: Rules

    @property
    def quiet(self) -> bool:
        return self.drift <= self.rules.drift and self.foreign_cores <= self.rules.foreign_cores

    @property
    def loudness(self) -> tuple[bool, float]:
        return not self.quiet, self.drift + self.foreign_cores


@dataclass(frozen=True)
class Effort:
    """How a workload is to be timed for one candidate."""

    fidelity: Fidelity
    held_out: bool = False
    stop_below: float = 0.0  # a speedup; a candidate all of whose first pairs are below it is given up


@dataclass
class Timer:
    """Times workloads for one device; remembers what the baselines take."""

    arena: Arena
    pools: Pools
    roofline: Roofline
    names: tuple[str, ...]
    rng: random.Random
    rules: Rules = CPU
    peer_type: type[Peer] | type[GpuPeer] = Peer

    def __post_init__(self) -> None:
        self.fastest: dict[str, tuple[str, float]] = {}  # workload -> baseline and its microseconds
        self.records: dict[str, dict[str, float]] = {}  # of every baseline that serves a workload
        self.absent: dict[str, dict[str, str]] = {}  # workload -> baseline -> why it does not
        self.on_cores = self.pools.device == "cpu"  # a GPU's pairs do not feel who else uses them

    def time(
        self,
        candidate: Player,
        baseline: Child,
        workload: Workload,
        cores: int,
        effort: Effort,
        errors: dict[str, float],
    ) -> Taken:
        """Return the pairs and how quiet it was; raise Incorrect, TooFast, Dishonest, Disturbed or what a child does.

        `errors` receives the largest share of the tolerance that was used, by workload and family.

        Pairs during which the baseline strayed are void and taken again, and so are pairs taken beside other programs.
        Cores are shared, so on a CPU what the baseline takes with the candidate stopped becomes the record first, and
        where it stays loud the quietest attempt stands, and says how loud it was. A GPU is not shared: there the record
        is one from before the candidate was loaded, and what stays loud is worth nothing.
        """
        peer = self.peer_type(baseline, BASELINE_LIMIT_S)
        attempts: list[Taken] = []
        while len(attempts) < ATTEMPTS and not (attempts and attempts[-1].quiet):
            if workload.name not in self.fastest or (attempts and not self.rules.void):
                self.calibrate(peer, workload)
            name, recorded_us = self.fastest[workload.name]
            neighbours = Neighbours([os.getpid(), candidate.child.pid, baseline.pid]) if self.on_cores else None
            timing = self._pairs(candidate, peer, name, workload, cores, effort, errors)
            drift = timing.baseline_us / recorded_us
            foreign = neighbours.cores() if neighbours else 0.0
            records_us = self.records[workload.name]
            attempts.append(Taken(timing, max(drift, 1 / drift), foreign, peer.busy_s, records_us, self.rules))
        floor_us = self.roofline.floor_us(workload, self.pools.dtype)
        quietest = min(attempts, key=lambda taken: taken.loudness)
        if self.rules.void and not quietest.quiet:
            del self.fastest[workload.name]  # the machine may have changed: calibrate before the next candidate
            raise Disturbed(
                f"{workload.name}: the baseline strayed by {100 * (quietest.drift - 1):.0f}% from its record"
            )
        if quietest.timing.latency_us < floor_us:
            raise TooFast(
                f"{workload.name} in {quietest.timing.latency_us:.1f} us; the device cannot in less than {floor_us:.1f}"
            )
        candidate.check_clock(quietest.timing.latency_us, peer)
        return quietest

    def calibrate(self, peer: Player, workload: Workload) -> None:
        """Time every baseline that serves a workload; the fastest is what candidates are compared with."""
        bound = Bound.make(self.arena, workload, self.pools.dtype, inputs.PLAIN)
        found: dict[str, float] = {}
        absent = self.absent.setdefault(workload.name, {})
        for name in self.names:
            if reason := baselines.unserved(name, workload, self.pools.dtype):
                absent[name] = reason
                continue
            try:
                self._prepare(peer, name, workload, bound)
                times_us = []
                for _ in range(self.rules.calibrations):
                    bound.give(self.pools.fresh(workload))
                    times_us.append(peer.run())
                found[name] = statistics.median(times_us)
            except BaselineLost as error:
                absent[name] = str(error)
                if len(self.names) == 1 or not isinstance(error.__cause__, Failed):
                    raise
        if not found:
            raise BaselineLost("; ".join(f"{name}: {reason}" for name, reason in absent.items()))
        best = min(found, key=lambda name: found[name])
        self.records[workload.name] = found
        self.fastest[workload.name] = (best, found[best])

    def _prepare(self, peer: Player, name: str, workload: Workload, bound: Bound) -> None:
        key = f"{name}/{workload.name}"
        if peer.recall(key):
            return
        peer.ask("baseline", name=name, workload=workload.to_json())
        peer.bind(bound, {})
        bound.give(self.pools.fresh(workload))
        peer.call()
        peer.ready(key)

    def _pairs(
        self,
        candidate: Player,
        peer: Player,
        name: str,
        workload: Workload,
        cores: int,
        effort: Effort,
        errors: dict[str, float],
    ) -> Timing:
        candidate.limit_s = HANG_FACTOR * self.fastest[workload.name][1] * 1e-6 + HANG_FLOOR_S
        bound = Bound.make(self.arena, workload, self.pools.dtype, inputs.PLAIN)
        candidate.bind(bound, {**workload.arguments(), "num_sms": cores})
        self._prepare(peer, name, workload, bound)
        family, hard = self.pools.hard_one(workload)
        # Warm, and right, before the clock is looked at.
        _note(errors, workload, family, correctness.judge(*candidate.answer(bound, hard.tensors), hard.expected))
        candidate.ready()
        secrets = self.pools.secrets(workload)
        tolerances = secrets[0].expected
        least, most = self.rules.pairs[effort.fidelity]
        ours: list[float] = []
        theirs: list[float] = []
        started = time.perf_counter()
        while len(ours) < least or (
            len(ours) < most and time.perf_counter() - started < self.rules.enough_s[effort.fidelity]
        ):
            for side in self.rng.sample((candidate, peer), 2):
                if side is peer:
                    bound.give(self.pools.fresh(workload))
                    theirs.append(peer.run())
                elif secrets and (not ours or self.rng.random() < self.rules.audit_share):
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
            if len(ours) == SCREENED and _clearly_worse(ours, theirs, effort.stop_below):
                break
        return Timing(workload.name, tuple(ours), name, tuple(theirs), effort.held_out)


def _clearly_worse(ours: list[float], theirs: list[float], speedup: float) -> bool:
    return all(b < speedup * c for b, c in zip(theirs, ours, strict=True))


def _note(errors: dict[str, float], workload: Workload, family: str, verdict: tuple[float, str]) -> None:
    """Keep the share of the tolerance that a call used, or raise Incorrect."""
    used, wrong = verdict
    name = f"{workload.name}/{family}"
    if wrong:
        raise Incorrect(f"{name}: {wrong}")
    errors[name] = max(errors.get(name, 0.0), used)
