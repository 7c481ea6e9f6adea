"""What is to be searched for comes from a model's configuration, from a running program, or from a plan."""

import json
import sys

import pytest

from evokernel.config import load, locate
from evokernel.problem import Workload
from tests.commands import runner

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def evokernel(tmp_path):
    run = runner(tmp_path)

    def printed(*arguments, code=0):
        done = run(*arguments, code=code)
        return done.stdout + done.stderr

    return printed


def test_init_takes_the_shapes_of_a_model(evokernel, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    evokernel("init", "--model", "config.json", "--batch", "1,8", "--seqlen", "512,4096")
    problem = load(tmp_path / "campaign.yaml").problem.problem()
    assert problem.dtype == "bf16"
    assert set(problem.workloads) == {
        Workload(batch, 32, 8, seq, seq, 128, True) for batch in (1, 8) for seq in (512, 4096)
    }


def test_init_says_what_a_campaign_does_not_search_for(evokernel, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "sliding_window": 4096, "attn_logit_softcapping": 50.0}))
    printed = evokernel("init", "--model", "config.json")
    assert "sliding_window 4096" in printed
    assert "attn_logit_softcapping 50.0" in printed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_attention_heads": None}, "num_attention_heads is None; expected a positive number"),
        ({"num_key_value_heads": 5}, "num_key_value_heads is 5; 32 heads need a divisor"),
    ],
)
def test_a_model_that_makes_no_sense_is_one_line(evokernel, tmp_path, change, message):
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **change}))
    assert message in evokernel("init", "--model", "config.json", code=2)


def test_lengths_that_are_no_numbers_are_one_line(evokernel, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    printed = evokernel("init", "--model", "config.json", "--seqlen", "long", code=2)
    assert printed.strip() == "evokernel: --seqlen is 'long'; give positive numbers such as 1,8"


PROGRAM = """
import torch
from torch.nn.functional import scaled_dot_product_attention as attend
q, k = torch.randn(2, 4, 100, 64), torch.randn(2, 2, 100, 64)
for _ in range(3):
    attend(q, k, k, is_causal=True, enable_gqa=True)
torch.nn.functional.scaled_dot_product_attention(torch.randn(1, 4, 10, 64), torch.randn(1, 4, 50, 64), torch.randn(1, 4, 50, 64))
attend(q, q, q, attn_mask=torch.ones(100, 100, dtype=torch.bool))
torch.nn.MultiheadAttention(32, 2, batch_first=True)(torch.randn(1, 7, 32), torch.randn(1, 7, 32), torch.randn(1, 7, 32), need_weights=False)
"""


def test_trace_weighs_the_calls_of_a_program_by_their_work(evokernel, tmp_path):
    (tmp_path / "app.py").write_text(PROGRAM)
    printed = evokernel("trace", "-o", "traced.yaml", "--", sys.executable, "app.py")
    problem = load(tmp_path / "traced.yaml").problem.problem()
    found = {w.name: w.weight for w in problem.workloads}
    assert set(found) == {"b2_h4_kv2_s100_d64_causal", "b1_h4_s10_x50_d64_full", "b1_h2_s7_d16_full"}
    heavy = Workload(2, 4, 2, 100, 100, 64, True).flops() * 3
    light = Workload(1, 4, 4, 10, 50, 64, False).flops()
    assert found["b2_h4_kv2_s100_d64_causal"] / found["b1_h4_s10_x50_d64_full"] == pytest.approx(
        heavy / light, rel=0.01
    )
    assert sum(found.values()) == pytest.approx(3, abs=0.01)
    assert "left out, 1 calls: an attention mask" in printed


def test_trace_of_a_program_without_attention_is_one_line(evokernel):
    printed = evokernel("trace", "--", sys.executable, "-c", "raise SystemExit(3)", code=2)
    assert "no call of torch.nn.functional.scaled_dot_product_attention was seen (exit code 3)" in printed


def test_trace_hands_on_the_programs_exit_code(evokernel):
    code = "import torch\nx = torch.randn(1, 1, 8, 16)\ntorch.nn.functional.scaled_dot_product_attention(x, x, x)\nraise SystemExit(5)"
    evokernel("trace", "--", sys.executable, "-c", code, code=5)


def test_plan_compares_the_library_with_the_roofline_and_foresees_the_campaign(evokernel):
    shape = "problem.workloads={rows: [{heads: 2, seq: 128, head_dim: 64}]}"
    printed = evokernel("plan", "-c", "cpu.yaml", "-o", shape, "-o", "problem.held_out={}", "--price", "3", "--json")
    found = json.loads(printed)
    assert 0 < found["workloads"][0]["share"] < 1
    assert found["workloads"][0]["latencies_us"]["sdpa"] > found["workloads"][0]["floor_us"]
    assert found["estimate"]["wall_s"] == 100
    assert found["estimate"]["candidates"] >= 1
    assert found["estimate"]["cost"] == pytest.approx(3 * 100 / 3600)


def test_auto_is_the_configuration_for_what_this_machine_has(monkeypatch):
    from evokernel import devices

    monkeypatch.setattr(devices, "gpus", list)
    assert locate("auto").name == "cpu.yaml"
    for model, arch, name in (("NVIDIA H200", 90, "h200"), ("NVIDIA A100-SXM4-80GB", 80, "a100"), ("L4", 89, "a100")):
        monkeypatch.setattr(devices, "gpus", lambda m=model, a=arch: [devices.Device("cuda", m, arch=a)])
        assert locate("auto").name == f"{name}.yaml"
