"""The oracle computes attention by its definition, whatever the mask."""

import math

import pytest
import torch

from evokernel.bench import baselines, inputs, reference
from evokernel.problem import Workload

VARIANTS = {
    "full": Workload(2, 4, 2, 7, 11, 8, False),
    "causal": Workload(1, 2, 2, 9, 9, 8, True),
    "causal, more keys": Workload(1, 2, 2, 5, 9, 8, True),
    "causal, fully masked rows": Workload(1, 2, 1, 9, 4, 8, True),
    "window": Workload(1, 2, 2, 9, 12, 8, False, window=(2, 1)),
    "causal window": Workload(1, 2, 2, 9, 9, 8, True, window=(3, 0)),
    "window open to the left": Workload(1, 2, 2, 9, 9, 8, False, window=(-1, 1)),
    "softcap": Workload(1, 4, 1, 6, 9, 8, True, softcap=5.0),
}


def by_hand(q, k, v, w):
    """Attend one query and key at a time, in Python's own floats."""
    out, lse = torch.zeros(q.shape, dtype=torch.float64), torch.full(q.shape[:3], -math.inf, dtype=torch.float64)
    offset = w.seq_kv - w.seq_q
    left, right = w.window or (-1, -1)
    for b in range(w.batch):
        for h in range(w.heads):
            kv = h // (w.heads // w.kv_heads)
            for i in range(w.seq_q):
                weights = {}
                for j in range(w.seq_kv):
                    if (
                        (w.causal and j > i + offset)
                        or (left >= 0 and j < i + offset - left)
                        or (right >= 0 and j > i + offset + right)
                    ):
                        continue
                    score = sum(float(x) * float(y) for x, y in zip(q[b, h, i], k[b, kv, j], strict=True)) * w.scale
                    weights[j] = math.exp(w.softcap * math.tanh(score / w.softcap) if w.softcap else score)
                if weights:
                    total = sum(weights.values())
                    lse[b, h, i] = math.log(total)
                    for j, weight in weights.items():
                        out[b, h, i] += weight / total * v[b, kv, j].double()
    return out, lse


@pytest.mark.parametrize("name", VARIANTS)
def test_exact_attention_is_what_the_definition_says(name):
    workload = VARIANTS[name]
    tensors = inputs.draw("random", workload, "fp32", 1)
    answer = reference.exact(*tensors, workload)
    out, lse = by_hand(*tensors, workload)
    torch.testing.assert_close(answer.out, out, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(answer.lse, lse, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", VARIANTS)
def test_some_rows_computed_alone_are_those_of_the_whole(name):
    workload = VARIANTS[name]
    tensors = inputs.draw("random", workload, "fp32", 2)
    whole = reference.exact(*tensors, workload)
    heads, rows, batch = [0, workload.heads - 1], [0, 2, workload.seq_q - 1], workload.batch - 1
    some = reference.exact_rows(*tensors, workload, batch, heads, rows)
    torch.testing.assert_close(some.out, whole.out[batch : batch + 1, heads][:, :, rows])
    torch.testing.assert_close(some.lse, whole.lse[batch : batch + 1, heads][:, :, rows])


def test_blocks_of_rows_join_without_a_seam():
    workload = Workload(1, 1, 1, reference.ROWS_AT_ONCE + 3, 300, 8, True)
    tensors = inputs.draw("random", workload, "fp32", 3)
    whole = reference.exact(*tensors, workload)
    last = reference.exact_rows(*tensors, workload, 0, [0], list(range(reference.ROWS_AT_ONCE - 2, workload.seq_q)))
    torch.testing.assert_close(whole.out[:, :, reference.ROWS_AT_ONCE - 2 :], last.out)


def test_the_same_dtype_reference_rounds_the_weights_and_the_output():
    workload = Workload(1, 2, 2, 64, 64, 32, False)
    tensors = inputs.draw("random", workload, "bf16", 4)
    exact, same = reference.exact(*tensors, workload), reference.same_dtype(*tensors, workload)
    error = (same.out.double() - exact.out).abs().max()
    assert same.out.dtype is torch.bfloat16
    assert 1e-5 < float(error) < 1e-2


@pytest.mark.parametrize("baseline", [name for name in baselines.BASELINES if name not in baselines.GPU_ONLY])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_baseline_computes_the_workload_it_is_timed_on(baseline, name):
    workload = VARIANTS[name]
    if baselines.unserved(baseline, workload, "fp32"):
        pytest.skip(f"{baseline} has no softcap")
    tensors = inputs.draw("random", workload, "fp32", 5)
    found = baselines.BASELINES[baseline](workload, torch.device("cpu"))(*tensors)
    answer = reference.exact(*tensors, workload)
    seen = ~answer.lse.isinf()  # what a library returns for a fully masked row is its own affair
    torch.testing.assert_close(found.double()[seen], answer.out[seen], rtol=1e-4, atol=1e-5)
