"""The Numba forward template, one genome per group of settings, against exact attention in float64."""

import math
import types
from pathlib import Path

import pytest
import torch

from evokernel.candidate import Body

BODY = Body.load(Path(__file__).parents[2] / "search_spaces" / "flash_forward_numba.py")

# One genome for each group of settings; together they hold every value of every knob.
GENOMES = {
    "default": {},
    "kv_outer": {
        "rows": 8, "unroll": 1, "panel": 16, "loop_order": "kv_outer", "exp_form": "exp2",
        "scale_where": "exp", "mask_where": "diagonal", "schedule": "cyclic",
    },
    "packed_heads": {
        "block_m": 32, "block_n": 32, "rows": 1, "unroll": 8, "panel": 64, "kv_direction": "reverse",
        "fusion": "strip", "pack_scope": "head", "scale_where": "query", "mask_where": "diagonal",
        "rescale": "on_change", "parallel_axis": "tiles", "schedule": "cyclic",
    },
    "unpacked": {
        "block_m": 16, "block_n": 128, "rows": 2, "unroll": 2, "panel": 16, "pack_k": False, "pack_v": False,
        "exp_form": "exp", "scale_where": "exp", "parallel_axis": "tiles",
    },
    "unpacked_kv_outer": {
        "block_m": 128, "block_n": 256, "rows": 8, "unroll": 4, "loop_order": "kv_outer",
        "kv_direction": "reverse", "fusion": "strip", "pack_k": False, "pack_v": False,
        "scale_where": "query", "rescale": "on_change",
    },
}  # fmt: skip

CASES = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window": (20, 5)},
    "softcap": {"softcap": 3.0},
    "causal_left_window_softcap": {"causal": True, "window": (31, -1), "softcap": 20.0},
}
LENGTHS = [(1, 1), (17, 65), (130, 70), (64, 64), (33, 257)]


def exact(q, k, v, *, scale, causal=False, window=None, softcap=None):
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    q_len, kv_len = scores.shape[-2:]
    distance = torch.arange(kv_len)[None] - (torch.arange(q_len)[:, None] + kv_len - q_len)
    left, right = (side if side >= 0 else math.inf for side in window or (-1, -1))
    right = min(right, 0) if causal else right
    scores = scores.masked_fill((distance < -left) | (distance > right), -math.inf)
    lse = torch.logsumexp(scores, -1)
    return torch.exp(scores - lse.clamp(min=-1e300)[..., None]) @ v, lse


def inputs(q_len, kv_len, head_dim=24, seed=0):
    """Two query heads for each kv head; q is transposed and v a slice, so neither is contiguous."""
    generator = torch.Generator().manual_seed(seed)
    q = 2 * torch.randn(2, q_len, 4, head_dim, generator=generator).transpose(1, 2)
    k = torch.randn(2, 2, kv_len, head_dim, generator=generator)
    v = torch.randn(2, 2, kv_len, head_dim + 3, generator=generator)[..., :head_dim]
    return q, k, v


def load(**knobs):
    """The template as a module, with other knobs."""
    module = types.ModuleType("template")
    exec(BODY.render(BODY.defaults | knobs), module.__dict__)
    return module


@pytest.fixture(scope="module", params=GENOMES)
def template(request):
    return load(**GENOMES[request.param])


@pytest.fixture
def attention(template):
    return template.attention


def assert_exact(attention, q, k, v, **case):
    before = [t.clone() for t in (q, k, v)]
    out, lse = attention(q, k, v, scale=q.shape[-1] ** -0.5, num_sms=2, **({"causal": False} | case))
    expected, expected_lse = exact(q, k, v, scale=q.shape[-1] ** -0.5, **case)
    assert out.dtype == lse.dtype == torch.float32
    torch.testing.assert_close(out.double(), expected, atol=5e-6, rtol=1e-5)
    torch.testing.assert_close(lse.double(), expected_lse, atol=5e-6, rtol=1e-5)
    assert all(torch.equal(t, b) for t, b in zip((q, k, v), before, strict=True))


def test_the_genomes_hold_every_value_of_every_knob():
    for knob, values in BODY.space.knobs.items():
        assert {(BODY.defaults | genome)[knob] for genome in GENOMES.values()} == set(values)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_only_float32_is_in_the_space(dtype):
    assert BODY.space.valid(BODY.defaults, {"dtype": "fp32"})
    assert not BODY.space.valid(BODY.defaults, {"dtype": dtype})


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_every_genome_is_exact_for_grouped_strided_heads(attention, lengths, case):
    assert_exact(attention, *inputs(*lengths), **CASES[case])


@pytest.mark.parametrize("head_dim", [1, 16, 64, 80])
def test_any_head_dim_is_served(attention, head_dim):
    assert_exact(attention, *inputs(33, 70, head_dim), causal=True)


def test_a_row_that_sees_no_key_gives_zero_and_minus_infinity(attention):
    q, k, v = inputs(130, 70)
    out, lse = attention(q, k, v, scale=0.2, causal=True, num_sms=2)
    assert (out[:, :, :60] == 0).all()
    assert (lse[:, :, :60] == -math.inf).all()
    assert lse[:, :, 60:].isfinite().all()


def test_no_keys_at_all_gives_zero_and_minus_infinity(attention):
    q, k, v = inputs(5, 0)
    out, lse = attention(q, k, v, scale=0.2, causal=False, num_sms=2)
    assert (out == 0).all() and (lse == -math.inf).all()


@pytest.mark.parametrize("scale", [-0.5, 0.0, 4.0])
def test_any_scale_is_served(attention, scale):
    q, k, v = inputs(17, 65)
    out, lse = attention(q, k, v, scale=scale, causal=True, num_sms=2)
    expected, expected_lse = exact(q, k, v, scale=scale, causal=True)
    torch.testing.assert_close(out.double(), expected, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(lse.double(), expected_lse, atol=2e-5, rtol=1e-5)


def test_keys_that_are_not_seen_may_hold_anything(attention):
    q, k, v = inputs(64, 300)
    expected, _ = attention(q, k, v, scale=0.2, causal=False, window=(9, 9), num_sms=2)
    k, v = k.clone(), v.clone()
    k[:, :, :200], v[:, :, :200] = math.nan, math.nan
    out, _ = attention(q, k, v, scale=0.2, causal=False, window=(9, 9), num_sms=2)
    assert torch.equal(out, expected)


def test_one_binary_serves_every_layout_length_and_mask(template):
    for case, lengths in (({}, (17, 65)), ({"softcap": 3.0, "window": (9, 9)}, (33, 257))):
        q, k, v = inputs(*lengths)
        template.attention(q, k, v, scale=0.2, causal=False, num_sms=2, **case)
        template.attention(q.contiguous(), k[:, :, ::2], v[:, :, ::2], scale=1, causal=True, num_sms=1, **case)
    assert len(template.LAUNCH) == len(template.LAUNCH[0].signatures) == 1


def test_what_is_not_implemented_is_refused():
    attention = load().attention
    q, k, v = inputs(17, 65)
    with pytest.raises(ValueError, match="float32"):
        attention(q.half(), k.half(), v.half(), scale=1.0)
    with pytest.raises(ValueError, match="contiguous"):
        attention(q.transpose(-1, -2).contiguous().transpose(-1, -2), k, v, scale=1.0)
    with pytest.raises(ValueError, match="shapes"):
        attention(q[:, :3], k, v, scale=1.0)
    with pytest.raises(TypeError):
        attention(q, k, v, scale=1.0, cu_seqlens=torch.tensor([0, 17]))
