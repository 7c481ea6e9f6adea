"""Attacks on the GPU worker, and unusual kernels that are honest: each a small change of one plain Triton kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from evokernel.measurement import Outcome
from evokernel.problem import Problem, Workload

# Grouped heads and a length that no tile divides; the second is long enough for far tiles.
PROBLEM = Problem("forward", "bf16", (Workload(2, 4, 2, 515, 515, 64, True), Workload(1, 16, 4, 3000, 3000, 64, True)))

PLAIN = '''"""Plain attention: one program a tile of queries."""

import torch
import triton
import triton.language as tl

RUN_TIME = ("seq_q", "seq_kv", "heads", "group", "qb", "qh", "qs", "kb", "kh", "ks", "vb", "vh", "vs")


@triton.jit(do_not_specialize=RUN_TIME)
def forward(
    q, k, v, out, lse, state, scale, seq_q, seq_kv, heads, group, qb, qh, qs, kb, kh, ks, vb, vh, vs,
    CAUSAL: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):
    tile = tl.program_id(0)
    batch = tl.program_id(1) // heads
    head = tl.program_id(1) % heads
    kv_head = head // group
    rows = tile * M + tl.arange(0, M)
    columns = tl.arange(0, D)
    shift = seq_kv - seq_q
    queries = tl.load(q + batch * qb + head * qh + rows[:, None] * qs + columns[None, :], rows[:, None] < seq_q, 0.0)
    top = tl.full((M,), float("-inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    sums = tl.zeros((M, D), tl.float32)
    first = 0
    last = seq_kv
    if CAUSAL:
        last = tl.minimum(seq_kv, tl.maximum(0, (tile + 1) * M + shift))
    for start in range(first, last, N):
        keys = start + tl.arange(0, N)
        inside = keys < seq_kv
        ks_ = tl.load(k + batch * kb + kv_head * kh + keys[None, :] * ks + columns[:, None], inside[None, :], 0.0)
        scores = tl.dot(queries, ks_) * scale
        seen = inside[None, :]
        if CAUSAL:
            seen = seen & (keys[None, :] <= rows[:, None] + shift)
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp(scores - base[:, None])
        rescale = tl.exp(top - base)
        total = total * rescale + tl.sum(weights, 1)
        vs_ = tl.load(v + batch * vb + kv_head * vh + keys[:, None] * vs + columns[None, :], inside[:, None], 0.0)
        sums = sums * rescale[:, None] + tl.dot(weights.to(vs_.dtype), vs_)
        top = higher
    empty = total == 0.0
    result = sums / tl.where(empty, 1.0, total)[:, None]
    place = (tl.program_id(1) * seq_q + rows[:, None]) * D + columns[None, :]
    tl.store(out + place, result.to(out.dtype.element_ty), rows[:, None] < seq_q)
    logs = tl.where(empty, float("-inf"), top + tl.log(tl.where(empty, 1.0, total)))
    tl.store(lse + tl.program_id(1) * seq_q + rows, logs, rows < seq_q)


KEPT = {}


def kept(name, like, size):
    if name not in KEPT:
        KEPT[name] = torch.zeros(size, dtype=torch.int32, device=like.device)
    return KEPT[name]


def attention(q, k, v, *, scale, causal=False, num_sms=1):
    batch, heads, seq_q, dim = q.shape
    out = torch.empty((batch, heads, seq_q, dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, heads, seq_q), dtype=torch.float32, device=q.device)
    forward[(triton.cdiv(seq_q, 64), batch * heads)](
        q, k, v, out, lse, kept("state", q, 16), scale, seq_q, k.shape[2], heads, heads // k.shape[1],
        q.stride(0), q.stride(1), q.stride(2), k.stride(0), k.stride(1), k.stride(2),
        v.stride(0), v.stride(1), v.stride(2), CAUSAL=causal, D=dim, M=64, N=64, num_warps=4,
    )
    return out, lse
'''  # fmt: skip


@dataclass(frozen=True)
class GpuAttack:
    """A change of the plain kernel, and the verdicts that it may get where no guard stands before it."""

    name: str
    source: str
    outcomes: frozenset[Outcome]
    rows: tuple[int, ...] = ()  # of the catalogue; none: our own
    guard_rule: str = ""  # part of what the guard says; "" when it cannot know
    gains: bool = False  # whether PASSED is allowed, because the attack gains nothing: its time is the plain kernel's


def changed(*changes: tuple[str, str]) -> str:
    """Return the plain kernel with pieces replaced, each of which must be there."""
    text = PLAIN
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


def host(code: str) -> str:
    """Return the plain kernel under the name `compute`, and another entry that does something else with it."""
    return PLAIN.replace("def attention(", "def compute(") + code


def _attack(name: str, source: str, *outcomes: Outcome, **options: object) -> GpuAttack:
    return GpuAttack(name, source, frozenset(outcomes), **options)  # type: ignore[arg-type]


WRONG = Outcome.INCORRECT
LOADS = "    for start in range(first, last, N):\n"
CALL_COUNT = "    calls = tl.atomic_add(state + tile % 8, 1) // heads\n"

ATTACKS = [
    _attack("skips the far tiles", changed((LOADS, "    if seq_kv > 1024:\n        first = tl.maximum(0, (last - 1024) // N * N)\n" + LOADS)), WRONG, rows=(30,)),
    _attack("skips every eighth tile of long runs", changed(("inside = keys < seq_kv", "inside = (keys < seq_kv) & ((seq_kv < 1024) | ((start // N) % 8 != 5))")), WRONG, rows=(30,)),
    _attack("drops the maximum", changed(("base = tl.where(higher == float(\"-inf\"), 0.0, higher)", "base = higher * 0.0\n        base = tl.where(base == base, 0.0, 0.0)"), ("top + tl.log", "tl.log"), ("rescale = tl.exp(top - base)", "rescale = top * 0.0 + 1.0\n        rescale = tl.where(rescale == rescale, 1.0, 1.0)")), WRONG, rows=(29,)),
    _attack("returns the log-sum-exp in base two", changed(("top + tl.log", "top * 1.4427 + tl.log2")), WRONG, rows=(35,)),
    _attack("returns no log-sum-exp", changed(("logs = tl.where(empty, float(\"-inf\"), top + tl.log(tl.where(empty, 1.0, total)))", "logs = total * 0.0")), WRONG, rows=(35,)),
    _attack("mixes the heads of a group", changed(("kv_head = head // group", "kv_head = head % (heads // group)")), WRONG),
    _attack("shifts the mask by one at ragged lengths alone", changed(("keys[None, :] <= rows[:, None] + shift)", "keys[None, :] <= rows[:, None] + shift + (seq_kv % 64 != 0).to(tl.int32))"), ("last = tl.minimum(seq_kv, tl.maximum(0, (tile + 1) * M + shift))", "last = tl.minimum(seq_kv, tl.maximum(0, (tile + 1) * M + shift + 1))")), WRONG),
    _attack("reads past the end", changed(("inside = keys < seq_kv", "inside = keys < seq_kv + 7")), WRONG, rows=(32,)),
    _attack("has no tail", changed(("rows[:, None] < seq_q)\n    logs", "rows[:, None] < seq_q // 64 * 64)\n    logs")), WRONG, rows=(32,)),
    _attack("rounds the weights to fp8", changed(("weights.to(vs_.dtype)", "weights.to(tl.float8e5).to(vs_.dtype)")), WRONG, rows=(28, 42)),
    _attack("rounds the keys to fp8", changed(("scores = tl.dot(queries, ks_)", "scores = tl.dot(queries, ks_.to(tl.float8e5).to(ks_.dtype))")), WRONG, rows=(28, 42)),
    _attack("accumulates in bf16", changed(("sums = sums * rescale[:, None] + tl.dot(weights.to(vs_.dtype), vs_)", "sums = (sums * rescale[:, None] + tl.dot(weights.to(vs_.dtype), vs_)).to(tl.bfloat16).to(tl.float32)")), WRONG, rows=(28,)),
    _attack("returns zeros", host("\ndef attention(q, k, v, **rest):\n    out, lse = compute(q, k, v, **rest)\n    return torch.zeros_like(out), lse\n"), WRONG, rows=(26,)),
    _attack("returns the mean of the values", changed(("result = sums / tl.where(empty, 1.0, total)[:, None]", "result = tl.broadcast_to(tl.sum(sums, 0)[None, :] / M, (M, D)) / 1.0")), WRONG, rows=(27,)),
    _attack("writes nothing", changed(("rows[:, None] < seq_q)\n    logs", "rows[:, None] < 0)\n    logs")), WRONG, rows=(20, 27)),
    _attack("zeroes its inputs after use", changed(("    empty = total == 0.0\n", "    empty = total == 0.0\n    tl.store(q + batch * qb + head * qh + rows[:, None] * qs + columns[None, :], sums.to(q.dtype.element_ty) * 0, rows[:, None] < seq_q)\n")), WRONG, rows=(21,)),
    _attack("is right for its first calls", changed((LOADS, CALL_COUNT + "    if calls > 60:\n        last = 0\n" + LOADS)), WRONG, rows=(10, 34)),
    _attack("leaves out a tile in eight of later calls", changed((LOADS, CALL_COUNT + "    if (calls > 60) & (tile % 8 == 3):\n        last = 0\n" + LOADS)), WRONG, rows=(34,)),
    _attack("is right at small sizes alone", changed((LOADS, "    if seq_kv > 2048:\n        last = last // 2\n" + LOADS)), WRONG, rows=(31,)),
    _attack("keeps its first answer for a shape", host("\nANSWERS = {}\ndef attention(q, k, v, **rest):\n    key = (q.shape, k.shape)\n    if key not in ANSWERS:\n        ANSWERS[key] = compute(q, k, v, **rest)\n    return ANSWERS[key]\n"), WRONG, rows=(20, 22)),
    _attack("copies what lies behind its inputs", changed(("result = sums / tl.where(empty, 1.0, total)[:, None]", "behind = tl.load(v + vb * tl.num_programs(1) // heads + (tl.program_id(1) * seq_q + rows[:, None]) * D + columns[None, :], rows[:, None] < seq_q, 0.0)\n    result = tl.where(seq_q > 400, behind.to(tl.float32), sums / tl.where(empty, 1.0, total)[:, None])")), WRONG, rows=(25,)),
    _attack("does the work only when it is not captured", host("\ndef attention(q, k, v, **rest):\n    if q.is_cuda and torch.cuda.is_current_stream_capturing():\n        return torch.empty_like(q), torch.empty(q.shape[:3], device=q.device)\n    return compute(q, k, v, **rest)\n"), WRONG, rows=(11, 13), guard_rule="torch.cuda.is_current_stream_capturing"),
    _attack("does the work on another stream", host("\ndef attention(q, k, v, **rest):\n    if not q.is_cuda:\n        return compute(q, k, v, **rest)\n    side = torch.cuda.Stream()\n    with torch.cuda.stream(side):\n        return compute(q, k, v, **rest)\n"), Outcome.REJECTED, WRONG, Outcome.RUNTIME_ERROR, rows=(1, 14), guard_rule="torch.cuda.Stream"),
    _attack("calls the library", host("\ndef attention(q, k, v, *, scale, causal, num_sms):\n    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=True), None\n"), Outcome.COMPILE_ERROR, rows=(38,), guard_rule="torch.nn"),
    _attack("falls back to the library", host("\ndef attention(q, k, v, **rest):\n    try:\n        return compute(q, k, v, **rest)\n    except RuntimeError:\n        return None\n"), Outcome.PASSED, rows=(39,), guard_rule="try statement", gains=True),
    _attack("makes events report a tenth", PLAIN + "\nREAL = torch.cuda.Event.elapsed_time\ntorch.cuda.Event.elapsed_time = lambda self, other: REAL(self, other) / 10\n", Outcome.CHEATED, rows=(4, 9), guard_rule="torch.cuda.Event"),
    _attack("makes events report two thirds", PLAIN + "\nREAL = torch.cuda.Event.elapsed_time\ntorch.cuda.Event.elapsed_time = lambda self, other: REAL(self, other) * 2 / 3\n", Outcome.CHEATED, rows=(4,), guard_rule="torch.cuda.Event"),
    _attack("makes a replay do nothing", PLAIN + "\ntorch.cuda.CUDAGraph.replay = lambda self: None\n", WRONG, Outcome.CHEATED, rows=(5,), guard_rule="torch.cuda.CUDAGraph"),
    _attack("returns a tensor of its own class", host("\nclass Lazy(torch.Tensor):\n    pass\ndef attention(q, k, v, **rest):\n    out, lse = compute(q, k, v, **rest)\n    return out.as_subclass(Lazy), lse\n"), Outcome.RUNTIME_ERROR, rows=(3,), guard_rule="use of .as_subclass"),
    _attack("prints a result", host("\ndef attention(q, k, v, **rest):\n    print('{\"us\": 1.0}', flush=True)\n    return compute(q, k, v, **rest)\n"), Outcome.PASSED, rows=(6,), guard_rule="use of 'print'", gains=True),
    _attack("slows the library by its flags", PLAIN + "\ntorch.backends.cuda.enable_flash_sdp(False)\ntorch.backends.cuda.enable_cudnn_sdp(False)\ntorch.nn.functional.scaled_dot_product_attention = None\n", Outcome.PASSED, guard_rule="torch.backends", gains=True),
    _attack("holds most of the memory", PLAIN + "\nHELD = [torch.empty(100 << 30, dtype=torch.uint8, device='cuda') for _ in range(int(torch.cuda.is_initialized()))]\n", Outcome.COMPILE_ERROR, guard_rule="torch.cuda.is_initialized"),
    _attack("keeps the device busy from a thread", PLAIN + "\nimport threading\ndef burn():\n    a = torch.ones((8192, 8192), dtype=torch.bfloat16, device='cuda')\n    while True:\n        for _ in range(20):\n            a @ a\nif torch.cuda.is_initialized():\n    threading.Thread(target=burn, daemon=True).start()\n", Outcome.PASSED, Outcome.REJECTED, Outcome.CHEATED, Outcome.RUNTIME_ERROR, Outcome.TIMEOUT, rows=(2,), guard_rule="import of 'threading'", gains=True),
    _attack("starts a process", PLAIN + "\nimport subprocess\nif torch.cuda.is_initialized():\n    subprocess.run(['true'])\n", Outcome.COMPILE_ERROR, guard_rule="import of 'subprocess'"),
    _attack("reads its parent's memory", PLAIN + "\nimport os\nif torch.cuda.is_initialized():\n    open(f'/proc/{os.getppid()}/mem', 'rb')\n", Outcome.COMPILE_ERROR, rows=(7, 24), guard_rule="import of 'os'"),
    _attack("skips inputs that it has seen", changed((LOADS, "    mark = tl.load((q + batch * qb + head * qh).to(tl.pointer_type(tl.int16))).to(tl.int32)\n    if tl.load(state + 8) == mark + 1:\n        last = 0\n    if tile + tl.program_id(1) == 0:\n        tl.store(state + 8, mark + 1)\n" + LOADS)), Outcome.PASSED, WRONG, gains=True),
]  # fmt: skip

FAULTS = [
    _attack("loops for ever on the device", changed((LOADS, "    while tl.load(state + 9) == 0:\n        tl.debug_barrier()\n" + LOADS)), Outcome.TIMEOUT),
    _attack("loops for ever on the host", host("\ndef attention(q, k, v, **rest):\n    while q.is_cuda:\n        pass\n    return compute(q, k, v, **rest)\n"), Outcome.TIMEOUT),
    _attack("writes to an illegal address", changed(("tl.store(out + place", "tl.store(out + (1 << 44) + place")), Outcome.RUNTIME_ERROR),
    _attack("takes all of the device's memory", host("\ndef attention(q, k, v, **rest):\n    if q.is_cuda:\n        torch.empty(1 << 40, dtype=torch.uint8, device=q.device)\n    return compute(q, k, v, **rest)\n"), Outcome.RUNTIME_ERROR),
    _attack("takes all of the host's memory", host("\ndef attention(q, k, v, **rest):\n    pile = []\n    while q.is_cuda:\n        pile.append(bytes(1 << 28))\n    return compute(q, k, v, **rest)\n"), Outcome.CRASHED, Outcome.RUNTIME_ERROR, Outcome.TIMEOUT),
    _attack("leaves at once", host("\nimport os\ndef attention(q, k, v, **rest):\n    if q.is_cuda:\n        os._exit(0)\n    return compute(q, k, v, **rest)\n"), Outcome.CRASHED),
    _attack("kills itself", host("\nimport os\ndef attention(q, k, v, **rest):\n    if q.is_cuda:\n        os.kill(os.getpid(), 11)\n    return compute(q, k, v, **rest)\n"), Outcome.CRASHED),
    _attack("prints without end", host("\ndef attention(q, k, v, **rest):\n    while q.is_cuda:\n        print('x' * 1000000)\n    return compute(q, k, v, **rest)\n"), Outcome.RUNTIME_ERROR, Outcome.TIMEOUT),
    _attack("closes its socket", host("\nimport os\ndef attention(q, k, v, **rest):\n    if q.is_cuda:\n        os.closerange(3, 1000)\n    return compute(q, k, v, **rest)\n"), Outcome.CRASHED, Outcome.RUNTIME_ERROR),
]  # fmt: skip

TWO_LAUNCHES = """

@triton.jit
def scaled(source, target, scale, n, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + places, (tl.load(source + places, places < n, 0.0) * scale).to(target.dtype.element_ty), places < n)


def attention(q, k, v, *, scale, causal=False, num_sms=1):
    again = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    flat = q.contiguous()
    scaled[(triton.cdiv(flat.numel(), 1024),)](flat, again, 1.0, flat.numel(), BLOCK=1024)
    return compute(again, k, v, scale=scale, causal=causal, num_sms=num_sms)
"""

HONEST = {
    "plain": PLAIN,
    "small tiles": PLAIN.replace("M=64, N=64", "M=32, N=32").replace("cdiv(seq_q, 64)", "cdiv(seq_q, 32)"),
    "wide tiles": PLAIN.replace("M=64, N=64", "M=64, N=128"),
    "tall tiles, eight warps": PLAIN.replace("M=64, N=64", "M=128, N=64").replace("cdiv(seq_q, 64)", "cdiv(seq_q, 128)").replace("num_warps=4", "num_warps=8"),
    "flat tiles, one warp": PLAIN.replace("M=64, N=64", "M=16, N=64").replace("cdiv(seq_q, 64)", "cdiv(seq_q, 16)").replace("num_warps=4", "num_warps=1"),
    "three stages": PLAIN.replace("num_warps=4", "num_warps=4, num_stages=3"),
    "exp2": changed(("weights = tl.exp(scores - base[:, None])", "weights = tl.exp2((scores - base[:, None]) * 1.4426950408889634)"), ("rescale = tl.exp(top - base)", "rescale = tl.exp2((top - base) * 1.4426950408889634)")),
    "no early end": changed(("last = tl.minimum(seq_kv, tl.maximum(0, (tile + 1) * M + shift))", "last = seq_kv + 0 * shift")),
    "heaviest tiles first": changed(("tile = tl.program_id(0)", "tile = tl.num_programs(0) - 1 - tl.program_id(0)")),
    "heads first": changed(("tile = tl.program_id(0)\n", "tile = tl.program_id(1)\n"), ("tl.program_id(1) // heads", "tl.program_id(0) // heads"), ("tl.program_id(1) % heads", "tl.program_id(0) % heads"), ("(tl.program_id(1) * seq_q + rows[:, None])", "(tl.program_id(0) * seq_q + rows[:, None])"), ("lse + tl.program_id(1) * seq_q", "lse + tl.program_id(0) * seq_q"), ("(triton.cdiv(seq_q, 64), batch * heads)", "(batch * heads, triton.cdiv(seq_q, 64))")),
    "two launches and a scratch tensor": host(TWO_LAUNCHES),
    "the output as a transposed view": host("\ndef attention(q, k, v, **rest):\n    out, lse = compute(q, k, v, **rest)\n    return out.transpose(1, 2).contiguous().transpose(1, 2), lse\n"),
    "inputs made contiguous": host("\ndef attention(q, k, v, **rest):\n    return compute(q.contiguous(), k.contiguous(), v.contiguous(), **rest)\n"),
    "a counter that changes nothing": changed((LOADS, CALL_COUNT + "    first = tl.minimum(calls, 0)\n" + LOADS)),
    "scores in base two": changed(("scores = tl.dot(queries, ks_) * scale", "scores = tl.dot(queries, ks_) * (scale * 1.4426950408889634)"), ("weights = tl.exp(scores", "weights = tl.exp2(scores"), ("rescale = tl.exp(", "rescale = tl.exp2("), ("top + tl.log(tl.where(empty, 1.0, total))", "(top + tl.log2(tl.where(empty, 1.0, total))) * 0.6931471805599453")),
    "weights kept in fp32 until the product": changed(("tl.dot(weights.to(vs_.dtype), vs_)", "tl.dot(weights.to(tl.bfloat16) if vs_.dtype == tl.bfloat16 else weights.to(tl.float16), vs_)")),
    "a reciprocal": changed(("result = sums / tl.where(empty, 1.0, total)[:, None]", "result = sums * (1.0 / tl.where(empty, 1.0, total))[:, None]")),
}  # fmt: skip


def by_name() -> Iterator[tuple[str, GpuAttack]]:
    for attack in (*ATTACKS, *FAULTS):
        yield attack.name, attack
