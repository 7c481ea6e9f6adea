"""Measure one candidate at a time: guard, compile, check, time; stop at the first failure, cheap shapes first."""

from __future__ import annotations

import math
import random
import secrets
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from evokernel.bench import baselines, guard
from evokernel.devices import Device
from evokernel.measurement import Fidelity, Measurement, Outcome, failed
from evokernel.problem import Problem, Workload
from evokernel.worker import sandbox, wire
from evokernel.worker.arena import Arena
from evokernel.worker.lease import Lease
from evokernel.worker.processes import Child, Zygote
from evokernel.worker.provenance import environment
from evokernel.worker.session import BaselineLost, Bound, Failed, Incorrect, Player, Pools, printable
from evokernel.worker.timing import Taken, Timer, TooFast

ARENA_BYTES = 1 << 30  # address space; pages are taken as tensors are placed
COMPILE_LIMIT_S = 60.0
CHECK_LIMIT_S = 5.0  # for one call on a small case


class Worker:
    """The trusted side. Holds the oracle, the secrets, the clock and the verdict; one per slot."""

    def __init__(
        self,
        device: Device,
        dtype: str,
        baseline_names: tuple[str, ...],
        *,
        guarded: bool = True,
        folder: Path | None = None,  # for the children's homes; whoever may kill this process removes it
    ) -> None:
        baselines.check_names(baseline_names)
        # This process writes inputs between timed calls; threads of its own would spin on the cores being timed.
        torch.set_num_threads(1)
        sandbox.hide_memory()  # it holds the secrets, and its environment may hold keys
        self.device = device
        self.dtype = dtype
        self.guarded = guarded
        self.cores = device.num_sms
        self.zygote = Zygote(device, threads=self.cores, folder=folder)
        self.arena = Arena(ARENA_BYTES)
        self.lease = Lease(device)
        self.rng = random.Random(secrets.randbits(64))  # not from the run's seed: candidates must not foresee inputs
        self.pools = Pools(dtype, self.rng)
        self.timer = Timer(self.arena, self.pools, device.roofline(dtype), baseline_names, self.rng)
        self.baseline_names = baseline_names
        self.baseline = self.zygote.fork(self.arena, trusted=True)

    def close(self) -> None:
        self.baseline.kill()
        self.zygote.close()
        self.arena.close()

    def measure(self, source: str, backend: str, problem: Problem, fidelity: Fidelity) -> Measurement:
        """Return what this device says about a rendered candidate. Never raises for the candidate's faults."""
        if problem.dtype != self.dtype:
            raise ValueError(f"the problem's dtype is {problem.dtype}; this worker measures {self.dtype}")
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
            environment=environment(self.device, problem, source, self.baseline_names),
        )

    def _in_child(self, child: Child, source: str, backend: str, problem: Problem, fidelity: Fidelity) -> Measurement:
        """Compile, check and time in a child; every way in which it can fail becomes an outcome here."""
        stage = "loading"
        facts: dict[str, Any] = {}
        errors: dict[str, float] = {}
        printed = ""
        player = Player(child, COMPILE_LIMIT_S)
        try:
            try:
                with self.lease.shared():
                    stage = "compiling"
                    facts = self._compile(player, source, backend, problem)
                    stage = "checking"
                    self.check(player, problem, errors)
                stage = "timing"
                held = time.monotonic()
                taken = self._time(player, problem, fidelity, errors)
                return Measurement(
                    Outcome.PASSED,
                    timings=tuple(t.timing for t in taken),
                    errors=errors,
                    resources={
                        **facts,
                        "baseline_drift": round(max(t.drift for t in taken), 3),
                        "foreign_cores": round(max(t.foreign_cores for t in taken), 2),
                    },
                    device_seconds=time.monotonic() - held,
                )
            finally:
                printed = printable(child.output())
                status = child.kill()
        except Incorrect as wrong:
            return failed(Outcome.INCORRECT, str(wrong), resources=facts, errors=errors)
        except TooFast as impossible:
            return failed(Outcome.CHEATED, str(impossible), resources=facts, errors=errors)
        except Failed as error:
            outcome = Outcome.COMPILE_ERROR if error.kind == "compile" else Outcome.RUNTIME_ERROR
            return failed(outcome, f"{stage}: {error}", resources=facts)
        except wire.Late:
            return failed(Outcome.TIMEOUT, f"{stage}: no answer within {player.limit_s:.1f} s", resources=facts)
        except wire.Gone:
            ending = f"{stage}: {_ending(status, child.gone)}"
            return failed(Outcome.CRASHED, f"{printed}\n{ending}" if printed else ending, resources=facts)

    def _compile(self, player: Player, source: str, backend: str, problem: Problem) -> dict[str, Any]:
        player.limit_s = COMPILE_LIMIT_S
        path = player.child.home / "candidate.py"
        Path(path).write_text(source)
        player.ask("load", source=str(path), backend_name=backend, entry=problem.entry)
        facts = player.ask("compile", problem=problem.to_json()).get("facts")
        return _plain(facts) if isinstance(facts, dict) else {}

    def check(self, player: Player, problem: Problem, errors: dict[str, float]) -> None:
        """Compare with exact attention on every small case; `errors` receives the share of the tolerance of each."""
        player.limit_s = CHECK_LIMIT_S
        for case, secret in self.pools.cases(problem):
            bound = Bound.make(self.arena, case.workload, self.dtype, case.layout)
            player.bind(bound, {**case.workload.arguments(), "num_sms": self.cores})
            try:
                answered = player.answer(bound, secret.tensors)
                errors[case.name] = answered.judge(secret.expected)
            except Incorrect as wrong:
                raise Incorrect(f"{case.name}: {wrong}") from None
        again = player.answer(bound, secret.tensors)
        spread = float((again.out.double() - answered.out.double()).abs().max())
        if problem.determinism == "bitwise" and spread > 0:
            raise Incorrect(f"{case.name}: two runs differ by {spread:.2e}; the problem asks for bitwise determinism")
        if spread > 0.1 * secret.expected.max_error:
            raise Incorrect(f"{case.name}: two runs differ by {spread:.2e}, more than a tenth of the tolerance")
        errors["run_to_run_spread"] = spread / secret.expected.max_error

    def _time(self, player: Player, problem: Problem, fidelity: Fidelity, errors: dict[str, float]) -> list[Taken]:
        chosen: list[tuple[Workload, bool]] = [(w, False) for w in problem.workloads]
        if fidelity is Fidelity.SCREEN:
            chosen = chosen[:1]
        if fidelity is Fidelity.VERIFY:
            chosen += [(w, True) for w in problem.held_out]
        return [self._timed(player, workload, fidelity, held_out, errors) for workload, held_out in chosen]

    def _timed(
        self, player: Player, workload: Workload, fidelity: Fidelity, held_out: bool, errors: dict[str, float]
    ) -> Taken:
        with self.lease.alone():
            try:
                return self.timer.time(player, self.baseline, workload, self.cores, fidelity, held_out, errors)
            except BaselineLost:  # none of the candidate's doing: begin this workload again
                self.baseline.kill()
                self.baseline = self.zygote.fork(self.arena, trusted=True)
                return self.timer.time(player, self.baseline, workload, self.cores, fidelity, held_out, errors)


def _plain(facts: dict[str, Any]) -> dict[str, Any]:
    """Keep what a candidate's process may report of itself: numbers and short words."""
    kept: dict[str, Any] = {}
    for name, value in list(facts.items())[:64]:
        if isinstance(value, str):
            kept[printable(name[:64])] = printable(value[:200])
        elif isinstance(value, bool | int | float) and math.isfinite(value) and abs(value) < 1 << 62:
            kept[printable(name[:64])] = value
    return kept


def _ending(status: int, gone: str) -> str:
    if gone != wire.ENDED:
        return f"the process answered with {gone}"
    if status < 0:
        return f"the process was ended by {signal.Signals(-status).name}"
    return f"the process ended by itself (status {status})"
