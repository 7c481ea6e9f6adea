"""The Gluon forward template without a GPU: schedules, refusals, and what ptxas makes of it for sm_90."""

import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "search_spaces" / "flash_forward_gluon.py"
SHARED_BYTES = 232448

# Runs in a child: give triton a driver that only names its target, call the host function on meta tensors,
# and let the tools in triton's wheel report on each cubin.
COMPILE = """
import importlib.util, json, re, subprocess, sys, tempfile
from pathlib import Path
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

class Driver:
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0
    def get_active_torch_device(self): return torch.device("meta")

driver.set_active(Driver())
kernels, run = [], JITFunction.run

def warm(self, *args, grid, warmup, **options):
    kernels.append(run(self, *args, grid=grid, warmup=True, **options))

JITFunction.run = warm
path, cases = json.loads(sys.argv[1])
spec = importlib.util.spec_from_file_location("template", path)
template = importlib.util.module_from_spec(spec)
sys.modules["template"] = template
spec.loader.exec_module(template)
default = dict(template.KNOBS)
tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"

def tensor(heads, length, head_dim, dtype, transposed):
    shape = (2, length, heads, head_dim) if transposed else (2, heads, length, head_dim)
    tensor = torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
    return tensor.transpose(1, 2) if transposed else tensor

def report(head_dim, dtype, causal, knobs):
    template.KNOBS.update({**default, **knobs})
    kernels.clear()
    shapes = (8, 8, 512, 512, False), (6, 2, 1, 333, True), (4, 1, 1000, 77, True)
    for heads, kv_heads, n_q, n_kv, transposed in shapes:
        q = tensor(heads, n_q, head_dim, dtype, transposed)
        k, v = (tensor(kv_heads, n_kv, head_dim, dtype, transposed) for _ in range(2))
        template.attention(q, k, v, scale=0.125, causal=causal, num_sms=132)
    with tempfile.TemporaryDirectory() as folder:
        ptx, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        ptx.write_text(kernels[0].asm["ptx"])
        command = [tools / "ptxas", "-v", "--gpu-name=sm_90a", ptx, "-o", cubin]
        log = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        command = [tools / "nvdisasm", "-c", cubin]
        sass = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {
        "shared": kernels[0].metadata.shared,
        "spill": int(re.search(r"(\\d+) bytes spill stores", log)[1]),
        "serialized": re.findall(r"C751\\d", log),
        "binaries": len({kernel.hash for kernel in kernels}),
        "order": re.findall(r"HGMMA|MUFU\\.EX2|WARPGROUP\\.DEPBAR\\.LE gsb0, 0x[0-9a-f]+", sass),
    }

print(json.dumps([report(*case) for case in cases]))
"""


@pytest.fixture(scope="module")
def template():
    sys.path.insert(0, str(ROOT))  # for search_spaces.lib
    spec = importlib.util.spec_from_file_location("flash_forward_gluon", TEMPLATE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["flash_forward_gluon"] = module
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(ROOT))


CASES = [
    (64, "bfloat16", True, {}),
    (128, "bfloat16", True, {}),
    (256, "bfloat16", True, {}),
    (128, "float16", False, {"block_n": 128, "store": "own_buffer", "row_sum": "spread", "ping_pong": True}),
    (64, "float16", True, {"consumers": 3, "consumer_registers": 160, "mask_loop": "split", "grid": "tiles"}),
    (128, "bfloat16", True, {"consumers": 1, "ctas_per_sm": 2, "store": "direct", "grid": "persistent"}),
]


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton")),
    }
    command = [sys.executable, "-c", COMPILE, json.dumps([str(TEMPLATE), CASES])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def inputs(heads=4, kv_heads=4, n_q=128, n_kv=128, head_dim=64, dtype=torch.bfloat16):
    shapes = ((1, heads, n_q, head_dim), (1, kv_heads, n_kv, head_dim), (1, kv_heads, n_kv, head_dim))
    return tuple(torch.zeros(shape, dtype=dtype) for shape in shapes)


def test_the_tile_order_is_a_bijection(template):
    for m_tiles in (1, 2, 7, 32):
        for heads in (1, 3, 8, 33):
            for group in (1, 2, 4, 8, 16, 32):
                order = [template.tile_of.fn(i, m_tiles, heads, group) for i in range(m_tiles * heads)]
                assert sorted(order) == [(m, h) for m in range(m_tiles) for h in range(heads)]


def test_the_schedule_deals_every_position_once(template):
    rng = random.Random(0)
    for _ in range(300):
        m_tiles, heads, group = rng.randint(1, 20), rng.randint(1, 40), rng.choice([1, 2, 4, 8, 16, 32])
        workers = rng.randint(1, min(140, m_tiles * heads))
        table = template.schedule(m_tiles, heads, group, workers, [rng.randint(1, 30) for _ in range(m_tiles)])
        offsets, positions = table[: workers + 1], table[workers + 1 :]
        assert sorted(positions) == list(range(m_tiles * heads))
        assert offsets == sorted(offsets) and offsets[0] == 0 and offsets[-1] == len(positions)


def test_the_schedule_balances_causal_tiles_better_than_dealing_them_in_turn(template):
    m_tiles, heads, workers, start_blocks = 16, 64, 132, 2
    blocks = [m + 1 for m in range(m_tiles)]
    table = template.schedule(m_tiles, heads, 4, workers, blocks)
    costs = [blocks[template.tile_of.fn(i, m_tiles, heads, 4)[0]] + start_blocks for i in range(m_tiles * heads)]
    offsets, positions = table[: workers + 1], table[workers + 1 :]
    longest = max(sum(costs[p] for p in positions[offsets[w] : offsets[w + 1]]) for w in range(workers))
    assert longest < max(sum(costs[w::workers]) for w in range(workers))
    assert longest <= 1.1 * sum(costs) / workers


def test_a_tile_visits_every_key_it_may_see_and_at_least_one_block(template):
    rng = random.Random(1)
    for _ in range(2000):
        n_q, n_kv = rng.randint(1, 600), rng.randint(1, 600)
        block_m, block_n = rng.choice([64, 128, 192]), rng.choice([32, 64, 128, 256])
        left, right = rng.choice([-1, rng.randint(0, 300)]), rng.choice([-1, 0, rng.randint(0, 300)])
        upper, lower = n_kv - n_q + max(right, 0) + 1, n_kv - n_q - max(left, 0)
        m_tile = rng.randrange(-(-n_q // block_m))
        start, stop = template.block_range.fn(m_tile, n_q, n_kv, upper, lower, block_m, block_n, right >= 0, left >= 0)
        assert 0 <= start < stop <= -(-n_kv // block_n)
        for row in range(m_tile * block_m, min((m_tile + 1) * block_m, n_q)):
            first = max(row + lower, 0) if left >= 0 else 0
            last = min(row + upper, n_kv) if right >= 0 else n_kv  # exclusive
            assert first >= last or (start * block_n <= first and last <= stop * block_n)


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_a_stride_that_no_tensor_map_holds_is_named(template, name):
    tensors = dict(zip("qkv", inputs(), strict=True))
    narrow = torch.zeros((1, 4, 128, 68), dtype=torch.bfloat16)[..., :64]  # 136 bytes from row to row
    with pytest.raises(ValueError, match=f"{name}: stride of dimension 2 is 68 elements"):
        template.attention(**{**tensors, name: narrow}, scale=1.0, num_sms=132)
    turned = torch.zeros((1, 4, 64, 128), dtype=torch.bfloat16).transpose(2, 3)
    with pytest.raises(ValueError, match=f"{name}: stride of dimension 3 is 128"):
        template.attention(**{**tensors, name: turned}, scale=1.0, num_sms=132)
    shared = torch.zeros((1, 1, 128, 64), dtype=torch.bfloat16).expand(1, 4, 128, 64)
    with pytest.raises(ValueError, match=f"{name}: stride of dimension 1 is 0"):
        template.attention(**{**tensors, name: shared}, scale=1.0, num_sms=132)


@pytest.mark.parametrize(
    ("tensors", "arguments", "message"),
    [
        (inputs(dtype=torch.float32), {}, "float32"),
        (inputs(head_dim=96), {}, "head_dim is 96"),
        (inputs(heads=6), {}, "multiple of kv_heads"),
        (inputs(), {"scale": 0.0}, "scale is 0.0"),
        (inputs(), {"softcap": 0.0}, "softcap is 0.0"),
        (inputs(), {"window": (-2, 0)}, "window is"),
    ],
)
def test_what_the_kernel_does_not_compute_is_refused(template, tensors, arguments, message):
    with pytest.raises(ValueError, match=message):
        template.attention(*tensors, **{"scale": 1.0, "num_sms": 132, **arguments})


def test_unknown_arguments_are_refused(template):
    with pytest.raises(TypeError, match="block_table"):
        template.attention(*inputs(), scale=1.0, num_sms=132, block_table=None)


def test_no_keys_give_zeros_and_minus_infinity(template):
    out, lse = template.attention(*inputs(n_kv=0), scale=1.0, num_sms=132)
    assert not out.any() and (lse == -torch.inf).all()


@pytest.mark.parametrize("case", range(len(CASES)))
def test_it_compiles_for_hopper_without_spills(reports, case):
    report, (_, _, _, knobs) = reports[case], CASES[case]
    assert report["spill"] == 0
    assert not report["serialized"]
    assert report["shared"] <= SHARED_BYTES // knobs.get("ctas_per_sm", 1)
    assert report["binaries"] == 1, "lengths, heads or strides were specialised"


@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_exponentials_come_before_the_wait_for_the_second_product(reports, case):
    order = reports[case]["order"]
    both_started = [i for i, instruction in enumerate(order) if instruction.endswith("gsb0, 0x1")]
    assert both_started
    for i in both_started:
        after = order[i + 1 :]
        assert after[: after.index("WARPGROUP.DEPBAR.LE gsb0, 0x0")].count("MUFU.EX2") > 16
