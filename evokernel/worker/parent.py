"""Measure one candidate at a time: guard, compile, check, time; stop at the first failure, cheap shapes first."""

from __future__ import annotations

import random
import secrets
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from evokernel.bench import baselines, guard
from evokernel.devices import Device
from evokernel.measurement import Fidelity, Measurement, Outcome, Timing, failed
from evokernel.problem import Problem, Workload
from evokernel.worker import wire
from evokernel.worker.arena import Arena
from evokernel.worker.lease import Lease
from evokernel.worker.processes import Child, Zygote
from evokernel.worker.provenance import environment
from evokernel.worker.session import Bound, Failed, Incorrect, Player, Pools, Secret
from evokernel.worker.timing import Disturbing, Timer, TooFast

ARENA_BYTES = 1 << 30  # address space; pages are taken as tensors are placed
COMPILE_LIMIT_S = 60.0
CHECK_LIMIT_S = 5.0  # for one call on a small case


class Worker:
    """The trusted side. Holds the oracle, the secrets, the clock and the verdict; one per slot."""

    def __init__(self, device: Device, dtype: str, baseline_names: tuple[str, ...], *, guarded: bool = True) -> None:
        baselines.check_names(baseline_names)
        # This process writes inputs between timed calls; threads of its own would spin on the cores being timed.
        torch.set_num_threads(1)
        self.device = device
        self.dtype = dtype
        self.guarded = guarded
        self.cores = device.num_sms
        self.zygote = Zygote(device, threads=self.cores)
        self.arena = Arena(ARENA_BYTES)
        self.lease = Lease(device)
        self.rng = random.Random(secrets.randbits(64))  # not from the run's seed: candidates must not foresee inputs
        self.pools = Pools(dtype, self.rng)
        self.timer = Timer(self.arena, self.pools, device.roofline(dtype), baseline_names, self.rng)
        self.baseline = self.zygote.fork(self.arena)

    def close(self) -> None:
        self.baseline.kill()
        self.zygote.close()
        self.arena.close()

    def measure(self, source: str, backend: str, problem: Problem, fidelity: Fidelity) -> Measurement:
        """Return what this device says about a rendered candidate. Never raises for the candidate's faults."""
        started = time.monotonic()
        if self.guarded and (broken := guard.violation(source, backend)):
            measurement = failed(Outcome.REJECTED, broken)
        else:
            child = self.zygote.fork(self.arena)
            measurement = self._in_child(child, source, backend, problem, fidelity)
        return replace(
            measurement,
            fidelity=fidelity,
            seconds=time.monotonic() - started,
            environment=environment(self.device, problem, source),
        )

    def _in_child(self, child: Child, source: str, backend: str, problem: Problem, fidelity: Fidelity) -> Measurement:
        """Compile, check and time in a child; every way in which it can fail becomes an outcome here."""
        stage = "loading"
        facts: dict[str, Any] = {}
        errors: dict[str, float] = {}
        player = Player(child, COMPILE_LIMIT_S)
        try:
            try:
                with self.lease.shared():
                    stage = "compiling"
                    facts = self._compile(player, source, backend, problem)
                    stage = "checking"
                    errors = self.check(player, problem)
                stage = "timing"
                held = time.monotonic()
                timings = self._time(player, problem, fidelity)
                return Measurement(
                    Outcome.PASSED,
                    timings=timings,
                    errors=errors,
                    resources=facts,
                    device_seconds=time.monotonic() - held,
                )
            finally:
                status = child.kill()
        except Incorrect as wrong:
            return failed(Outcome.INCORRECT, str(wrong), resources=facts, errors=errors)
        except (TooFast, Disturbing) as impossible:
            return failed(Outcome.CHEATED, str(impossible), resources=facts, errors=errors)
        except Failed as error:
            outcome = Outcome.COMPILE_ERROR if error.kind == "compile" else Outcome.RUNTIME_ERROR
            return failed(outcome, f"{stage}: {error}", resources=facts)
        except wire.Late:
            return failed(Outcome.TIMEOUT, f"{stage}: no answer within {player.limit_s:.1f} s", resources=facts)
        except wire.Gone:
            return failed(Outcome.CRASHED, f"{stage}: {_ending(status)}", resources=facts)

    def _compile(self, player: Player, source: str, backend: str, problem: Problem) -> dict[str, Any]:
        player.limit_s = COMPILE_LIMIT_S
        path = player.child.home / "candidate.py"
        Path(path).write_text(source)
        player.ask("load", source=str(path), backend_name=backend, entry=problem.entry)
        return dict(player.ask("compile", problem=problem.to_json())["facts"])

    def check(
        self, player: Player, problem: Problem, seen: Callable[[str, float], None] = lambda name, used: None
    ) -> dict[str, float]:
        """Compare with exact attention on every small case; returns the share of the tolerance that each used."""
        errors = {}
        player.limit_s = CHECK_LIMIT_S
        for case, secret in self.pools.cases(problem):
            bound = Bound.make(self.arena, case.workload, self.dtype, case.layout)
            player.bind(bound, {**case.workload.arguments(), "num_sms": self.cores})
            bound.give(secret)
            player.run()
            try:
                errors[case.name] = bound.judge(secret)
            except Incorrect as wrong:
                raise Incorrect(f"{case.name}: {wrong}") from None
            seen(case.name, errors[case.name])
        spread = self._run_again(bound, player, secret, first=bound.views["out"].clone())
        if problem.determinism == "bitwise" and spread > 0:
            raise Incorrect(f"{case.name}: two runs differ by {spread:.2e}; the problem asks for bitwise determinism")
        if spread > 0.1 * secret.expected.max_error:
            raise Incorrect(f"{case.name}: two runs differ by {spread:.2e}, more than a tenth of the tolerance")
        errors["run_to_run_spread"] = spread / secret.expected.max_error
        return errors

    def _run_again(self, bound: Bound, player: Player, secret: Secret, first: torch.Tensor) -> float:
        """Return the largest difference between two runs on the same inputs."""
        bound.give(secret)
        player.run()
        bound.judge(secret)
        return float((bound.views["out"].double() - first.double()).abs().max())

    def _time(self, player: Player, problem: Problem, fidelity: Fidelity) -> tuple[Timing, ...]:
        chosen: list[tuple[Workload, bool]] = [(w, False) for w in problem.workloads]
        if fidelity is Fidelity.SCREEN:
            chosen = chosen[:1]
        if fidelity is Fidelity.VERIFY:
            chosen += [(w, True) for w in problem.held_out]
        timings = []
        for workload, held_out in chosen:
            with self.lease.alone():
                timings.append(self.timer.time(player, self.baseline, workload, self.cores, fidelity, held_out))
        return tuple(timings)


def _ending(status: int) -> str:
    if status < 0:
        return f"the process was ended by {signal.Signals(-status).name}"
    return f"the process ended by itself (status {status})"
