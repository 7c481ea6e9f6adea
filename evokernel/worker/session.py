"""Let a candidate and a baseline compute on secret inputs in shared memory, and judge or time what comes back."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from evokernel.bench import correctness, inputs
from evokernel.bench.correctness import Case, Expected
from evokernel.problem import Problem, Workload
from evokernel.worker import wire
from evokernel.worker.arena import Arena, Place
from evokernel.worker.processes import Child

POOL = 4  # secret (input, answer) pairs of a workload; no candidate meets one twice in a timing
USES = 40  # draws after which the oldest pair is replaced
FRESH_STARTS = 1 << 20  # places in the noise from which inputs without a stored answer are cut


class Incorrect(Exception):
    """The candidate's answer is wrong; the message says where and by how much."""


class BaselineLost(Exception):
    """The baseline's own process failed."""


class Failed(Exception):
    """The candidate raised; `kind` is "compile" or "runtime"."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass
class Secret:
    """Inputs that no candidate has seen before they are used, with their exact answer."""

    tensors: inputs.Tensors
    expected: Expected

    @classmethod
    def make(cls, workload: Workload, family: str, dtype: str, seed: int) -> Secret:
        tensors = inputs.draw(family, workload, dtype, seed)
        return cls(tensors, correctness.expect(*tensors, workload, dtype))


@dataclass
class Pools:
    """Secrets by workload, and small cases by shape class: the oracle's work is shared by many candidates."""

    dtype: str
    rng: random.Random
    large: dict[str, list[Secret]] = field(default_factory=dict)
    hard: dict[tuple[str, str], Secret] = field(default_factory=dict)
    uses: dict[str, int] = field(default_factory=dict)
    small: dict[tuple[Workload, ...], list[tuple[Case, Secret]]] = field(default_factory=dict)
    noise: torch.Tensor = field(default_factory=lambda: torch.empty(0))

    def secrets(self, workload: Workload) -> list[Secret]:
        """Return a workload's pool of random inputs with answers, in an order drawn anew."""
        pool = self.large.setdefault(workload.name, [])
        self.uses[workload.name] = self.uses.get(workload.name, 0) + 1
        if len(pool) >= POOL and self.uses[workload.name] % USES == 0:
            pool.pop(0)
        while len(pool) < POOL:
            pool.append(Secret.make(workload, "random", self.dtype, self.rng.getrandbits(48)))
        return self.rng.sample(pool, len(pool))

    def hard_one(self, workload: Workload) -> tuple[str, Secret]:
        """Return a family drawn at random and a secret of it, at the workload's own size."""
        family = self.rng.choice(list(inputs.FAMILIES))
        key = workload.name, family
        if key not in self.hard:
            self.hard[key] = Secret.make(workload, family, self.dtype, self.rng.getrandbits(48))
        return family, self.hard[key]

    def fresh(self, workload: Workload) -> inputs.Tensors:
        """Cut inputs that no call has seen out of a store of noise: as random as a secret's, and told from none."""
        b, h, kv, d = workload.batch, workload.heads, workload.kv_heads, workload.head_dim
        shapes = [(b, h, workload.seq_q, d), (b, kv, workload.seq_kv, d), (b, kv, workload.seq_kv, d)]
        sizes = [math.prod(shape) for shape in shapes]
        if len(self.noise) < sum(sizes) + FRESH_STARTS:
            generator = torch.Generator().manual_seed(self.rng.getrandbits(48))
            noise = torch.randn(sum(sizes) + FRESH_STARTS, generator=generator)
            self.noise = noise.to(inputs.DTYPES[self.dtype])
        start = self.rng.randrange(FRESH_STARTS)
        parts = torch.split(self.noise[start : start + sum(sizes)], sizes)
        q, k, v = (part.view(shape) for part, shape in zip(parts, shapes, strict=True))
        return q, k, v

    def cases(self, problem: Problem) -> list[tuple[Case, Secret]]:
        """Return the small cases of a class, cheapest first, with one of lengths that change from call to call.

        One of the others is made anew in each call, so that in time all are.
        """
        key = problem.workloads
        if key not in self.small:
            found = correctness.small_cases(problem, self.rng)
            self.small[key] = [(c, self._secret(c)) for c in found]
        else:
            index = self.rng.randrange(len(self.small[key]))
            case = replace(self.small[key][index][0], seed=self.rng.getrandbits(48))
            self.small[key][index] = (case, self._secret(case))
        drawn = correctness.drawn_case(problem, self.rng)
        return [*self.small[key], (drawn, self._secret(drawn))]

    def _secret(self, case: Case) -> Secret:
        return Secret.make(case.workload, case.family, self.dtype, case.seed)


@dataclass
class Bound:
    """Tensors that parent and child see alike for one workload and layout."""

    wholes: dict[str, torch.Tensor]
    views: dict[str, torch.Tensor]
    places: dict[str, Place]
    layout: inputs.Layout

    @classmethod
    def make(cls, arena: Arena, workload: Workload, dtype: str, layout: inputs.Layout) -> Bound:
        arena.reset()
        b, h, kv, d = workload.batch, workload.heads, workload.kv_heads, workload.head_dim
        wanted = {
            "q": ((b, h, workload.seq_q, d), dtype, layout),
            "k": ((b, kv, workload.seq_kv, d), dtype, layout),
            "v": ((b, kv, workload.seq_kv, d), dtype, layout),
            "out": ((b, h, workload.seq_q, d), dtype, inputs.PLAIN),
            "lse": ((b, h, workload.seq_q), "fp32", inputs.PLAIN),
        }
        bound = cls({}, {}, {}, layout)
        for name, (shape, kind, where) in wanted.items():
            bound.places[name], bound.wholes[name], bound.views[name] = arena.place(shape, kind, where)
        return bound

    def give(self, tensors: inputs.Tensors) -> None:
        """Write inputs, and poison the outputs and the padding."""
        for name, tensor in zip("qkv", tensors, strict=True):
            if self.layout.pad:
                self.wholes[name].fill_(self.layout.filler)
            self.views[name].copy_(tensor)
        self.views["out"].fill_(float("nan"))
        self.views["lse"].fill_(float("nan"))

    def taken(self) -> Answered:
        """Copy what the candidate has written so far; what it writes later does not count."""
        return Answered(self.views["out"].clone(), self.views["lse"].clone())

    def check_inputs(self, tensors: inputs.Tensors) -> None:
        for name, tensor in zip("qkv", tensors, strict=True):
            if not torch.equal(self.views[name], tensor):
                raise Incorrect(f"the input {name} was written to")


class Answered(NamedTuple):
    """A call's outputs, in the parent's own memory."""

    out: torch.Tensor
    lse: torch.Tensor

    def judge(self, expected: Expected) -> float:
        """Return the share of the tolerance used, or raise Incorrect."""
        used, wrong = correctness.judge(self.out, self.lse, expected)
        if wrong:
            raise Incorrect(wrong)
        return used


@dataclass
class Player:
    """A child bound to a workload: what is called, checked and timed.

    It is stopped except while it is asked something. So it takes no core from the other side, cannot start on inputs
    before the clock does, and cannot go on computing after its reply.
    """

    child: Child
    limit_s: float

    def bind(self, bound: Bound, arguments: Mapping[str, Any]) -> None:
        places = {name: place.to_json() for name, place in bound.places.items()}
        self.ask("bind", places=places, arguments=dict(arguments))

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        self.child.resume()
        reply = self.child.ask(op, self.limit_s, **arguments)
        self.child.pause()
        if "error" in reply:
            raise Failed(printable(str(reply["error"])), str(reply.get("kind", "runtime")))
        return reply

    def run(self) -> float:
        """Call once; returns microseconds by this process's clock, from request to reply."""
        self.child.resume()
        start = time.perf_counter()
        reply = self.child.ask("run", self.limit_s)
        elapsed_us = (time.perf_counter() - start) * 1e6
        self.child.pause()
        if "error" in reply:
            raise Failed(printable(str(reply["error"])), "runtime")
        return elapsed_us

    def answer(self, bound: Bound, tensors: inputs.Tensors) -> Answered:
        """Call once on these inputs, untimed; returns the outputs, or raises Incorrect when inputs were changed."""
        bound.give(tensors)
        self.run()
        answered = bound.taken()
        bound.check_inputs(tensors)
        return answered


class Peer(Player):
    """A child that runs a baseline: ours, so its failure is not the candidate's."""

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        try:
            return super().ask(op, **arguments)
        except (Failed, wire.Gone, wire.Late) as error:
            raise BaselineLost(f"{op}: {error or type(error).__name__}") from error

    def run(self) -> float:
        try:
            return super().run()
        except (Failed, wire.Gone, wire.Late) as error:
            raise BaselineLost(f"run: {error or type(error).__name__}") from error


def printable(text: str) -> str:
    """Drop what a database or a terminal would choke on: lone surrogates, NUL and other control characters."""
    kept = "".join(c for c in text if c.isprintable() or c in "\n\t")
    return kept.encode(errors="replace").decode()
