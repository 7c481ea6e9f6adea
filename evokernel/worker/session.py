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
from evokernel.worker.said import printable

# Secret (input, answer) pairs of a workload; no candidate meets one twice in a timing. A large one takes 0.3 GB.
POOL = {"cpu": 4, "cuda": 2}
HARD = {"cpu": len(inputs.FAMILIES), "cuda": 1}  # of the other families, kept at a time
# The parent's clock on a GPU's child. Work that the events leave out shows twice: in replays in a row, and in what a
# timed request takes beyond the events. Whatever else runs can only lengthen either, so the shortest counts, and both
# must say the same before anyone is accused.
BURSTS = 5
BURST_US, BURST_LEAST, BURST_MOST = 10_000.0, 3, 200
EXCHANGE_US = 60.0  # a request and its reply, at the least
BURST_FACTOR, BURST_SLACK_US = 1.10, 4.0
EXCESS_FACTOR, EXCESS_SLACK_US = 0.03, 20.0  # of the candidate's over the baseline's, which fills one tensor less
USES = 40  # draws after which the oldest pair is replaced
FRESH_STARTS = 1 << 20  # places in the noise from which inputs without a stored answer are cut


class Incorrect(Exception):
    """The candidate's answer is wrong; the message says where and by how much."""


class Dishonest(Exception):
    """The candidate's process reports what cannot be."""


class BaselineLost(Exception):
    """The baseline's own process failed."""


class Failed(Exception):
    """The candidate raised; `kind` is "compile" or "runtime"."""

    def __init__(self, message: str, kind: str, case: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.case = case  # of several calls, the one that raised


@dataclass
class Secret:
    """Inputs that no candidate has seen before they are used, with their exact answer."""

    tensors: inputs.Tensors
    expected: Expected

    @classmethod
    def make(cls, workload: Workload, family: str, dtype: str, seed: int, device: str = "cpu") -> Secret:
        tensors = inputs.draw(family, workload, dtype, seed, device)
        expected = correctness.expect(*tensors, workload, dtype)
        if device != "cpu":  # many are kept on the GPU; float32 is exact enough for a 16-bit result
            answer = replace(expected.answer, out=expected.answer.out.float())
            expected = replace(expected, answer=answer)
        return cls(tensors, expected)


@dataclass
class Pools:
    """Secrets by workload, and small cases by shape class: the oracle's work is shared by many candidates."""

    dtype: str
    rng: random.Random
    device: str = "cpu"
    large: dict[str, list[Secret]] = field(default_factory=dict)
    hard: dict[str, dict[str, Secret]] = field(default_factory=dict)
    uses: dict[str, int] = field(default_factory=dict)
    small: dict[tuple[Workload, ...], list[tuple[Case, Secret]]] = field(default_factory=dict)
    noise: torch.Tensor = field(default_factory=lambda: torch.empty(0))

    def secrets(self, workload: Workload) -> list[Secret]:
        """Return a workload's pool of random inputs with answers, in an order drawn anew."""
        pool = self.large.setdefault(workload.name, [])
        self.uses[workload.name] = self.uses.get(workload.name, 0) + 1
        if len(pool) >= POOL[self.device] and self.uses[workload.name] % USES == 0:
            pool.pop(0)
        while len(pool) < POOL[self.device]:
            pool.append(self._make(workload, "random", self.rng.getrandbits(48)))
        return self.rng.sample(pool, len(pool))

    def hard_one(self, workload: Workload) -> tuple[str, Secret]:
        """Return a family drawn at random and a secret of it, at the workload's own size."""
        kept = self.hard.setdefault(workload.name, {})
        if len(kept) >= HARD[self.device] and self.rng.random() < 1 / USES:
            kept.pop(next(iter(kept)))
        families = list(inputs.FAMILIES) if len(kept) < HARD[self.device] else list(kept)
        family = self.rng.choice(families)
        if family not in kept:
            kept[family] = self._make(workload, family, self.rng.getrandbits(48))
        return family, kept[family]

    def fresh(self, workload: Workload) -> inputs.Tensors:
        """Cut inputs that no call has seen out of a store of noise: as random as a secret's, and told from none."""
        b, h, kv, d = workload.batch, workload.heads, workload.kv_heads, workload.head_dim
        shapes = [(b, h, workload.seq_q, d), (b, kv, workload.seq_kv, d), (b, kv, workload.seq_kv, d)]
        sizes = [math.prod(shape) for shape in shapes]
        if len(self.noise) < sum(sizes) + FRESH_STARTS:
            generator = torch.Generator(self.device).manual_seed(self.rng.getrandbits(48))
            noise = torch.randn(sum(sizes) + FRESH_STARTS, generator=generator, device=self.device)
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
        return self._make(case.workload, case.family, case.seed)

    def _make(self, workload: Workload, family: str, seed: int) -> Secret:
        return Secret.make(workload, family, self.dtype, seed, self.device)


@dataclass
class Bound:
    """Tensors that parent and child see alike for one workload and layout."""

    wholes: dict[str, torch.Tensor]
    views: dict[str, torch.Tensor]
    places: dict[str, Place]
    layout: inputs.Layout
    arena: Arena

    @classmethod
    def make(
        cls, arena: Arena, workload: Workload, dtype: str, layout: inputs.Layout, *, beside: bool = False
    ) -> Bound:
        """Place a workload's tensors, alone in the arena or beside those that are there."""
        if not beside:
            arena.reset()
        b, h, kv, d = workload.batch, workload.heads, workload.kv_heads, workload.head_dim
        wanted = {
            "q": ((b, h, workload.seq_q, d), dtype, layout),
            "k": ((b, kv, workload.seq_kv, d), dtype, layout),
            "v": ((b, kv, workload.seq_kv, d), dtype, layout),
            "out": ((b, h, workload.seq_q, d), dtype, inputs.PLAIN),
            "lse": ((b, h, workload.seq_q), "fp32", inputs.PLAIN),
        }
        bound = cls({}, {}, {}, layout, arena)
        for name, (shape, kind, where) in wanted.items():
            bound.places[name], bound.wholes[name], bound.views[name] = arena.place(shape, kind, where)
        return bound

    def named(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a child is told of a call."""
        places = {name: place.to_json() for name, place in self.places.items()}
        return {"places": places, "arguments": dict(arguments)}

    def give(self, tensors: inputs.Tensors) -> None:
        """Write inputs, and poison the outputs and the padding; returns when they are there."""
        self.write(tensors)
        self.arena.settle()

    def write(self, tensors: inputs.Tensors) -> None:
        for name, tensor in zip("qkv", tensors, strict=True):
            if self.layout.pad:
                self.wholes[name].fill_(self.layout.filler_for(tensor.dtype))
            self.views[name].copy_(tensor)
        self.views["out"].fill_(float("nan"))
        self.views["lse"].fill_(float("nan"))

    def taken(self) -> Answered:
        """Copy what the candidate has written so far; what it writes later does not count."""
        return Answered(self.views["out"].clone(), self.views["lse"].clone())

    def changed(self, tensors: inputs.Tensors) -> torch.Tensor:
        """Return, for each input, whether it differs from what was given; nothing is waited for."""
        pairs = zip("qkv", tensors, strict=True)
        return torch.stack([(self.views[name] != tensor).any() for name, tensor in pairs])

    def check_inputs(self, tensors: inputs.Tensors) -> None:
        refuse_changed(self.changed(tensors).tolist())


def refuse_changed(changed: list[bool]) -> None:
    """Raise Incorrect when one of Q, K, V was written to."""
    for name, differs in zip("qkv", changed, strict=True):
        if differs:
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
    busy_s: float = 0.0  # in which it was computing for us

    def bind(self, bound: Bound, arguments: Mapping[str, Any]) -> None:
        self.ask("bind", **bound.named(arguments))

    def recall(self, key: str) -> bool:
        """Take up what was made ready under this name, if it still is."""
        return False

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        return self._timed(op, **arguments)[1]

    def ready(self, key: str = "") -> None:
        """Do what comes between the first call on a workload and the timed ones; with a name, recall() may find it."""
        self.child.spread()

    def call(self) -> None:
        """Call once, untimed."""
        self.run()

    def run(self) -> float:
        """Call once; returns microseconds by this process's clock, from request to reply."""
        return self._timed("run")[0]

    def check_clock(self, median_us: float, other: Player) -> None:
        """Raise Dishonest when the times reported are shorter than what passed here; `other` is a trusted player."""

    def answer(self, bound: Bound, tensors: inputs.Tensors) -> Answered:
        """Call once on these inputs, untimed; returns the outputs, or raises Incorrect when inputs were changed."""
        bound.give(tensors)
        self.call()
        answered = bound.taken()
        bound.check_inputs(tensors)
        return answered

    def _timed(self, op: str, **arguments: Any) -> tuple[float, dict[str, Any]]:
        """Ask, and return microseconds by this process's clock beside the reply."""
        self.child.resume()
        start = time.perf_counter()
        reply = self.child.ask(op, self.limit_s, **arguments)
        self.child.pause()  # before the clock: what it did between its reply and this is part of its time
        elapsed_us = (time.perf_counter() - start) * 1e6
        self.busy_s += elapsed_us * 1e-6
        if "error" in reply:
            case = reply.get("case")
            kind = str(reply.get("kind", "runtime"))
            raise Failed(printable(str(reply["error"])), kind, case if isinstance(case, int) else None)
        return elapsed_us, reply


class GpuPlayer(Player):
    """A child that computes on a GPU: timed by replays of a CUDA graph between two events of its own."""

    excess_us: float = math.inf  # least that a timed request took beyond what it reported

    def recall(self, key: str) -> bool:
        self.excess_us = math.inf
        return self.ask("recall", key=key).get("found") is True

    def ready(self, key: str = "") -> None:
        self.ask("capture", key=key)
        self.excess_us = math.inf

    def call(self) -> None:
        self.ask("run")

    def run(self) -> float:
        elapsed_us, reply = self._timed("replay")
        reported_us = reply.get("us")
        if not isinstance(reported_us, float) or not 0 < reported_us < elapsed_us:
            raise Dishonest(f"a replay that took {elapsed_us:.1f} us here is reported as {reported_us} us")
        self.excess_us = min(self.excess_us, elapsed_us - reported_us)
        self.ask("keep")
        return reported_us

    def check_clock(self, median_us: float, other: Player) -> None:
        count = max(BURST_LEAST, min(BURST_MOST, round(BURST_US / median_us)))
        believed_us = BURST_FACTOR * median_us + BURST_SLACK_US
        each_us = math.inf
        for _ in range(BURSTS):
            each_us = min(each_us, (self._timed("burst", count=count)[0] - EXCHANGE_US) / count)
            if each_us <= believed_us:
                return
        assert isinstance(other, GpuPlayer)
        hidden_us = self.excess_us - other.excess_us
        if hidden_us > EXCESS_FACTOR * median_us + EXCESS_SLACK_US:
            raise Dishonest(
                f"{count} replays in a row take {each_us:.1f} us each and a timed one {hidden_us:.1f} us more than the "
                f"baseline's beside its events; reported were {median_us:.1f} us"
            )


class Trusted(Player):
    """A child that runs a baseline: ours, so its failure is not the candidate's."""

    def _timed(self, op: str, **arguments: Any) -> tuple[float, dict[str, Any]]:
        try:
            return super()._timed(op, **arguments)
        except (Failed, wire.Gone, wire.Late) as error:
            raise BaselineLost(f"{op}: {error or type(error).__name__}") from error


class Peer(Trusted, Player):
    """A baseline on the CPU."""


class GpuPeer(Trusted, GpuPlayer):
    """A baseline on a GPU."""
