"""Every setting of the Triton forward template gives exact attention: interpreted, on small odd shapes."""

from pathlib import Path

import pytest

from evokernel.candidate import Body
from tests.search_spaces import interpreted

TEMPLATE = Path(__file__).parents[2] / "search_spaces" / "flash_forward_triton.py"
SMALL = {"block_m": 32, "block_n": 32, "num_warps": 4}

SETTINGS = {
    "default": {},
    "tall tiles": {"block_m": 64, "block_n": 16},
    "wide tiles": {"block_m": 16, "block_n": 64, "mask_loop": "always"},
    "wide tiles, reverse": {"block_m": 16, "block_n": 64, "loads": "descriptors", "kv_direction": "reverse"},
    "descriptors": {"loads": "descriptors"},
    "descriptors, branch": {"loads": "descriptors", "mask_loop": "branch", "kv_direction": "sawtooth"},
    "mask always": {"mask_loop": "always"},
    "mask branch": {"mask_loop": "branch"},
    "reverse": {"kv_direction": "reverse"},
    "reverse, branch": {"kv_direction": "reverse", "mask_loop": "branch"},
    "sawtooth": {"kv_direction": "sawtooth"},
    "sawtooth, always": {"kv_direction": "sawtooth", "mask_loop": "always"},
    "exp": {"exponential": "exp"},
    "rescale when moved": {"rescale": "moved", "exponential": "exp"},
    "rescale by threshold": {"rescale": "threshold"},
    "rescale by threshold, exp": {"rescale": "threshold", "exponential": "exp", "mask_loop": "always"},
    "head first": {"grid_order": "head_first", "dies": 4},
    "block first": {"grid_order": "block_first", "dies": 2},
    "groups": {"group_heads": 4, "dies": 8},
    "persistent": {"persistent": "stride", "grid_order": "head_first"},
    "persistent snake": {"persistent": "snake", "group_heads": 2, "programs_per_sm": 2},
    "persistent snake, descriptors": {"persistent": "snake", "loads": "descriptors", "dies": 2},
    "kv outer": {"loop_order": "kv_outer"},
    "kv outer, exp": {"loop_order": "kv_outer", "block_m": 16, "block_n": 64, "exponential": "exp"},
}

# shape: batch, heads, kv_heads, seq_q, seq_kv, head_dim
PROBLEMS = {
    "one query": {"shape": (1, 2, 1, 1, 1, 64), "causal": True},
    "full": {"shape": (1, 2, 2, 65, 130, 64)},
    "causal": {"shape": (1, 2, 1, 77, 77, 96), "causal": True},
    "causal, longer keys, strided": {"shape": (1, 2, 2, 65, 130, 40), "causal": True, "strided": 8},
    "causal, masked rows": {"shape": (1, 2, 1, 130, 65, 64), "causal": True, "dtype": "fp16"},
    "window": {"shape": (1, 2, 2, 77, 77, 64), "window": (20, 9), "dtype": "fp16", "strided": 16},
    "window, softcap": {"shape": (2, 2, 1, 65, 130, 64), "causal": True, "window": (40, -1), "softcap": 5.0},
    "unaligned strides": {"shape": (1, 2, 2, 33, 65, 41), "strided": 4, "causal": True},
    "ascending maxima": {"shape": (1, 1, 1, 33, 130, 64), "ascending": True},
}

# Only for the default: what no setting changes.
MORE = {
    "window right of the diagonal, no left end": {"shape": (1, 2, 1, 130, 65, 64), "window": (-1, 70)},
    "window wider than any length": {"shape": (1, 1, 1, 77, 77, 64), "window": (2**31 - 1, 2**31 - 1)},
    "group of four": {"shape": (2, 8, 2, 33, 40, 64), "causal": True, "dtype": "fp16"},
    "head_dim 8": {"shape": (1, 2, 2, 33, 40, 8)},
    "head_dim 256": {"shape": (1, 1, 1, 33, 70, 256), "causal": True, "dtype": "fp16"},
    "no keys": {"shape": (1, 2, 2, 5, 0, 64)},
    "no queries": {"shape": (1, 2, 2, 0, 5, 64)},
}

ERROR = {"fp32": 1e-5, "fp16": 2e-3}  # outputs are averages of values near 1, so absolute is relative


def all_cases():
    for setting in SETTINGS:
        for problem in PROBLEMS:
            yield setting, problem
    for problem in MORE:
        yield "default", problem
        yield "kv outer", problem


@pytest.fixture(scope="module")
def verdicts(request, tmp_path_factory):
    """Interpret the selected cases, all at once: importing torch costs a child more than a case does."""
    folder = tmp_path_factory.mktemp("rendered")
    body = Body.load(TEMPLATE)
    sources = {}
    for setting, knobs in SETTINGS.items():
        sources[setting] = folder / f"{setting.replace(' ', '_').replace(',', '')}.py"
        sources[setting].write_text(body.render({**body.defaults, **SMALL, **knobs}))
    own = [item for item in request.session.items if item.path == request.path]
    chosen = [item.callspec.params for item in own if "verdicts" in item.fixturenames]
    cases = {}
    for setting, problem in ((c["setting"], c["problem"]) for c in chosen):
        cases[f"{setting}: {problem}"] = {"source": str(sources[setting]), **{**PROBLEMS, **MORE}[problem]}
    return interpreted.run(cases)


@pytest.mark.parametrize(("setting", "problem"), list(all_cases()))
def test_attention_is_exact(verdicts, setting, problem):
    verdict = verdicts[f"{setting}: {problem}"]
    assert "failure" not in verdict, verdict["failure"]
    assert verdict["error"] <= ERROR[{**PROBLEMS, **MORE}[problem].get("dtype", "fp32")]
    assert verdict["lse_error"] <= 1e-5


def test_the_template_is_a_valid_space_with_a_valid_default():
    body = Body.load(TEMPLATE)
    context = {
        "head_dim": 128, "dtype": "bf16", "dtype_bytes": 2, "causal": True, "group": 1, "seq": 4096,
        "shared_bytes": 232448, "num_sms": 132, "arch": 90,
    }  # fmt: skip
    assert body.space.broken_constraint(body.defaults, context) is None
