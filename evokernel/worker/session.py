"""Let a candidate and a baseline compute on secret inputs in shared memory, and judge or time what comes back."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from evokernel.bench import correctness, inputs
from evokernel.bench.correctness import Case, Expected
from evokernel.problem import Problem, Workload
from evokernel.worker.arena import Arena, Place
from evokernel.worker.processes import Child

POOL = 3  # secret (input, answer) pairs of a workload that are in use at once
USES = 200  # timed calls after which the oldest pair is replaced


class Incorrect(Exception):
    """The candidate's answer is wrong; the message says where and by how much."""


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
    uses: dict[str, int] = field(default_factory=dict)
    small: dict[str, list[tuple[Case, Secret]]] = field(default_factory=dict)

    def draw(self, workload: Workload) -> Secret:
        pool = self.large.setdefault(workload.name, [])
        self.uses[workload.name] = self.uses.get(workload.name, 0) + 1
        if len(pool) >= POOL and self.uses[workload.name] % USES == 0:
            pool.pop(0)
        while len(pool) < POOL:
            pool.append(Secret.make(workload, "random", self.dtype, self.rng.getrandbits(48)))
        return self.rng.choice(pool)

    def cases(self, problem: Problem) -> list[tuple[Case, Secret]]:
        """Return the small cases of a class; one in each call is made anew, so that in time all are."""
        key = problem.workloads[0].shape_class(problem.dtype).name
        if key not in self.small:
            found = correctness.small_cases(problem, self.rng)
            self.small[key] = [(c, Secret.make(c.workload, c.family, self.dtype, c.seed)) for c in found]
        else:
            index = self.rng.randrange(len(self.small[key]))
            case = self.small[key][index][0]
            fresh = Secret.make(case.workload, case.family, self.dtype, self.rng.getrandbits(48))
            self.small[key][index] = (case, fresh)
        return self.small[key]


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

    def give(self, secret: Secret) -> None:
        """Write inputs, and poison the outputs and the padding."""
        for name, tensor in zip("qkv", secret.tensors, strict=True):
            if self.layout.pad:
                self.wholes[name].fill_(self.layout.filler)
            self.views[name].copy_(tensor)
        self.views["out"].fill_(float("nan"))
        self.views["lse"].fill_(float("nan"))

    def judge(self, secret: Secret) -> float:
        """Return the share of the tolerance used, or raise Incorrect."""
        used, wrong = correctness.judge(self.views["out"], self.views["lse"], secret.expected)
        if wrong:
            raise Incorrect(wrong)
        for name, tensor in zip("qkv", secret.tensors, strict=True):
            if not torch.equal(self.views[name], tensor):
                raise Incorrect(f"the input {name} was written to")
        return used


@dataclass
class Player:
    """A child bound to a workload: what is called, checked and timed."""

    child: Child
    limit_s: float

    def bind(self, bound: Bound, arguments: Mapping[str, Any]) -> None:
        places = {name: place.to_json() for name, place in bound.places.items()}
        self.ask("bind", places=places, arguments=dict(arguments))

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        reply = self.child.ask(op, self.limit_s, **arguments)
        if "error" in reply:
            raise Failed(str(reply["error"]), str(reply.get("kind", "runtime")))
        return reply

    def run(self) -> float:
        """Call once; returns microseconds by this process's clock, from request to reply."""
        start = time.perf_counter()
        self.ask("run")
        return (time.perf_counter() - start) * 1e6
