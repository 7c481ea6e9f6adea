"""The Triton backend compiles without a GPU; its facts say what will run and how the main loop is ordered."""

from contextlib import contextmanager

import pytest

pytest.importorskip("triton")

from evokernel.backends import sass, static_facts
from evokernel.backends.targets import TARGETS, nvidia_tool, parse, require_compiler
from evokernel.backends.triton import Triton, compile_ahead, dry_run, variants
from evokernel.candidate import Body, find_module
from evokernel.devices import Device
from evokernel.errors import DeviceError
from evokernel.problem import Problem, Workload
from tests.contracts.backend_contract import BackendContract

H200 = Device("cuda", "NVIDIA H200", num_sms=132, arch=90, shared_bytes=232_448)
PROBLEM = Problem("forward", "bf16", (Workload(1, 4, 2, 256, 256, 64, True), Workload(1, 4, 2, 512, 512, 64, True)))


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


class TritonContract(BackendContract):
    tensor_device = "meta"
    template = ""

    @pytest.fixture
    def backend(self):
        return Triton()

    @pytest.fixture
    def device(self):
        return H200

    @pytest.fixture
    def problem(self):
        return PROBLEM

    @pytest.fixture
    def source(self):
        body = Body.load(find_module(self.template, "search_spaces"))
        return body.render(body.defaults)

    @contextmanager
    def counted(self, device):
        from triton import knobs

        compiles = []
        with knobs.compilation.scope():
            knobs.compilation.listener = lambda **what: compiles.append(what["src"].name)
            yield compiles

    def call(self, entry, workload, dtype, device, heads_inside):
        with dry_run(TARGETS["cuda:90"]):
            return super().call(entry, workload, dtype, device, heads_inside)


class TestPortableTriton(TritonContract):
    template = "flash_forward_triton"


class TestGluon(TritonContract):
    template = "flash_forward_gluon"


@pytest.mark.parametrize("template", ["flash_forward_triton", "flash_forward_gluon"])
def test_the_facts_of_a_template_say_that_it_fits(tmp_path, template):
    body = Body.load(find_module(template, "search_spaces"))
    path = tmp_path / "candidate.py"
    path.write_text(body.render(body.defaults))
    facts = Triton().compile(Triton().load(path, "attention"), PROBLEM, H200)
    assert facts["binaries"] == {facts["kernels"][0]["kernel"]: 1}
    assert facts["extra_binaries"] == 0
    assert facts["spill_bytes"] == 0
    assert 0 < facts["registers"] <= 255
    assert 0 < facts["shared_bytes"] <= H200.shared_bytes
    assert facts["occupancy"] >= 1
    assert not facts["wgmma_serialized"]
    (kernel,) = facts["kernels"]
    assert kernel["hgmma"] > 0 and kernel["exp2"] > 0 and kernel["waits"] > 0
    assert 0 < kernel["loop_instructions"] < kernel["instructions"]


def test_the_gluon_loop_has_its_exponentials_between_the_waits(tmp_path):
    body = Body.load(find_module("flash_forward_gluon", "search_spaces"))
    path = tmp_path / "candidate.py"
    path.write_text(body.render(body.defaults))
    facts = Triton().compile(Triton().load(path, "attention"), PROBLEM, H200)
    order = facts["order"].split()
    assert order[0].startswith("G")
    assert [part[0] for part in order[order.index("W1") :]] == ["W", "e", "W"]


SPECIALISED = """
import torch, triton
import triton.language as tl

@triton.jit
def copy(x, out, n, {constant}):
    i = tl.program_id(0) * 128 + tl.arange(0, 128)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)

def attention(q, k, v, **rest):
    copy[(1,)](q, torch.empty_like(q), q.shape[2], {value})
"""


@pytest.mark.parametrize(
    ("constant", "value", "extra"),
    [
        ("m: tl.constexpr", "4", 1),
        ("LENGTH: tl.constexpr", "q.shape[2]", 2),
        ("STRIDE: tl.constexpr", "q.stride(2)", 1),
    ],
)
def test_what_is_specialised_on_a_length_or_stride_is_counted(tmp_path, constant, value, extra):
    # n is divisible by 16 in the workloads and odd in the call beside them: Triton specialises even that
    path = tmp_path / "candidate.py"
    path.write_text(SPECIALISED.format(constant=constant, value=value))
    facts = compile_ahead(Triton().load(path, "attention"), PROBLEM, parse("cuda:90"))
    assert facts["extra_binaries"] == extra
    assert facts["binaries"] == {"copy": 1 + extra}


def test_a_candidate_that_launches_nothing_does_not_compile(tmp_path):
    from evokernel.backends import CompileError

    path = tmp_path / "candidate.py"
    path.write_text("def attention(q, k, v, **rest):\n    return q, None\n")
    with pytest.raises(CompileError, match="no kernel"):
        compile_ahead(Triton().load(path, "attention"), PROBLEM, parse("cuda:90"))


def test_workloads_of_one_variant_share_a_binary_and_others_do_not():
    full = Workload(1, 4, 2, 256, 256, 64, False)
    problem = Problem("forward", "bf16", (*PROBLEM.workloads, full, Workload(1, 4, 4, 256, 256, 64, False)))
    assert [len(group) for group in variants(problem)] == [2, 1, 1]


def test_ptxas_is_asked_again_when_its_log_is_lost(tmp_path):
    path = tmp_path / "candidate.py"
    path.write_text(SPECIALISED.format(constant="m: tl.constexpr", value="4"))
    entry = Triton().load(path, "attention")
    target = parse("cuda:90")
    with dry_run(target) as done:
        import torch

        q = torch.empty(1, 1, 256, 64, dtype=torch.bfloat16, device="meta")
        entry(q, q, q)
    ((key, kernel),) = done.kernels.items()
    assert static_facts.read(kernel, target) == static_facts.read(kernel, target, done.logs[key])
    assert done.logs[key]


def test_a_dry_run_leaves_no_stub_behind():
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    launch = JITFunction.run
    with dry_run(parse("cuda:90")):
        assert driver.active.get_current_target().arch == 90
    assert JITFunction.run is launch
    with pytest.raises(RuntimeError, match="active drivers"):
        driver.active.get_current_target()


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_has_its_limits_and_a_compiler(name):
    target = parse(name)
    require_compiler(target)
    assert target.name == name
    assert target.warp_size == (32 if target.backend == "cuda" else 64)
    assert target.shared_bytes >= 65_536
    assert target.context()["arch"] == target.number


def test_an_unknown_target_is_one_line_with_the_choices():
    with pytest.raises(DeviceError, match=r"unknown target 'cuda:91'; choose one of .*cuda:90.*hip:gfx942") as caught:
        parse("cuda:91")
    assert "\n" not in str(caught.value)


def test_a_missing_tool_is_one_line(monkeypatch):
    from triton import knobs

    def missing(self, path):
        raise RuntimeError("Cannot find ptxas")

    monkeypatch.setattr(knobs.env_nvidia_tool, "transform", missing)
    with pytest.raises(DeviceError, match="ptxas is missing"):
        nvidia_tool("ptxas")
    with pytest.raises(DeviceError, match="ptxas-blackwell is missing"):
        require_compiler(parse("cuda:100"))


@pytest.mark.parametrize(
    ("target", "registers", "warps", "shared", "blocks"),
    [
        ("cuda:90", 32, 4, 0, 16),  # threads
        ("cuda:90", 168, 12, 98_648, 1),  # registers
        ("cuda:90", 100, 4, 98_304, 2),  # shared memory, of which each block loses 1 KiB
        ("cuda:90", 255, 16, 0, 0),  # more registers than there are
        ("cuda:90", 16, 1, 0, 32),  # blocks
        ("cuda:120", 32, 4, 0, 12),
        ("hip:gfx942", 128, 4, 32_768, 2),
        ("hip:gfx942", 128, 4, 65_537, 0),
    ],
)
def test_occupancy_is_the_tightest_limit(target, registers, warps, shared, blocks):
    facts = {"registers": registers, "num_warps": warps, "shared_bytes": shared}
    assert static_facts.occupancy(facts, parse(target)) == blocks


def written(*lines):
    """Write instructions as nvdisasm does; a line that ends in a colon is a label."""
    rows = [
        line if line.endswith(":") else f"        /*{16 * i:04x}*/                   {line} ;"
        for i, line in enumerate(lines)
    ]
    return "\n".join(rows)


def test_the_main_loop_is_the_one_with_the_products_not_a_spin_that_jumps_back_into_it():
    text = written(
        "MUFU.EX2 R1, R1",
        ".L_x_1:",
        "HGMMA.64x128x16.F32.BF16 R152, gdesc[UR12], RZ, !UPT",
        "HGMMA.64x128x16.F32.BF16 R152, gdesc[UR4], R152",
        "@!P0 BRA `(.L_x_9)",
        ".L_x_2:",
        "WARPGROUP.DEPBAR.LE gsb0, 0x1",
        "MUFU.EX2 R1, R1",
        "WARPGROUP.DEPBAR.LE gsb0, 0x0",
        "@P1 BRA `(.L_x_1)",
        "HGMMA.64x128x16.F32.BF16 R152, gdesc[UR12], RZ, !UPT",
        "EXIT",
        ".L_x_9:",
        "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R3",
        "@!P0 BRA `(.L_x_9)",
        "BRA `(.L_x_2)",
    ).replace("                   @", "              @")
    facts = sass.facts(text)
    assert facts["order"] == "G2 W1 e1 W0"
    assert (facts["hgmma"], facts["exp2"], facts["waits"], facts["instructions"]) == (3, 2, 2, 13)
    assert facts["loop_instructions"] == 10  # the spin is part of the loop that it returns to


def test_of_a_masked_and_a_clear_loop_the_shorter_is_the_main_one():
    loop = (".L_x_{0}:", "HMMA.16816.F32.BF16 R8, R4, R6, R8", "MUFU.EX2 R1, R1", "@P1 BRA `(.L_x_{0})")
    masked = [line.format(1) for line in (*loop[:2], "FSEL R1, R1, R2, P0", "MUFU.EX2 R2, R2", *loop[2:])]
    facts = sass.facts(written(*masked, *(line.format(2) for line in loop), "EXIT"))
    assert facts["order"] == "M1 e1"


def test_a_kernel_without_products_has_no_main_loop():
    facts = sass.facts(written(".L_x_1:", "MUFU.EX2 R1, R1", "@P1 BRA `(.L_x_1)", "EXIT"))
    assert (facts["order"], facts["loop_instructions"], facts["exp2"]) == ("", 0, 1)


AMDGCN = """
\ts_load_dwordx4 s[0:3], s[4:5], 0x0
\tv_mfma_f32_32x32x8_bf16 a[0:15], v[0:1], v[2:3], a[0:15]
\tv_exp_f32_e32 v4, v4
\ts_waitcnt vmcnt(0)
    .agpr_count:     16
    .sgpr_count:     106
    .sgpr_spill_count: 6
    .vgpr_count:     144
    .vgpr_spill_count: 3
"""


def test_amd_facts_are_read_from_the_assembly():
    facts = static_facts._amd(AMDGCN)
    assert (facts["registers"], facts["accumulation_registers"], facts["scalar_registers"]) == (144, 16, 106)
    assert facts["spill_bytes"] == 12  # scalar registers spill into vector registers
    assert (facts["mfma"], facts["exp2"], facts["waits"], facts["instructions"]) == (1, 1, 1, 4)
