"""An exported module serves what was proven by its own kernel, says why it does not serve the rest, and compiles."""

import importlib.util
import sys
import warnings
from datetime import UTC, datetime

import pytest
import torch

from evokernel.export import Champion, module
from evokernel.measurement import Measurement, Outcome, Timing
from evokernel.problem import Problem, Workload
from evokernel.store import Run
from tests.toys import candidate

sdpa = torch.nn.functional.scaled_dot_product_attention
PROBLEM = Problem("forward", "fp32", (Workload(1, 2, 2, 96, 96, 16, True), Workload(1, 4, 2, 96, 96, 16, False)))


def champion(number, part):
    timings = tuple(Timing(w.name, (10.0,) * 5, "sdpa", (12.0,) * 5) for w in part.workloads)
    environment = {"device": "a cpu", "device_kind": "cpu", "versions": {}}
    measurement = Measurement(Outcome.PASSED, timings=timings, environment=environment)
    shape_class = part.shape_classes()[0].name
    return Champion(shape_class, candidate(number), (measurement,))


@pytest.fixture
def exported(tmp_path, request):
    parts = [PROBLEM.in_class(c) for c in PROBLEM.shape_classes()]
    chosen = [champion(number, part) for number, part in enumerate(parts, 1)]
    now = datetime.now(UTC)
    run = Run(1, request.node.name, "finished", {}, PROBLEM, 0, "a cpu", now, now, 1.0)
    path = tmp_path / "best.py"
    path.write_text(module(run, PROBLEM, chosen))
    spec = importlib.util.spec_from_file_location(f"best_{abs(hash(request.node.name))}", path)
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    yield loaded
    del sys.modules[spec.name]


def tensors(heads=2, kv_heads=2, seq_q=40, seq_kv=40, dim=16, dtype=torch.float32):
    torch.manual_seed(0)
    shapes = [(1, heads, seq_q, dim), (1, kv_heads, seq_kv, dim), (1, kv_heads, seq_kv, dim)]
    return [torch.randn(shape).to(dtype) for shape in shapes]


def test_what_was_proven_is_computed_by_its_own_kernel(exported):
    q, k, v = tensors()
    assert exported.explain(q, k, v, causal=True) == exported.Path("d16_causal_fp32_short", "proven")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out, lse = exported.attention(q, k, v, causal=True, return_lse=True)
    torch.testing.assert_close(out, sdpa(q, k, v, is_causal=True))
    assert lse.shape == (1, 2, 40)


UNPROVEN = {
    "dtype": lambda: tensors(dtype=torch.float64),
    "no kernel for d8": lambda: tensors(dim=8),
    "query heads": lambda: tensors(heads=6, kv_heads=2),
    "last dimension": lambda: [x.transpose(2, 3).contiguous().transpose(2, 3) for x in tensors()],
    "require grad": lambda: [x.requires_grad_() for x in tensors()],
}


@pytest.mark.parametrize("reason", UNPROVEN)
def test_what_was_not_proven_is_computed_by_torch_with_one_warning(exported, reason):
    q, k, v = UNPROVEN[reason]()
    with pytest.warns(UserWarning, match=reason):
        out = exported.attention(q, k, v, causal=True)
    expected = sdpa(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    torch.testing.assert_close(out, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exported.attention(q, k, v, causal=True)


@pytest.mark.parametrize("reason", UNPROVEN)
def test_what_was_not_proven_raises_when_the_policy_says_so(exported, reason):
    exported.policy("raise")
    with pytest.raises(exported.Unproven, match=reason):
        exported.attention(*UNPROVEN[reason](), causal=True)


def test_a_policy_that_does_not_exist_is_refused_with_the_choices(exported):
    with pytest.raises(ValueError, match="'guess'; choose one of sdpa, raise"):
        exported.policy("guess")


def test_gradients_flow_where_torch_computes(exported):
    q, k, v = (x.requires_grad_() for x in tensors())
    with pytest.warns(UserWarning, match="grad"):
        exported.attention(q, k, v).sum().backward()
    assert q.grad is not None


@pytest.mark.parametrize(("seq_q", "seq_kv"), [(40, 40), (20, 50), (50, 20)])
@pytest.mark.parametrize("causal", [False, True])
def test_the_log_sum_exp_of_the_fallback_is_that_of_the_kernel(exported, seq_q, seq_kv, causal):
    q, k, v = tensors(seq_q=seq_q, seq_kv=seq_kv)
    out, lse = exported.attention(q, k, v, causal=causal, return_lse=True)
    other, other_lse = exported.by_torch(q, k, v, 0.25, causal, True)
    torch.testing.assert_close(out, other)
    torch.testing.assert_close(lse, other_lse)


@pytest.mark.filterwarnings("ignore:computed by torch")
@pytest.mark.parametrize(("seq_q", "seq_kv"), [(40, 40), (20, 50), (50, 20)])
@pytest.mark.parametrize("causal", [False, True])
def test_the_second_entry_is_torchs_function_with_its_top_left_mask(exported, seq_q, seq_kv, causal):
    q, k, v = tensors(seq_q=seq_q, seq_kv=seq_kv)
    found = exported.scaled_dot_product_attention(q, k, v, is_causal=causal)
    torch.testing.assert_close(found, sdpa(q, k, v, is_causal=causal))


@pytest.mark.parametrize("options", [{"attn_mask": torch.ones(40, 40, dtype=torch.bool)}, {"dropout_p": 0.5}])
def test_masks_and_dropout_are_torchs(exported, options):
    exported.policy("raise")
    with pytest.raises(exported.Unproven, match=r"mask|dropout"):
        exported.scaled_dot_product_attention(*tensors(), **options)


def test_it_works_under_torch_compile_without_a_break(exported):
    def layer(q, k, v):
        return exported.attention(q * 2, k, v, causal=True) + 1

    q, k, v = tensors()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(q, k, v), layer(q, k, v))


def test_the_operator_keeps_torchs_rules_for_operators(exported):
    torch.library.opcheck(exported.operator, (*tensors(), 0.25, True))


def test_warmup_runs_known_shapes_and_names_what_it_does_not_know(exported):
    exported.warmup([{"batch": 1, "heads": 2, "seq_q": 8, "head_dim": 16, "causal": True}])
    with pytest.raises(exported.Unproven, match="no kernel for d8"):
        exported.warmup([{"batch": 1, "heads": 2, "seq_q": 8, "head_dim": 8}])
    with pytest.raises(ValueError, match="unknown seq; a shape has"):
        exported.warmup([{"batch": 1, "heads": 2, "seq": 8, "head_dim": 16}])
