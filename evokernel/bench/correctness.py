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
# when causal), more keys than queries, a few queries on many tiles of keys.
LENGTHS = ((1, 1), (33, 65), (130, 77), (77, 203), (64, 64), (5, 515), (257, 257))
LONGEST_DRAWN = 300  # two tiles of 128 and a tail
SPOT_HEADS = 4  # of one batch entry, and rows of each, that are computed exactly for a spot check: 1–2 ms
SPOT_ROWS = 8
LAYOUTS = (inputs.PLAIN, inputs.POISONED, inputs.MODEL, inputs.HUGE)


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
    max_error: float  # of any element
    lse_error: float  # of any row


@dataclass(frozen=True)
class Spots:
    """Rows of a call that are computed exactly, unknown to the candidate until it has answered."""

    batch: int
    heads: list[int]
    rows: list[int]

    @classmethod
    def choose(cls, workload: Workload, rng: random.Random) -> Spots:
        heads = rng.sample(range(workload.heads), min(SPOT_HEADS, workload.heads))
        rows = rng.sample(range(workload.seq_q), min(SPOT_ROWS, workload.seq_q))
        return cls(rng.randrange(workload.batch), sorted(heads), sorted(rows))

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor[self.batch : self.batch + 1, self.heads][:, :, self.rows]


def expect(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, workload: Workload, dtype: str) -> Expected:
    """Compute the exact answer, and the tolerances from the same-dtype reference's own errors."""
    answer = reference.exact(q, k, v, workload)
    same = reference.same_dtype(q, k, v, workload)
    *_, rows, worst, lse = errors(same.out, same.lse, answer).tolist()
    # A score is rounded at its own magnitude, and what that moves the score it moves the weight by: with scores of
    # several hundred no order of summation is better than another.
    seen = answer.lse[~answer.lse.isinf()].abs()
    largest = float(seen.max()) if seen.numel() else 0.0
    floor = FLOOR[dtype] + ROUNDINGS * EPS32 * largest
    return Expected(
        answer,
        FACTOR * rows + floor,
        FACTOR * worst + floor * float(answer.out.abs().max()),
        # The floor is relative to the largest: a row whose scores cancel to a small sum was still rounded at the size
        # of its scores.
        FACTOR * lse + 64 * EPS32 * max(1.0, largest),
    )


def errors(out: torch.Tensor, lse: torch.Tensor, answer: reference.Answer) -> torch.Tensor:
    """Return what judge() looks at as one small tensor, float64, where the outputs are: nothing is waited for.

    NaN in out, NaN in lse, −inf in the wrong rows, fully masked rows that are not 0 (each 0 or 1); the largest relative
    L2 error of a row, the largest error of an element, the largest error of the log-sum-exp.
    """
    hidden = answer.lse.isinf()
    rows, worst = _out_errors(out, answer)
    found = [
        out.isnan().any(),
        lse.isnan().any(),
        ((lse == float("-inf")) != hidden).any(),
        (hidden[..., None] & (out != 0)).any(),
        rows.max(),
        worst,
        torch.where(hidden, 0.0, (lse.double() - answer.lse).abs()).max(),
    ]
    return torch.stack([value.double() for value in found])


def judge(out: torch.Tensor, lse: torch.Tensor, expected: Expected, spots: Spots | None = None) -> tuple[float, str]:
    """Return the share of the tolerance used, and what is wrong ("" when nothing is)."""
    return verdict(errors(out, lse, expected.answer).tolist(), out, lse, expected, spots)


def verdict(
    found: list[float], out: torch.Tensor, lse: torch.Tensor, expected: Expected, spots: Spots | None = None
) -> tuple[float, str]:
    """Judge by what errors() found; the outputs are looked at again only to say where something is wrong."""
    nan_out, nan_lse, misplaced, not_zero, row_error, max_error, lse_error = found
    answer = expected.answer
    hidden = answer.lse.isinf()

    def place(where: torch.Tensor) -> str:
        return _place(where, out, lse, answer, spots)

    if nan_out:
        return float("inf"), f"out is NaN at {place(out.isnan())}"
    if nan_lse:
        return float("inf"), f"lse is NaN at {place(lse.isnan())}"
    if misplaced:
        wrong = (lse == float("-inf")) != hidden
        return float("inf"), f"lse is −inf where it should not be, or not where it should, at {place(wrong)}"
    if not_zero:
        return float("inf"), f"a fully masked row of out is not 0 at {place(hidden[..., None] & (out != 0))}"
    used = {
        "a row's relative L2 error": (row_error, expected.row_error),
        "the largest error of out": (max_error, expected.max_error),
        "the largest error of lse": (lse_error, expected.lse_error),
    }
    for what, (error, bound) in used.items():
        if not error <= bound:
            difference = (out.double() - answer.out).abs()
            if "row" in what:
                rows, _ = _out_errors(out, answer)
                where = difference * (rows == rows.max())[..., None]
            elif "lse" in what:
                where = torch.where(hidden, 0.0, (lse.double() - answer.lse).abs())
            else:
                where = difference
            return error / bound, f"{what} is {error:.2e}, tolerated {bound:.2e}, at {place(where == where.max())}"
    return max(error / bound for error, bound in used.values()), ""


def spot_check(
    out: torch.Tensor, lse: torch.Tensor, tensors: inputs.Tensors, workload: Workload, expected: Expected, spots: Spots
) -> tuple[float, str]:
    """Judge some rows of a call by their exact values, with the tolerances of like inputs: affordable every time."""
    for name, tensor, is_nan in zip(("out", "lse"), (out, lse), _any_nan(out, lse), strict=True):
        if is_nan:
            return float("inf"), f"{name} is NaN at {_indices(tensor.isnan(), None)}"
    answer = reference.exact_rows(*tensors, workload, spots.batch, spots.heads, spots.rows)
    return judge(spots.of(out), spots.of(lse), replace(expected, answer=answer), spots)


def _any_nan(*tensors: torch.Tensor) -> list[bool]:
    return torch.stack([tensor.isnan().any() for tensor in tensors]).tolist()  # type: ignore[no-any-return]


def _out_errors(out: torch.Tensor, answer: reference.Answer) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's relative L2 error, and the largest error of an element."""
    difference = out.double() - answer.out
    norms = answer.out.norm(dim=-1).double()
    # A row whose exact result cancels to almost nothing is judged by the typical row's size.
    rows = difference.norm(dim=-1) / torch.maximum(norms, (norms.mean() * 1e-2).clamp_min(1e-30))
    return rows, difference.abs().max()


def _indices(where: torch.Tensor, spots: Spots | None) -> str:
    index = [int(x) for x in where.nonzero()[0]]
    if spots:
        index[:3] = [spots.batch, spots.heads[index[1]], spots.rows[index[2]]]
    names = ("batch", "head", "row", "column")
    return " ".join(f"{name} {i}" for name, i in zip(names, index, strict=False))


def _place(
    where: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, answer: reference.Answer, spots: Spots | None
) -> str:
    """Say where the first mismatch is, what is there, and what should be."""
    index = tuple(where.nonzero()[0].tolist())
    found, exact = (out[index], answer.out[index]) if len(index) == 4 else (lse[index], answer.lse[index])
    return f"{_indices(where, spots)}: {float(found):.6g}, exactly {float(exact):.6g}"


def small_cases(problem: Problem, rng: random.Random) -> list[Case]:
    """Return the cheap cases of a shape class: every family at every length, layouts in turn, freshly seeded."""
    return [
        case
        for number, workload in enumerate(_kinds(problem))
        for index, (seq_q, seq_kv) in enumerate(LENGTHS)
        for offset, family in enumerate(inputs.FAMILIES)
        for case in [_small(workload, family, seq_q, seq_kv, number + index + offset, rng)]
    ]


def drawn_case(problem: Problem, rng: random.Random) -> Case:
    """Return a small case of lengths that nobody could foresee."""
    lengths = rng.randint(1, LONGEST_DRAWN), rng.randint(1, LONGEST_DRAWN)
    return _small(rng.choice(_kinds(problem)), rng.choice(list(inputs.FAMILIES)), *lengths, rng.randrange(8), rng)


def _kinds(problem: Problem) -> list[Workload]:
    """Return one workload for each variant and group: what a kernel is compiled for."""
    return list({(w.heads // w.kv_heads, w.window, w.softcap): w for w in problem.workloads}.values())


def _small(workload: Workload, family: str, seq_q: int, seq_kv: int, turn: int, rng: random.Random) -> Case:
    group = workload.heads // workload.kv_heads
    small = replace(workload, batch=2 if turn % 3 == 0 else 1, heads=2 * group, kv_heads=2, seq_q=seq_q, seq_kv=seq_kv)
    return Case(small, family, LAYOUTS[turn % len(LAYOUTS)], rng.getrandbits(48))
