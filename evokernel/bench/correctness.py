"""Judge an output against exact attention: per row, at worst, and the log-sum-exp by its own bound."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import torch

from evokernel.bench import inputs, reference
from evokernel.bench.inputs import Layout
from evokernel.problem import Problem, Workload

FACTOR = 2.0  # a candidate may err twice as much as the same-dtype reference
EPS = {"fp32": 2.0**-24, "bf16": 2.0**-9, "fp16": 2.0**-12}  # half a unit in the last place
EPS32 = EPS["fp32"]
# Floors for when the reference happens to be almost exact. Another order of summation moves float32 sums by a few
# roundings, and a polynomial exp by a few more; one rounding of the output is all a 16-bit result is granted.
FLOOR = {"fp32": 24 * EPS["fp32"], "bf16": EPS["bf16"], "fp16": EPS["fp16"]}
ROUNDINGS = 4  # of a score: the last sums of its dot product, the scaling, the shift by the maximum

# Small cousins of every workload: tails of any tile, single rows and keys, more queries than keys (fully masked rows
# when causal), more keys than queries.
LENGTHS = ((1, 1), (33, 65), (130, 77), (77, 203), (64, 64), (257, 257))


@dataclass(frozen=True)
class Case:
    """One call to be judged."""

    workload: Workload
    family: str
    layout: Layout
    seed: int

    @property
    def name(self) -> str:
        return f"{self.workload.name}/{self.family}/{self.layout.name}"


@dataclass(frozen=True)
class Expected:
    """Exact results and the errors that are tolerated."""

    answer: reference.Answer
    row_error: float  # relative L2 of any row
    max_error: float
    lse_error: float  # relative to max(1, largest |lse|)


def expect(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, workload: Workload, dtype: str) -> Expected:
    """Compute the exact answer, and the tolerances from the same-dtype reference's own errors."""
    answer = reference.exact(q, k, v, workload)
    same = reference.same_dtype(q, k, v, workload)
    rows, worst = _out_errors(same.out, answer)
    lse = _lse_error(same.lse, answer)
    # A score is rounded at its own magnitude, and what that moves the score it moves the weight by: with scores of
    # several hundred no order of summation is better than another.
    seen = answer.lse[~answer.lse.isinf()].abs()
    floor = FLOOR[dtype] + ROUNDINGS * EPS32 * (float(seen.max()) if seen.numel() else 0.0)
    return Expected(
        answer,
        FACTOR * rows + floor,
        FACTOR * worst + floor * float(answer.out.abs().max()),
        FACTOR * lse + 64 * EPS32,
    )


def judge(out: torch.Tensor, lse: torch.Tensor, expected: Expected) -> tuple[float, str]:
    """Return the share of the tolerance used, and what is wrong ("" when nothing is)."""
    answer = expected.answer
    hidden = answer.lse.isinf()
    if bool(out.isnan().any()):
        return float("inf"), f"out is NaN at {_place(out.isnan())}"
    if bool(lse.isnan().any()):
        return float("inf"), f"lse is NaN at {_place(lse.isnan())}"
    wrong = (lse == float("-inf")) != hidden
    if bool(wrong.any()):
        return float("inf"), f"lse is −inf where it should not be, or not where it should, at {_place(wrong)}"
    if bool(hidden.any()) and bool((out[hidden] != 0).any()):
        return float("inf"), "a fully masked row of out is not 0"
    rows, worst = _out_errors(out, answer)
    lse_error = _lse_error(lse, answer)
    used = {
        "a row's relative L2 error": (rows, expected.row_error),
        "the largest error of out": (worst, expected.max_error),
        "the relative error of lse": (lse_error, expected.lse_error),
    }
    for what, (error, bound) in used.items():
        if not error <= bound:
            return (
                error / bound,
                f"{what} is {error:.2e}, tolerated {bound:.2e}, at {_worst_place(out, lse, answer, what)}",
            )
    return max(error / bound for error, bound in used.values()), ""


def _out_errors(out: torch.Tensor, answer: reference.Answer) -> tuple[float, float]:
    difference = out.double() - answer.out
    norms = answer.out.norm(dim=-1)
    # A row whose exact result cancels to almost nothing is judged by the typical row's size.
    typical = float(norms.mean()) * 1e-2
    rows = difference.norm(dim=-1) / norms.clamp_min(max(typical, 1e-30))
    return float(rows.max()), float(difference.abs().max())


def _lse_error(lse: torch.Tensor, answer: reference.Answer) -> float:
    seen = ~answer.lse.isinf()
    if not bool(seen.any()):
        return 0.0
    # Relative to the largest: a row whose scores cancel to a small sum was still rounded at the size of its scores.
    difference = (lse.double() - answer.lse)[seen].abs().max()
    return float(difference / answer.lse[seen].abs().max().clamp_min(1.0))


def _place(where: torch.Tensor) -> str:
    index = [int(x) for x in where.nonzero()[0]]
    names = ("batch", "head", "row", "column")
    return " ".join(f"{name} {i}" for name, i in zip(names, index, strict=False))


def _worst_place(out: torch.Tensor, lse: torch.Tensor, answer: reference.Answer, what: str) -> str:
    if "lse" in what:
        error = torch.where(answer.lse.isinf(), 0.0, (lse.double() - answer.lse).abs())
    else:
        error = (out.double() - answer.out).norm(dim=-1)
    return _place(error == error.max())


def small_cases(problem: Problem, rng: random.Random) -> list[Case]:
    """Return the cheap cases of a shape class: every family, layout and length at least once, freshly seeded."""
    cases: list[Case] = []
    layouts = (inputs.PLAIN, inputs.POISONED, inputs.MODEL, inputs.HUGE)
    kinds = {(w.heads // w.kv_heads, w.window, w.softcap): w for w in problem.workloads}
    for (group, _, _), workload in kinds.items():
        heads = 2 * group
        for index, (seq_q, seq_kv) in enumerate(LENGTHS):
            small = replace(workload, batch=1 + index % 2, heads=heads, kv_heads=2, seq_q=seq_q, seq_kv=seq_kv)
            families = list(inputs.FAMILIES) if seq_q == LENGTHS[-1][0] else ["random", "large_logits"]
            for offset, family in enumerate(families):
                cases.append(Case(small, family, layouts[(index + offset) % len(layouts)], rng.getrandbits(48)))
    return cases
