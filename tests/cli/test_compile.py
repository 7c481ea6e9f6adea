"""GPU kernels are compiled on a machine without a GPU, and what fails costs one line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evokernel.backends.compile_child import cause, compile_in_child
from evokernel.backends.targets import TARGETS
from evokernel.measurement import Outcome
from evokernel.problem import Problem, Workload

pytest.importorskip("triton")
ROOT = Path(__file__).parents[2]
TRITON = ROOT / "search_spaces/flash_forward_triton.py"
GLUON = ROOT / "search_spaces/flash_forward_gluon.py"
PROBLEM = Problem("forward", "bf16", (Workload(1, 2, 2, 256, 256, 64, True),))


def evokernel(*arguments, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "evokernel", *map(str, arguments)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.mark.parametrize(
    ("file", "target", "head_dim"),
    [(TRITON, "cuda:90", 128), (TRITON, "cuda:80", 64), (TRITON, "hip:gfx942", 64), (GLUON, "cuda:90", 128)],
)
def test_a_template_compiles_to_one_binary_that_fits_and_does_not_spill(file, target, head_dim):
    done = evokernel("compile", file, "--target", target, "--head-dim", head_dim, "--json")
    reply = json.loads(done.stdout)
    (facts,) = reply["kernels"]  # two lengths were compiled: nothing is specialised on them
    assert facts["spill_bytes"] == 0
    assert not facts["over_shared_limit"]
    assert facts["occupancy"] >= 1
    assert facts["registers"] > 0


def test_the_gluon_loop_overlaps_products_and_exponentials():
    facts = json.loads(evokernel("compile", GLUON, "--json").stdout)["kernels"][0]
    assert facts["hgmma"] > 0
    assert facts["exp2"] > 0
    assert "G" in facts["order"]
    assert not facts["wgmma_serialized"]


def test_a_seed_compiles_with_its_own_knobs():
    assert "PASSED" in evokernel("compile", ROOT / "seeds/fa3.py").stdout


BAD = {
    "an unknown target": (["compile", TRITON, "--target", "cuda:91"], ["cuda:91", "cuda:90", "hip:gfx942"]),
    "an unknown knob": (["compile", TRITON, "--knob", "tile=3"], ["tile", "block_m"]),
    "an unknown value": (["compile", TRITON, "--knob", "block_m=65"], ["65", "64, 128"]),
    "a constraint that fails": (["compile", GLUON, "--target", "cuda:80"], ["flash_forward_gluon.py", "cuda:80"]),
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


KERNEL = "import triton\nimport triton.language as tl\n@triton.jit\ndef k(x, N: tl.constexpr):\n    {body}\n"
HOST = "def attention(q, k_, v, **rest):\n    {host}\n"


@pytest.mark.parametrize(
    ("body", "host", "outcome"),
    [
        ("tl.store(x, no_such_name)", "k[(1,)](q, N=4)", Outcome.COMPILE_ERROR),
        ("tl.store(x, 1.0)", "raise ValueError('no')", Outcome.COMPILE_ERROR),
        ("tl.store(x, 1.0)", "import os; os.abort()", Outcome.CRASHED),
        ("tl.store(x, 1.0)", "while True: pass", Outcome.TIMEOUT),
        ("tl.store(x, 1.0)", "k[(1,)](q, N=4)", Outcome.PASSED),
    ],
)
def test_whatever_the_compiler_does_comes_back_as_an_outcome(body, host, outcome):
    source = KERNEL.format(body=body) + HOST.format(host=host)
    found, message, kernels = compile_in_child(source, "attention", PROBLEM.to_json(), "cuda:90", limit_s=20)
    assert found is outcome, message
    assert bool(message) != (outcome is Outcome.PASSED)
    assert bool(kernels) == (outcome is Outcome.PASSED)


def test_megabytes_of_compiler_output_are_cut_to_the_cause():
    dump = (
        "\n".join(f"%{i} = some.operation" for i in range(100_000)) + "\nerror: operand #1 does not dominate this use"
    )
    assert cause(dump) == "error: operand #1 does not dominate this use"


def test_every_target_has_its_limits():
    for target in TARGETS.values():
        assert target.shared_bytes >= 65_536
        assert target.context()["arch"] == target.number
