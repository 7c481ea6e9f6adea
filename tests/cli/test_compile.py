"""GPU kernels are compiled on a machine without a GPU, and what fails costs one line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from tests.commands import runner

ROOT = Path(__file__).parents[2]
TRITON = ROOT / "search_spaces/flash_forward_triton.py"
GLUON = ROOT / "search_spaces/flash_forward_gluon.py"


evokernel = runner(ROOT)


def compiled(*arguments, code=0):
    return json.loads(evokernel("compile", *arguments, "--json", code=code).stdout)


def test_a_template_compiles_to_one_binary_that_fits_and_does_not_spill():
    reply = compiled(TRITON, "--target", "cuda:80", "--head-dim", 64)
    assert (reply["outcome"], reply["message"], reply["target"]) == ("PASSED", "", "cuda:80")
    (facts,) = reply["kernels"]  # other lengths and strides were compiled too: nothing is specialised on them
    assert reply["binaries"] == {facts["kernel"]: 1}
    assert reply["facts"]["extra_binaries"] == 0
    assert facts["spill_bytes"] == 0
    assert facts["occupancy"] >= 1
    assert facts["registers"] > 0


def test_a_seed_is_a_table_with_the_order_of_its_main_loop():
    done = evokernel("compile", ROOT / "seeds/fa3.py", "--full")
    assert "PASSED" in done.stdout and "head_dim 128, full" in done.stdout
    assert "registers  spill_bytes  shared_bytes" in done.stdout
    assert "main loop G" in done.stdout
    assert done.stderr == ""


def test_knobs_replace_those_of_the_file_and_what_cannot_run_is_rejected_with_the_number():
    reply = compiled(
        TRITON,
        "--knob",
        "loop_order=kv_outer",
        "--knob",
        "block_m=16",
        "--knob",
        "block_n=256",
        "--head-dim",
        256,
        code=1,
    )
    assert reply["outcome"] == "REJECTED"
    assert "needs 278,528 B of shared memory; a block on cuda:90 has 232,448 B" in reply["message"]
    assert reply["facts"]["shared_bytes"] == 278_528


SUSPECT = """
SPACE = {"op": "forward", "backend": "triton", "knobs": {"block": [64]}}
KNOBS = {"block": 64}
# ---- kernel ----
import torch, triton
import triton.language as tl

@triton.jit
def kernel(q, out, B: tl.constexpr):
    at = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]
    x = tl.load(q + at)
    tl.store(out + at, tl.dot(tl.trans(tl.dot(x, x).to(x.dtype)), x).to(x.dtype))

def attention(q, k, v, **rest):
    BODY
"""


def test_a_candidate_with_a_pattern_that_is_miscompiled_is_warned_of(tmp_path):
    path = tmp_path / "candidate.py"
    path.write_text(SUSPECT.replace("BODY", 'kernel[(1,)](q, torch.empty_like(q), B=KNOBS["block"])'))
    text = evokernel("compile", path).stdout
    import triton

    assert ("warning: line 12: dot(trans(x), y)" in text) is (triton.__version__ < "3.7.1")


def test_a_candidate_that_does_not_compile_says_why_and_exits_with_1(tmp_path):
    path = tmp_path / "candidate.py"
    path.write_text(SUSPECT.replace("BODY", "raise ValueError('head_dim is odd')"))
    done = evokernel("compile", path, code=1)
    assert "COMPILE_ERROR" in done.stdout
    assert "ValueError at line 15: head_dim is odd" in done.stdout


BAD = {
    "an unknown target": (["compile", TRITON, "--target", "cuda:91"], ["cuda:91", "cuda:90", "hip:gfx942"]),
    "an unknown knob": (["compile", TRITON, "--knob", "tile=3"], ["tile", "block_m"]),
    "an unknown value": (["compile", TRITON, "--knob", "block_m=65"], ["65", "64, 128"]),
    "an empty space": (
        ["compile", GLUON, "--target", "cuda:80"],
        ["flash_forward_gluon.py on cuda:80: the space is empty"],
    ),
    "a constraint that fails": (
        ["compile", GLUON, "--knob", "consumer_registers=104"],
        ["cuda:90: registers left over"],
    ),
    "a missing file": (["compile", "none.py"], ["none.py: no such file"]),
    "a CPU kernel": (["compile", ROOT / "search_spaces/flash_forward_numba.py"], ["numba"]),
    "an unknown dtype": (["compile", TRITON, "--dtype", "int4"], ["int4", "bf16"]),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_line(what):
    arguments, words = BAD[what]
    lines = evokernel(*arguments, code=2).stderr.strip().splitlines()
    assert len(lines) == 1
    for word in words:
        assert word in lines[0]


def test_help_needs_no_compiler():
    done = evokernel("compile", "--help")
    assert "--target" in done.stdout
    code = "import evokernel.cli, sys; print({'torch', 'triton'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
