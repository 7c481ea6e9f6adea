"""Measure one candidate at a time: guard, compile, check, time; stop at the first failure, cheap shapes first."""

from __future__ import annotations

import random
import secrets
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from evokernel import devices
from evokernel.bench import baselines, correctness, guard
from evokernel.bench.correctness import Case
from evokernel.devices import Device
from evokernel.measurement import Fidelity, Measurement, Outcome, failed
from evokernel.problem import Problem, Workload
from evokernel.worker import sandbox, wire
from evokernel.worker.arena import Arena, HostArena
from evokernel.worker.lease import Lease
from evokernel.worker.processes import Child, Zygote
from evokernel.worker.provenance import environment
from evokernel.worker.said import plain_facts, printable
from evokernel.worker.session import (
    Answered,
    BaselineLost,
    Bound,
    Dishonest,
    Failed,
    Incorrect,
    Player,
    Pools,
    Secret,
    refuse_changed,
)
from evokernel.worker.timing import BASELINE_LIMIT_S, Disturbed, Effort, Taken, Timer, TooFast

ARENA_BYTES = 1 << 30  # address space; pages are taken as tensors are placed
COMPILE_LIMIT_S = 60.0
FACT_CHARACTERS = 200
CASE_LIMIT_S = 0.05  # for each small case, beside what one may take
Facts = dict[str, Any]
Found = TypeVar("Found")


@dataclass(frozen=True)
class Trial:
    """What is to be measured, and how."""

    source: str
    backend: str
    problem: Problem
    fidelity: Fidelity
    bar: Mapping[str, float]

    def chosen(self) -> list[tuple[Workload, bool]]:
        """Return what is to be timed, and whether it is held out."""
        searched = [(w, False) for w in self.problem.workloads]
        if self.fidelity is Fidelity.SCREEN:
            return searched[:1]
        return searched + [(w, True) for w in self.problem.held_out if self.fidelity is Fidelity.VERIFY]


class Worker(ABC):
    """The trusted side. Holds the oracle, the secrets, the clock and the verdict; one a GPU, or a slot of the CPU."""

    player_type: type[Player] = Player
    check_limit_s = 5.0  # for one call on a small case
    cores: int  # or multiprocessors, as candidates are told

    def __init__(
        self,
        device: Device,
        dtype: str,
        baseline_names: tuple[str, ...],
        *,
        guarded: bool = True,
        folder: Path | None = None,  # for the children's homes; whoever may kill this process removes it
    ) -> None:
        baselines.check_names(baseline_names, device.kind)
        # This process writes inputs between timed calls; threads of its own would spin on the cores being timed.
        torch.set_num_threads(1)
        sandbox.hide_memory()  # it holds the secrets, and its environment may hold keys
        self.device = device
        self.dtype = dtype
        self.guarded = guarded
        self.baseline_names = baseline_names
        self.rng = random.Random(secrets.randbits(64))  # not from the run's seed: candidates must not foresee inputs
        self.pools = Pools(dtype, self.rng, device.kind)
        self.zygote = Zygote(device, threads=devices.cpu_count(), folder=folder)
        self.arena = self.make_arena()
        self.timer = self.make_timer()
        self.baseline = self.start_baseline()

    def close(self) -> None:
        self.baseline.kill()
        self.zygote.close()
        self.arena.close()

    @abstractmethod
    def make_arena(self) -> Arena:
        """Return the memory that children share."""

    @abstractmethod
    def make_timer(self) -> Timer:
        """Return what times on this kind of device."""

    @abstractmethod
    def start_baseline(self) -> Child:
        """Return the trusted child that runs the baselines."""

    @abstractmethod
    def tried(self, trial: Trial) -> Measurement:
        """Compile, and hand a child to judged(); every failure of the candidate's is a value."""

    @abstractmethod
    def checking(self) -> AbstractContextManager[Any]:
        """Hold what a check needs of the device."""

    @abstractmethod
    def timing(self) -> AbstractContextManager[None]:
        """Hold the device alone."""

    def measure(
        self,
        source: str,
        backend: str,
        problem: Problem,
        fidelity: Fidelity,
        bar: Mapping[str, float] | None = None,
    ) -> Measurement:
        """Return what this device says about a rendered candidate. Never raises for the candidate's faults.

        `bar` holds the incumbent's speedup by workload: a full measurement stops at the first on which the candidate is
        clearly worse, and is then one of screening.
        """
        if problem.dtype != self.dtype:
            raise ValueError(f"the problem's dtype is {problem.dtype}; this worker measures {self.dtype}")
        started = time.monotonic()
        if self.guarded and (broken := guard.violation(source, backend)):
            measurement = failed(Outcome.REJECTED, broken)
        else:
            measurement = self.tried(Trial(source, backend, problem, fidelity, bar or {}))
        return replace(
            measurement,
            fidelity=Fidelity.SCREEN if measurement.resources.get("stopped_early") else fidelity,
            seconds=time.monotonic() - started,
            environment={
                **environment(self.device, problem, source, self.baseline_names),
                **self.surroundings(),
            },
        )

    def baseline_latencies(self, workload: Workload) -> Mapping[str, float]:
        """Return the median latency, in microseconds, of every baseline that serves a workload."""
        with self.checking(), self.timing():
            self.calibrate(workload)
        return self.timer.records[workload.name]

    def calibrate(self, workload: Workload) -> None:
        """Time the baselines of a workload; the device is held already."""
        self.beside_baseline(
            lambda: self.timer.calibrate(self.timer.peer_type(self.baseline, BASELINE_LIMIT_S), workload)
        )

    def beside_baseline(self, action: Callable[[], Found]) -> Found:
        """Do what asks the baseline's process; once more with another, should it be lost: no candidate's doing."""
        try:
            return action()
        except BaselineLost:
            self.baseline.kill()
            self.baseline = self.start_baseline()
            return action()

    def judged(self, child: Child, load: Callable[[Player], Facts], trial: Trial) -> Measurement:
        """Load, check and time in a child; every way in which it can fail becomes an outcome here."""
        stage = "loading"
        facts: Facts = {}
        errors: dict[str, float] = {}
        printed = ""
        held_s = 0.0
        player = self.player_type(child, COMPILE_LIMIT_S)
        try:
            try:
                stage = "compiling"
                facts = load(player)
                stage = "checking"
                with self.checking():
                    held = time.monotonic()
                    try:
                        self.check(player, trial.problem, errors)
                        facts["check_s"] = round(time.monotonic() - held, 3)
                        stage = "timing"
                        taken = self.timed(player, trial, errors)
                    finally:
                        child.kill()  # before anyone else's timing
                        held_s = time.monotonic() - held
                return Measurement(
                    Outcome.PASSED,
                    timings=tuple(t.timing for t in taken),
                    errors=errors,
                    resources={**facts, **_how(taken, trial)},
                    device_seconds=held_s,
                )
            finally:
                status = child.kill()
                printed = printable(child.output())
        except Incorrect as wrong:
            failure = Outcome.INCORRECT, str(wrong)
        except (TooFast, Dishonest) as impossible:
            failure = Outcome.CHEATED, str(impossible)
        except Disturbed as loud:
            failure = Outcome.REJECTED, f"void: {loud}"
        except Failed as error:
            failure = FAILURES.get(error.kind, Outcome.RUNTIME_ERROR), f"{stage}: {error}"
        except wire.Late:
            failure = Outcome.TIMEOUT, f"{stage}: no answer within {player.limit_s:.1f} s"
        except wire.Gone:
            ending = f"{stage}: {self.ending(child, status)}"
            failure = Outcome.CRASHED, f"{printed}\n{ending}" if printed else ending
        return failed(*failure, resources=facts, errors=errors, device_seconds=held_s)

    def surroundings(self) -> Facts:
        """Return what else is known of the device at this moment."""
        return {}

    def ending(self, child: Child, status: int) -> str:
        """Say how a child ended that did not answer."""
        return _ending(status, child.gone)

    def check(self, player: Player, problem: Problem, errors: dict[str, float]) -> None:
        """Compare with exact attention on every small case; `errors` receives the share of the tolerance of each.

        One request for all of them, and one look at what came back: an exchange for each would be most of the time.
        """
        cases = self.pools.cases(problem)
        self.arena.reset()
        bounds = [Bound.make(self.arena, c.workload, self.dtype, c.layout, beside=True) for c, _ in cases]
        for bound, (_, secret) in zip(bounds, cases, strict=True):
            bound.write(secret.tensors)
        self.arena.settle()
        told = [
            bound.named({**case.workload.arguments(), "num_sms": self.cores})
            for bound, (case, _) in zip(bounds, cases, strict=True)
        ]
        player.limit_s = self.check_limit_s + CASE_LIMIT_S * len(cases)
        try:
            player.ask("run_all", calls=told)
        except Failed as error:
            if error.case is None or not 0 <= error.case < len(cases):
                raise
            raise Failed(f"{cases[error.case][0].name}: {error}", error.kind) from None
        answers = [bound.taken() for bound in bounds]
        looked_at = [(a, b, c, s) for a, b, (c, s) in zip(answers, bounds, cases, strict=True)]
        found = torch.stack([correctness.errors(*a, s.expected.answer) for a, _, _, s in looked_at]).tolist()
        changed = torch.stack([b.changed(s.tensors) for _, b, _, s in looked_at]).tolist()
        for (answered, _, case, secret), numbers, inputs_changed in zip(looked_at, found, changed, strict=True):
            used, wrong = correctness.verdict(numbers, *answered, secret.expected)
            try:
                refuse_changed(inputs_changed)
            except Incorrect as error:
                raise Incorrect(f"{case.name}: {error}") from None
            if wrong:
                raise Incorrect(f"{case.name}: {wrong}")
            errors[case.name] = used
        self._repeat(player, problem, *looked_at[-1], errors)

    def _repeat(
        self,
        player: Player,
        problem: Problem,
        answered: Answered,
        bound: Bound,
        case: Case,
        secret: Secret,
        errors: dict[str, float],
    ) -> None:
        """Call the last case once more: how much may two runs differ?"""
        again = player.answer(bound, secret.tensors)
        spread = float((again.out.double() - answered.out.double()).abs().max())
        if problem.determinism == "bitwise" and spread > 0:
            raise Incorrect(f"{case.name}: two runs differ by {spread:.2e}; the problem asks for bitwise determinism")
        if spread > 0.1 * secret.expected.max_error:
            raise Incorrect(f"{case.name}: two runs differ by {spread:.2e}, more than a tenth of the tolerance")
        errors["run_to_run_spread"] = spread / secret.expected.max_error

    def timed(self, player: Player, trial: Trial, errors: dict[str, float]) -> list[Taken]:
        """Time the workloads that the fidelity asks for, cheapest first."""
        fidelity = trial.fidelity
        found: list[Taken] = []
        for workload, held_out in trial.chosen():
            limit = self.timer.rules.worse * trial.bar.get(workload.name, 0.0) if fidelity is Fidelity.FULL else 0.0
            effort = Effort(fidelity, held_out, limit)
            taken = self._taken(player, workload, effort, errors)
            found.append(taken)
            if taken.timing.speedup < limit:
                break
        return found

    def _taken(self, player: Player, workload: Workload, effort: Effort, errors: dict[str, float]) -> Taken:
        with self.timing():
            return self.beside_baseline(
                lambda: self.timer.time(player, self.baseline, workload, self.cores, effort, errors)
            )


FAILURES = {"compile": Outcome.COMPILE_ERROR, "capture": Outcome.REJECTED}


class CpuWorker(Worker):
    """Several may work on one machine: many compile at once, one alone times."""

    def __init__(self, device: Device, *arguments: Any, **options: Any) -> None:
        self.cores = device.num_sms
        self.lease = Lease(device)
        super().__init__(device, *arguments, **options)

    def make_arena(self) -> HostArena:
        return HostArena(ARENA_BYTES)

    def make_timer(self) -> Timer:
        return Timer(self.arena, self.pools, self.device.roofline(self.dtype), self.baseline_names, self.rng)

    def start_baseline(self) -> Child:
        assert isinstance(self.arena, HostArena)
        return self.zygote.fork(self.arena, trusted=True)

    def tried(self, trial: Trial) -> Measurement:
        assert isinstance(self.arena, HostArena)
        return self.judged(self.zygote.fork(self.arena), lambda player: self._compile(player, trial), trial)

    def _compile(self, player: Player, trial: Trial) -> Facts:
        player.limit_s = COMPILE_LIMIT_S
        path = player.child.home / "candidate.py"
        path.write_text(trial.source)
        with self.lease.shared():
            player.ask("load", source=str(path), backend_name=trial.backend, entry=trial.problem.entry)
            facts = player.ask("compile", problem=trial.problem.to_json()).get("facts")
        return plain_facts(facts, FACT_CHARACTERS) if isinstance(facts, dict) else {}

    def checking(self) -> AbstractContextManager[None]:
        return self.lease.shared()

    def timing(self) -> AbstractContextManager[None]:
        return self.lease.alone()


def _how(taken: list[Taken], trial: Trial) -> Facts:
    """Say how quiet it was, and whether the measurement was given up."""
    facts: Facts = {
        "baseline_drift": round(max(t.drift for t in taken), 3),
        "foreign_cores": round(max(t.foreign_cores for t in taken), 2),
        "baseline_s": round(sum(t.baseline_s for t in taken), 3),
    }
    if any(len(t.records_us) > 1 for t in taken):
        facts["baselines_us"] = {t.timing.workload: {n: round(us, 2) for n, us in t.records_us.items()} for t in taken}
    if trial.fidelity is Fidelity.FULL and len(taken) < len(trial.problem.workloads):
        facts["stopped_early"] = f"{taken[-1].timing.workload}: {taken[-1].timing.speedup:.3f}"
    return facts


def _ending(status: int, gone: str) -> str:
    if gone != wire.ENDED:
        return f"the process answered with {gone}"
    if status < 0:
        return f"the process was ended by {signal.Signals(-status).name}"
    return f"the process ended by itself (status {status})"
