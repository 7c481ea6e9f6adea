"""The judge passes careful kernels in every dtype and family, and says where others are wrong."""

import random
from dataclasses import replace

import pytest
import torch

from evokernel.bench import correctness, inputs, reference
from evokernel.bench.correctness import Spots
from evokernel.problem import Problem, Workload

WORKLOAD = Workload(1, 2, 1, 130, 203, 32, True)
PROBLEM = Problem("forward", "fp32", (WORKLOAD,))


def drawn(family="random", dtype="fp32", workload=WORKLOAD, seed=3):
    tensors = inputs.draw(family, workload, dtype, seed)
    return tensors, correctness.expect(*tensors, workload, dtype)


def tiled(q, k, v, workload):
    """Attend as a kernel does: tiles of keys in turn, online softmax in float32, weights in the input's dtype."""
    group = workload.heads // workload.kv_heads
    k, v = (x.repeat_interleave(group, 1).float() for x in (k, v))
    seen = reference.visible(workload, 0, workload.seq_q, q.device)
    top = torch.full((*q.shape[:3], 1), float("-inf"))
    total, out = torch.zeros_like(top), torch.zeros(q.shape)
    for first in range(0, workload.seq_kv, 48):
        tile = slice(first, first + 48)
        scores = (q.float() @ k[:, :, tile].transpose(-1, -2)) * workload.scale
        scores = scores.masked_fill(~seen[:, tile], float("-inf"))
        new = torch.maximum(top, scores.amax(-1, keepdim=True))
        safe = torch.where(new.isinf(), 0.0, new)
        weights = torch.exp2((scores - safe) * 1.4426950408889634)
        kept = torch.exp(top - safe)
        total = total * kept + weights.sum(-1, keepdim=True)
        out = out * kept + weights.to(q.dtype).float() @ v[:, :, tile]
        top = new
    lse = torch.where(top.isinf(), top, top + total.log())[..., 0]
    return (out / torch.where(total == 0, 1.0, total)).to(q.dtype), lse


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("family", inputs.FAMILIES)
@pytest.mark.parametrize("lengths", [(130, 203), (203, 130), (1, 257)])
def test_a_careful_kernel_passes(family, dtype, lengths):
    workload = replace(WORKLOAD, seq_q=lengths[0], seq_kv=lengths[1])
    for seed in range(3):
        tensors, expected = drawn(family, dtype, workload, seed)
        used, wrong = correctness.judge(*tiled(*tensors, workload), expected)
        assert wrong == ""
        assert used <= 1


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_one_key_in_eight_left_out_of_one_row_is_wrong(dtype):
    workload = replace(WORKLOAD, seq_q=512, seq_kv=512)
    tensors, expected = drawn("random", dtype, workload)
    out, lse = tiled(*tensors, workload)
    short, _ = tiled(*(x[:, :, 64:] if x is not tensors[0] else x for x in tensors), replace(workload, seq_kv=448))
    out[:, :, 511] = short[:, :, 511]
    assert "row 511" in correctness.judge(out, lse, expected)[1]


def test_a_mismatch_says_what_is_wrong_and_where():
    tensors, expected = drawn()
    out, lse = tiled(*tensors, WORKLOAD)
    spoilt = out.clone()
    spoilt[0, 1, 7, 5] = 9.0
    assert "batch 0 head 1 row 7 column 5: 9, exactly " in correctness.judge(spoilt, lse, expected)[1]
    spoilt[0, 1, 7, 5] = float("nan")
    assert "out is NaN at batch 0 head 1 row 7 column 5" in correctness.judge(spoilt, lse, expected)[1]
    shifted = lse.clone()
    shifted[0, 0, 3] += 1e-3
    assert "lse" in (wrong := correctness.judge(out, shifted, expected)[1]) and "head 0 row 3" in wrong
    for value in (float("inf"), float("-inf"), float("nan")):
        shifted[0, 0, 3] = value
        assert correctness.judge(out, shifted, expected)[1]


def test_a_fully_masked_row_is_zero_and_minus_infinity():
    workload = replace(WORKLOAD, seq_q=9, seq_kv=4)
    tensors, expected = drawn(workload=workload)
    out, lse = tiled(*tensors, workload)
    assert correctness.judge(out, lse, expected)[1] == ""
    spoilt = out.clone()
    spoilt[0, 1, 2, 3] = 1e-20
    assert "a fully masked row" in correctness.judge(spoilt, lse, expected)[1]
    lse[0, 0, 0] = -1e30
    assert "−inf" in correctness.judge(out, lse, expected)[1]


def test_a_spot_check_passes_what_is_right_and_names_true_places():
    tensors, expected = drawn()
    out, lse = tiled(*tensors, WORKLOAD)
    rng = random.Random(0)
    for _ in range(20):
        spots = Spots.choose(WORKLOAD, rng)
        assert correctness.spot_check(out, lse, tensors, WORKLOAD, expected, spots)[1] == ""
    row = spots.rows[3]
    out[0, 1, row, 2] += 1
    assert f"head 1 row {row} column 2" in correctness.spot_check(out, lse, tensors, WORKLOAD, expected, spots)[1]
    out[0, 0, (row + 1) % 130, 0] = float("nan")
    assert "out is NaN" in correctness.spot_check(out, lse, tensors, WORKLOAD, expected, spots)[1]


def test_every_family_length_and_layout_is_among_the_small_cases():
    cases = correctness.small_cases(PROBLEM, random.Random(1))
    assert {(c.family, c.workload.seq_q, c.workload.seq_kv) for c in cases} == {
        (family, *lengths) for family in inputs.FAMILIES for lengths in correctness.LENGTHS
    }
    assert {c.layout.name for c in cases} == {layout.name for layout in correctness.LAYOUTS}
    assert any(c.workload.seq_q > c.workload.seq_kv for c in cases)
    assert {(c.workload.head_dim, c.workload.causal, c.workload.heads // c.workload.kv_heads) for c in cases} == {
        (32, True, 2)
    }


def test_two_draws_share_no_seed():
    first, second = (correctness.small_cases(PROBLEM, random.Random(seed)) for seed in (1, 2))
    assert not {c.seed for c in first} & {c.seed for c in second}


@pytest.mark.parametrize("layout", correctness.LAYOUTS, ids=lambda layout: layout.name)
def test_a_layout_holds_the_tensor_in_memory_of_another_shape(layout):
    shape = (2, 3, 5, 8)
    whole = torch.full(layout.padded(shape), layout.filler)
    view = layout.view(whole, shape)
    view.copy_(torch.ones(shape))
    assert view.shape == shape and view.stride(-1) == 1
    assert int((whole == 1).sum()) == view.numel()
    assert whole.numel() > view.numel() or not layout.pad


def test_a_needle_stands_in_every_far_tile_and_decides():
    workload = Workload(1, 1, 1, 64, 512, 32, False)
    q, k, v = inputs.draw("needle", workload, "fp32", 7)
    whole = reference.exact(q, k, v, workload).out
    for first in range(64, 448, 64):
        keep = [j for j in range(512) if not first <= j < first + 64]
        without = reference.exact(q, k[:, :, keep], v[:, :, keep], replace(workload, seq_kv=448)).out
        assert float((without - whole).norm() / whole.norm()) > 0.02
