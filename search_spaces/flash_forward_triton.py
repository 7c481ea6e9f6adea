"""FlashAttention forward in portable Triton: sm_80 and later, AMD by compilation.

q_outer is FlashAttention-2 (arXiv 2307.08691, algorithm 1): a query tile stays, keys and values stream past.
kv_outer is FlashAttention (arXiv 2205.14135, algorithm 1): keys and values stay, query tiles stream past,
their output, maximum and sum live in global memory. Sawtooth direction: arXiv 2601.16032.
"""

# fmt: off
SPACE = {
    "op": "forward",
    "backend": "triton",
    "knobs": {
        "loop_order": ["q_outer", "kv_outer"],
        "block_m": [16, 32, 64, 128, 256],
        "block_n": [16, 32, 64, 128, 256],
        "num_warps": [1, 2, 4, 8, 16],
        "num_stages": [1, 2, 3, 4],
        "loads": ["pointers", "descriptors"],
        "mask_loop": ["split", "always", "branch"],
        "kv_direction": ["natural", "reverse", "sawtooth"],
        "grid_order": ["longest_first", "head_first", "block_first"],
        "group_heads": [1, 2, 4, 8, 16, 32],
        "dies": [1, 2, 4, 8],
        "persistent": ["off", "stride", "snake"],
        "programs_per_sm": [1, 2, 3],
        "exponential": ["exp2", "exp"],
        "rescale": ["always", "moved", "threshold"],
    },
    "conditions": {
        # kv_outer synchronises in its loop, which the compiler therefore does not pipeline.
        "num_stages": "loop_order == 'q_outer'",
        "loads": "loop_order == 'q_outer'",
        "mask_loop": "loop_order == 'q_outer'",
        "kv_direction": "loop_order == 'q_outer'",
        "grid_order": "loop_order == 'q_outer'",
        "group_heads": "loop_order == 'q_outer' and grid_order == 'longest_first'",
        "dies": "loop_order == 'q_outer'",
        "persistent": "loop_order == 'q_outer'",
        "programs_per_sm": "loop_order == 'q_outer' and persistent != 'off'",
        "rescale": "loop_order == 'q_outer'",
    },
    # The head dim is padded to a power of two; these sums take 64 for anything smaller. Shared memory is
    # bounded from below, after compiled binaries: what is refused cannot launch, what passes is judged once
    # compiled.
    "constraints": {
        "arch >= 900 or 32 * num_warps * (min(256, 2048 // num_warps) - 64) >= block_m * (block_n"
        " + (64 if head_dim <= 64 else 128 if head_dim <= 128 else 256 if head_dim <= 256 else 512))":
            "the score and output tiles need more registers than a thread has beside 64 for all else",
        "arch < 900 or 64 * num_warps * (min(512, 2048 // num_warps) - 64) >= block_m * (block_n"
        " + (64 if head_dim <= 64 else 128 if head_dim <= 128 else 256 if head_dim <= 256 else 512))":
            "the score and output tiles need more registers than an AMD lane has beside 64 for all else",
        "arch >= 900 or loads == 'descriptors' or num_stages > 1 or 16384 * num_warps >= dtype_bytes * block_n"
        " * (64 if head_dim <= 64 else 128 if head_dim <= 128 else 256 if head_dim <= 256 else 512)":
            "a block of keys that is not prefetched passes through registers and would fill over half of them",
        "block_m * block_n >= (32 if dtype == 'fp32' else 128) * num_warps":
            "too few scores for so many warps: some would repeat others' work",
        "arch != 90 or block_m < 64 or num_warps >= 4 or dtype == 'fp32'":
            "Hopper's matrix instruction needs four warps",
        "arch != 90 or block_m < 64 or dtype == 'fp32' or loop_order == 'kv_outer'"
        " or shared_bytes >= dtype_bytes * (block_m + (2 * num_stages if num_stages > 1 else 1) * block_n)"
        " * (64 if head_dim <= 64 else 128 if head_dim <= 128 else 256 if head_dim <= 256 else 512)":
            "the query tile and num_stages blocks of keys and values exceed shared memory",
        "arch >= 900 or loop_order == 'kv_outer' or shared_bytes >= dtype_bytes"
        " * ((block_m if loads == 'pointers' else 0) + max(2 * num_stages - 2, 1) * block_n)"
        " * (64 if head_dim <= 64 else 128 if head_dim <= 128 else 256 if head_dim <= 256 else 512)":
            "the query tile and the blocks of keys and values in flight exceed shared memory",
        "arch != 90 or block_m < 64 or dtype == 'fp32' or loop_order == 'q_outer'"
        " or shared_bytes >= dtype_bytes * (2 * block_n + block_m)"
        " * (64 if head_dim <= 64 else 128 if head_dim <= 128 else 256 if head_dim <= 256 else 512)":
            "keys, values and the query tile exceed shared memory",
        "arch < 900 and loop_order == 'q_outer' or shared_bytes >= dtype_bytes * max(block_m, block_n)"
        " * (64 if head_dim <= 64 else 128 if head_dim <= 128 else 256 if head_dim <= 256 else 512)":
            "the query tile or a block of keys exceeds shared memory",
        "dtype != 'fp32' or arch == 0 or arch >= 900 or 16384 * num_warps >= block_m * block_n"
        " * (64 if head_dim <= 64 else 128 if head_dim <= 128 else 256 if head_dim <= 256 else 512)":
            "exact float32 products run on the scalar units, and their operands would not fit the registers",
        "loads == 'pointers' or arch in (0, 90, 100, 120)":
            "descriptors need a tensor memory unit: sm_90 and later",
    },
}
# fmt: on

KNOBS = {
    "loop_order": "q_outer",
    "block_m": 128,
    "block_n": 64,
    "num_warps": 8,
    "num_stages": 2,
    "loads": "pointers",
    "mask_loop": "split",
    "kv_direction": "natural",
    "grid_order": "longest_first",
    "group_heads": 1,
    "dies": 1,
    "persistent": "off",
    "programs_per_sm": 1,
    "exponential": "exp2",
    "rescale": "always",
}

# ---- kernel ----
import math

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from search_spaces.lib.attention_slots import block_range, modify_scores, visible
from search_spaces.lib.grid_orders import tile_at, tile_of_round
from search_spaces.lib.online_softmax import softmax_end, softmax_step


@triton.jit
def load_masked(pointers, inside, dims, CHECK: tl.constexpr, PADDED: tl.constexpr):
    """Load a tile, with zeros outside: NaN may lie there, and 0 * NaN would reach the output."""
    if CHECK and PADDED:
        return tl.load(pointers, mask=inside & dims, other=0.0)
    if CHECK:
        return tl.load(pointers, mask=inside, other=0.0)
    if PADDED:
        return tl.load(pointers, mask=dims, other=0.0)
    return tl.load(pointers)


@triton.jit
def load_rows(
    source, batch, head, start, stride, end, ROWS: tl.constexpr, D: tl.constexpr, HEAD_DIM: tl.constexpr,
    DESCRIPTORS: tl.constexpr, TRANSPOSED: tl.constexpr, CHECK: tl.constexpr,
):  # fmt: skip
    """Load rows start.. of one head as [ROWS, D], or as [D, ROWS], transposed by the order of the pointers.

    `source` is a descriptor of the whole tensor, or a pointer to this head.
    """
    if DESCRIPTORS:
        tile = source.load([batch, head, start, 0]).reshape(ROWS, D)
        if TRANSPOSED:
            tile = tile.T
    else:
        # The start is 64 bits wide and uniform; only the offset inside the tile is a 32-bit vector.
        first = source + start * stride
        rows = tl.arange(0, ROWS)
        dims = tl.arange(0, D)
        if TRANSPOSED:
            rows = rows[None, :]
            dims = dims[:, None]
        else:
            rows = rows[:, None]
            dims = dims[None, :]
        pointers = first + (rows * stride.to(tl.int32) + dims)
        tile = load_masked(pointers, rows < end - start, dims < HEAD_DIM, CHECK, D != HEAD_DIM)
    return tile


@triton.jit
def attend_span(
    acc, m_i, l_i, q, K, V, batch, kv_head, row, first, step, count, first_full, end_full, low, high, seq_kv,
    stride_k, stride_v, scale, softcap, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr,
    HEAD_DIM: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, SOFTCAP: tl.constexpr,
    DESCRIPTORS: tl.constexpr, MASK: tl.constexpr, EXP: tl.constexpr, RESCALE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Fold `count` blocks of keys, from block `first` on in the given direction, into one query tile."""
    CHECK: tl.constexpr = MASK != "never"
    rows = row + tl.arange(0, BLOCK_M)
    keys = tl.arange(0, BLOCK_N)
    for i in range(0, count):
        block = first + i * step
        start = block * BLOCK_N
        kt = load_rows(K, batch, kv_head, start, stride_k, seq_kv, BLOCK_N, D, HEAD_DIM, DESCRIPTORS, True, CHECK)
        s = tl.dot(q, kt, input_precision=PRECISION)
        s, factor = modify_scores(s, scale, softcap, SOFTCAP)
        if MASK == "always":
            seen = visible(rows[:, None], (start + keys)[None, :], low, high, seq_kv, LEFT, RIGHT)
            s = tl.where(seen, s, float("-inf"))
        elif MASK == "branch":
            if (block < first_full) | (block >= end_full):
                seen = visible(rows[:, None], (start + keys)[None, :], low, high, seq_kv, LEFT, RIGHT)
                s = tl.where(seen, s, float("-inf"))
        p, acc, m_i, l_i = softmax_step(s, factor, acc, m_i, l_i, EXP, CHECK, RESCALE)
        v = load_rows(V, batch, kv_head, start, stride_v, seq_kv, BLOCK_N, D, HEAD_DIM, DESCRIPTORS, False, CHECK)
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
    return acc, m_i, l_i


@triton.jit
def store_tile(
    OUT, LSE, out, lse, batch_head, row, seq_q, BLOCK_M: tl.constexpr, D: tl.constexpr, HEAD_DIM: tl.constexpr
):
    """Store a tile of the output and its lse; both are contiguous."""
    rows = row + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, D)
    first = batch_head.to(tl.int64) * seq_q + row
    inside = rows < seq_q
    tl.store(LSE + first + tl.arange(0, BLOCK_M), lse, mask=inside)
    pointers = OUT + first * HEAD_DIM + (tl.arange(0, BLOCK_M)[:, None] * HEAD_DIM + dims[None, :])
    tl.store(pointers, out.to(OUT.dtype.element_ty), mask=inside[:, None] & (dims < HEAD_DIM)[None, :])


# Lengths and strides stay runtime values, one binary for all. Strides come in units of MULTIPLE elements, all
# that the compiler must know of them for wide loads (triton drops tl.multiple_of on a kernel's argument).
RUNTIME = ["heads", "group", "seq_q", "seq_kv", "left", "right"]
STRIDES = [f"stride_{tensor}{axis}" for tensor in "qkv" for axis in "bhs"]


@triton.jit
def attend_tile(
    tile, batch_head, Q, K, V, OUT, LSE, heads, group, seq_q, seq_kv, left, right, stride_qb, stride_qh,
    stride_qs, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs, scale, softcap,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr, HEAD_DIM: tl.constexpr, LEFT: tl.constexpr,
    RIGHT: tl.constexpr, SOFTCAP: tl.constexpr, DESCRIPTORS: tl.constexpr, MASK_LOOP: tl.constexpr,
    DIRECTION: tl.constexpr, EXP: tl.constexpr, RESCALE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute one query tile of one head."""
    row = tile * BLOCK_M
    batch = batch_head // heads
    head = batch_head % heads
    kv_head = head // group
    if not DESCRIPTORS:
        Q += batch * stride_qb + head * stride_qh
        K += batch * stride_kb + kv_head * stride_kh
        V += batch * stride_vb + kv_head * stride_vh
    q = load_rows(Q, batch, head, row, stride_qs, seq_q, BLOCK_M, D, HEAD_DIM, DESCRIPTORS, False, True)

    low = seq_kv - seq_q - left
    high = seq_kv - seq_q + right
    first, first_full, end_full, end = block_range(row, low, high, seq_kv, BLOCK_M, BLOCK_N, LEFT, RIGHT)
    if DIRECTION == "sawtooth":
        back = tile % 2
    else:
        back = 1 if DIRECTION == "reverse" else 0
    step = 1 - 2 * back

    acc = tl.zeros([BLOCK_M, D], tl.float32)
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    if MASK_LOOP == "split":
        # Masked, full, masked, in the order of travel: the two edges change places when travelling back.
        if LEFT or DIRECTION != "natural":
            near = first + back * (end_full - first)
            far = first_full + back * (end - first_full)
            acc, m_i, l_i = attend_span(
                acc, m_i, l_i, q, K, V, batch, kv_head, row, near + back * (far - 1 - near), step, far - near,
                first_full, end_full, low, high, seq_kv, stride_ks, stride_vs, scale, softcap, BLOCK_M,
                BLOCK_N, D, HEAD_DIM, LEFT, RIGHT, SOFTCAP, DESCRIPTORS, "always", EXP, RESCALE, PRECISION,
            )  # fmt: skip
        acc, m_i, l_i = attend_span(
            acc, m_i, l_i, q, K, V, batch, kv_head, row, first_full + back * (end_full - 1 - first_full),
            step, end_full - first_full, first_full, end_full, low, high, seq_kv, stride_ks, stride_vs, scale,
            softcap, BLOCK_M, BLOCK_N, D, HEAD_DIM, LEFT, RIGHT, SOFTCAP, DESCRIPTORS, "never", EXP, RESCALE,
            PRECISION,
        )  # fmt: skip
        if LEFT or DIRECTION != "reverse":
            near = end_full + back * (first - end_full)
            far = end + back * (first_full - end)
            acc, m_i, l_i = attend_span(
                acc, m_i, l_i, q, K, V, batch, kv_head, row, near + back * (far - 1 - near), step, far - near,
                first_full, end_full, low, high, seq_kv, stride_ks, stride_vs, scale, softcap, BLOCK_M,
                BLOCK_N, D, HEAD_DIM, LEFT, RIGHT, SOFTCAP, DESCRIPTORS, "always", EXP, RESCALE, PRECISION,
            )  # fmt: skip
    else:
        acc, m_i, l_i = attend_span(
            acc, m_i, l_i, q, K, V, batch, kv_head, row, first + back * (end - 1 - first), step, end - first,
            first_full, end_full, low, high, seq_kv, stride_ks, stride_vs, scale, softcap, BLOCK_M, BLOCK_N,
            D, HEAD_DIM, LEFT, RIGHT, SOFTCAP, DESCRIPTORS, MASK_LOOP, EXP, RESCALE, PRECISION,
        )  # fmt: skip
    out, lse = softmax_end(acc, m_i, l_i, EXP)
    store_tile(OUT, LSE, out, lse, batch_head, row, seq_q, BLOCK_M, D, HEAD_DIM)


@triton.jit(do_not_specialize=["batch_heads", *RUNTIME, *STRIDES])
def flash_forward_q_outer(
    Q, K, V, OUT, LSE, scale, softcap, batch_heads: tl.int32, heads: tl.int32, group: tl.int32,
    seq_q: tl.int32, seq_kv: tl.int32, left: tl.int32, right: tl.int32, stride_qb: tl.int64,
    stride_qh: tl.int64, stride_qs: tl.int64, stride_kb: tl.int64, stride_kh: tl.int64, stride_ks: tl.int64,
    stride_vb: tl.int64, stride_vh: tl.int64, stride_vs: tl.int64, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, D: tl.constexpr, HEAD_DIM: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    SOFTCAP: tl.constexpr, MULTIPLE: tl.constexpr, DESCRIPTORS: tl.constexpr, MASK_LOOP: tl.constexpr,
    DIRECTION: tl.constexpr, ORDER: tl.constexpr, GROUP_HEADS: tl.constexpr, DIES: tl.constexpr,
    PERSISTENT: tl.constexpr, EXP: tl.constexpr, RESCALE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Query tiles stay, keys and values stream past: one tile a program, or all shared out to workers."""
    stride_qb *= MULTIPLE
    stride_qh *= MULTIPLE
    stride_qs *= MULTIPLE
    stride_kb *= MULTIPLE
    stride_kh *= MULTIPLE
    stride_ks *= MULTIPLE
    stride_vb *= MULTIPLE
    stride_vh *= MULTIPLE
    stride_vs *= MULTIPLE
    tiles = tl.cdiv(seq_q, BLOCK_M)
    worker = tl.program_id(0)
    if PERSISTENT == "off":
        tile, batch_head = tile_at(worker, tiles, batch_heads, ORDER, GROUP_HEADS, DIES)
        attend_tile(
            tile, batch_head, Q, K, V, OUT, LSE, heads, group, seq_q, seq_kv, left, right, stride_qb,
            stride_qh, stride_qs, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs, scale,
            softcap, BLOCK_M, BLOCK_N, D, HEAD_DIM, LEFT, RIGHT, SOFTCAP, DESCRIPTORS, MASK_LOOP, DIRECTION,
            EXP, RESCALE, PRECISION,
        )  # fmt: skip
    else:
        workers = tl.num_programs(0)
        total = tiles * batch_heads
        for turn in range(0, tl.cdiv(total, workers)):
            index = tile_of_round(worker, turn, workers, PERSISTENT == "snake")
            if index < total:
                tile, batch_head = tile_at(index, tiles, batch_heads, ORDER, GROUP_HEADS, DIES)
                attend_tile(
                    tile, batch_head, Q, K, V, OUT, LSE, heads, group, seq_q, seq_kv, left, right, stride_qb,
                    stride_qh, stride_qs, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
                    scale, softcap, BLOCK_M, BLOCK_N, D, HEAD_DIM, LEFT, RIGHT, SOFTCAP, DESCRIPTORS,
                    MASK_LOOP, DIRECTION, EXP, RESCALE, PRECISION,
                )  # fmt: skip


@triton.jit(do_not_specialize=RUNTIME + STRIDES)
def flash_forward_kv_outer(
    Q, K, V, ACC, MAX, SUM, scale, softcap, heads: tl.int32, group: tl.int32, seq_q: tl.int32,
    seq_kv: tl.int32, left: tl.int32, right: tl.int32, stride_qb: tl.int64, stride_qh: tl.int64,
    stride_qs: tl.int64, stride_kb: tl.int64, stride_kh: tl.int64, stride_ks: tl.int64, stride_vb: tl.int64,
    stride_vh: tl.int64, stride_vs: tl.int64, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr,
    HEAD_DIM: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, SOFTCAP: tl.constexpr,
    MULTIPLE: tl.constexpr, EXP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Keys and values stay, query tiles stream past: one program a head, the state in ACC, MAX, SUM."""
    stride_qb *= MULTIPLE
    stride_qh *= MULTIPLE
    stride_qs *= MULTIPLE
    stride_kb *= MULTIPLE
    stride_kh *= MULTIPLE
    stride_ks *= MULTIPLE
    stride_vb *= MULTIPLE
    stride_vh *= MULTIPLE
    stride_vs *= MULTIPLE
    batch_head = tl.program_id(0)
    batch = batch_head // heads
    head = batch_head % heads
    Q += batch * stride_qb + head * stride_qh
    K += batch * stride_kb + head // group * stride_kh
    V += batch * stride_vb + head // group * stride_vh
    tiles = tl.cdiv(seq_q, BLOCK_M)
    low = seq_kv - seq_q - left
    high = seq_kv - seq_q + right
    rows = tl.arange(0, BLOCK_M)
    keys = tl.arange(0, BLOCK_N)
    cells = rows[:, None] * D + tl.arange(0, D)[None, :]
    padded_row = batch_head.to(tl.int64) * (tiles * BLOCK_M)  # the scratch has whole tiles and needs no masks

    for tile in range(0, tiles):
        here = padded_row + tile * BLOCK_M
        tl.store(ACC + here * D + cells, tl.zeros([BLOCK_M, D], tl.float32))
        tl.store(MAX + here + rows, tl.full([BLOCK_M], float("-inf"), tl.float32))
        tl.store(SUM + here + rows, tl.zeros([BLOCK_M], tl.float32))
    tl.debug_barrier()  # what one thread has stored, another may load in the next round

    for block in range(0, tl.cdiv(seq_kv, BLOCK_N)):
        start = block * BLOCK_N
        kt = load_rows(K, 0, 0, start, stride_ks, seq_kv, BLOCK_N, D, HEAD_DIM, False, True, True)
        v = load_rows(V, 0, 0, start, stride_vs, seq_kv, BLOCK_N, D, HEAD_DIM, False, False, True)
        first_tile = 0
        end_tile = tiles
        if RIGHT:
            first_tile = tl.maximum(start - high, 0) // BLOCK_M
        if LEFT:
            end_tile = tl.minimum(tl.cdiv(tl.maximum(start + BLOCK_N - low, 0), BLOCK_M), tiles)
        for tile in range(first_tile, end_tile):
            row = tile * BLOCK_M
            here = padded_row + row
            q = load_rows(Q, 0, 0, row, stride_qs, seq_q, BLOCK_M, D, HEAD_DIM, False, False, True)
            s = tl.dot(q, kt, input_precision=PRECISION)
            s, factor = modify_scores(s, scale, softcap, SOFTCAP)
            seen = visible((row + rows)[:, None], (start + keys)[None, :], low, high, seq_kv, LEFT, RIGHT)
            s = tl.where(seen, s, float("-inf"))
            m_i = tl.load(MAX + here + rows)
            l_i = tl.load(SUM + here + rows)
            acc = tl.load(ACC + here * D + cells)
            p, acc, m_i, l_i = softmax_step(s, factor, acc, m_i, l_i, EXP, True, "always")
            acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
            tl.debug_barrier()  # several warps may load one row's state: none may store it before all have
            tl.store(MAX + here + rows, m_i)
            tl.store(SUM + here + rows, l_i)
            tl.store(ACC + here * D + cells, acc)
        tl.debug_barrier()


@triton.jit(do_not_specialize=["seq_q"])
def finish_kv_outer(
    ACC, MAX, SUM, OUT, LSE, seq_q: tl.int32, BLOCK_M: tl.constexpr, D: tl.constexpr, HEAD_DIM: tl.constexpr,
    EXP: tl.constexpr,
):  # fmt: skip
    """Normalise what kv_outer left in its scratch."""
    tiles = tl.cdiv(seq_q, BLOCK_M)
    tile = tl.program_id(0) % tiles
    batch_head = tl.program_id(0) // tiles
    rows = tl.arange(0, BLOCK_M)
    here = (batch_head.to(tl.int64) * tiles + tile) * BLOCK_M
    acc = tl.load(ACC + here * D + (rows[:, None] * D + tl.arange(0, D)[None, :]))
    out, lse = softmax_end(acc, tl.load(MAX + here + rows), tl.load(SUM + here + rows), EXP)
    store_tile(OUT, LSE, out, lse, batch_head, tile * BLOCK_M, seq_q, BLOCK_M, D, HEAD_DIM)


def descriptor(tensor, rows, dims):
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [1, 1, rows, dims])


def attention(q, k, v, *, scale, causal=False, window=None, softcap=None, num_sms=1):
    """Return (out, lse) of exact attention over tensors laid out as batch, heads, length, head dim."""
    batch, heads, seq_q, head_dim = q.shape
    kv_heads, seq_kv = k.shape[1], k.shape[2]
    if k.shape != v.shape or k.shape[0] != batch or k.shape[3] != head_dim or heads % kv_heads:
        raise ValueError(f"shapes do not fit: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}")
    if any(t.stride(3) != 1 for t in (q, k, v)):
        raise ValueError("the last dimension must be contiguous")
    if scale <= 0.0 or (softcap is not None and softcap <= 0.0):
        raise ValueError(f"scale and softcap must be positive, not {scale} and {softcap}")
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    if out.numel() == 0:
        return out, lse

    left, right = (-1, -1) if window is None else window
    right = 0 if causal else right
    unit = math.log2(math.e) if KNOBS["exponential"] == "exp2" else 1.0
    factor = scale * unit if softcap is None else 2.0 * scale / softcap * math.log2(math.e)
    block_m, block_n = KNOBS["block_m"], KNOBS["block_n"]
    padded_dim = max(16, triton.next_power_of_2(head_dim))
    vector = 16 // q.element_size()  # elements in the widest access
    strides = [t.stride(axis) for t in (q, k, v) for axis in range(3)]
    multiple = vector if all(stride % vector == 0 for stride in strides) else 1
    tiles = triton.cdiv(seq_q, block_m)
    longest = seq_q + seq_kv  # a wider window hides nothing more, and must not overflow
    runtime = [heads, heads // kv_heads, seq_q, seq_kv, min(left, longest), min(right, longest)]
    runtime += [stride // multiple for stride in strides]
    shape = dict(BLOCK_M=block_m, D=padded_dim, HEAD_DIM=head_dim, EXP=KNOBS["exponential"])
    variant = dict(
        BLOCK_N=block_n,
        LEFT=left >= 0,
        RIGHT=right >= 0,
        SOFTCAP=softcap is not None,
        MULTIPLE=multiple,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
    )
    launch = dict(num_warps=KNOBS["num_warps"], num_stages=KNOBS["num_stages"])
    cap = (softcap or 0.0) * unit

    if KNOBS["loop_order"] == "kv_outer":
        rows = batch * heads * tiles * block_m
        state = torch.empty(rows * (padded_dim + 2), dtype=torch.float32, device=q.device)
        acc, peak, total = state[2 * rows :], state[:rows], state[rows : 2 * rows]
        flash_forward_kv_outer[(batch * heads,)](
            q, k, v, acc, peak, total, factor, cap, *runtime, **shape, **variant, **launch
        )
        finish_kv_outer[(tiles * batch * heads,)](
            acc, peak, total, out, lse, seq_q, **shape, num_warps=KNOBS["num_warps"]
        )
        return out, lse

    # The tensor memory unit wants 16-byte strides and bases, and something to read; the rest takes pointers.
    descriptors = (
        KNOBS["loads"] == "descriptors"
        and multiple == vector
        and seq_kv > 0
        and min(strides) > 0
        and all(t.data_ptr() % 16 == 0 for t in (q, k, v))
    )
    sources = [q, k, v]
    if descriptors:
        sources = [descriptor(t, n, padded_dim) for t, n in ((q, block_m), (k, block_n), (v, block_n))]
    programs = tiles * batch * heads
    if KNOBS["persistent"] != "off":
        programs = min(programs, num_sms * KNOBS["programs_per_sm"])
    flash_forward_q_outer[(programs,)](
        *sources,
        out,
        lse,
        factor,
        cap,
        batch * heads,
        *runtime,
        **shape,
        **variant,
        **launch,
        DESCRIPTORS=descriptors,
        MASK_LOOP=KNOBS["mask_loop"],
        DIRECTION=KNOBS["kv_direction"],
        ORDER=KNOBS["grid_order"],
        GROUP_HEADS=KNOBS["group_heads"],
        DIES=KNOBS["dies"],
        PERSISTENT=KNOBS["persistent"],
        RESCALE=KNOBS["rescale"],
    )
    return out, lse
