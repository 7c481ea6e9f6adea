"""FlashAttention forward for Hopper in Gluon: a TMA producer warp feeds one to three consumer warpgroups.

After FlashAttention-3 (arXiv 2407.08608): warp specialization and ping-pong (section 3.1), overlap of the
next block's scores with this block's softmax inside a warpgroup (section 3.2). The precomputed schedule is
longest-processing-time-first over heads in groups that share the L2 cache.
"""

# fmt: off
SPACE = {
    "op": "forward",
    "backend": "triton",
    "knobs": {
        "consumers": [1, 2, 3],  # warpgroups of 64 query rows each
        "block_n": [32, 64, 128, 256],
        "stages": [1, 2, 3, 4],  # depth of the ring of K and V tiles
        "consumer_registers": [104, 152, 160, 216, 224, 232, 240],  # the first consumer takes what is left
        "producer_registers": [24, 32, 40],
        "ctas_per_sm": [1, 2],
        "overlap": [False, True],  # start the next block's scores before this block's softmax
        "schedule_fence": [False, True],  # keep ptxas from moving the wait for P @ V above the exponentials
        "ping_pong": [False, True],  # consumers issue their products in turn
        "mask_loop": ["branch", "split"],  # branch: one loop; split: masked and clear blocks apart
        "row_sum": ["plain", "spread"],  # spread: eight partial sums a row, added up after the last block
        "store": ["own_buffer", "q_buffer", "direct"],  # direct: from registers, without shared memory
        "grid": ["tiles", "persistent", "table"],
        "group_heads": [1, 2, 4, 8, 16, 32],  # heads whose tiles are mixed, longest first
    },
    "conditions": {
        "consumer_registers": "consumers > 1",
        "schedule_fence": "overlap",
        "ping_pong": "consumers > 1",
        "mask_loop": "causal",
    },
    "constraints": {
        "arch == 90": "warpgroup products and setmaxnreg are Hopper's",
        "head_dim in (64, 128, 256)": "tiles are powers of two; other head dimensions are not written",
        "dtype in ('fp16', 'bf16')": "the matrix unit takes 16-bit operands here",
        "dtype_bytes * head_dim * (consumers * (128 if store == 'own_buffer' else 64) + 2 * stages * block_n)"
        " + 1024 <= shared_bytes // ctas_per_sm":
            "Q, the ring of K and V, and the output's own buffer exceed shared memory",
        "max(head_dim, block_n) // 2 + 32 <= 65536 // (128 * (consumers + 1) * ctas_per_sm) // 8 * 8":
            "a product's accumulator does not fit the registers that a thread is launched with (ptxas C7602)",
        "consumers == 1 or consumers * consumer_registers + producer_registers"
        " <= 65536 // (128 * (consumers + 1) * ctas_per_sm) // 8 * 8 * (consumers + 1)":
            "setmaxnreg would wait for ever for registers that the SM does not have",
        "consumers == 1 or consumers * consumer_registers + producer_registers + 48"
        " >= 65536 // (128 * (consumers + 1) * ctas_per_sm) // 8 * 8 * (consumers + 1)":
            "registers left over serve only the first consumer",
        # Fitted to 600 compiled settings (triton 3.6, ptxas 12.8): what it admits spills at most 80 bytes.
        "(head_dim // 2 + block_n * 3 // 4 + 40 if overlap else (head_dim + block_n) * 9 // 16 + 32)"
        " <= (consumer_registers if consumers > 1 else 256 if ctas_per_sm == 1 else 232)":
            "output, scores and weights exceed a consumer's registers: it spills, and ptxas serialises products",
    },
}
# fmt: on

KNOBS = {
    "consumers": 2,
    "block_n": 64,
    "stages": 2,
    "consumer_registers": 240,
    "producer_registers": 24,
    "ctas_per_sm": 1,
    "overlap": True,
    "schedule_fence": True,
    "ping_pong": False,
    "mask_loop": "branch",
    "row_sum": "plain",
    "store": "q_buffer",
    "grid": "table",
    "group_heads": 4,
}

# ---- kernel ----
import functools
import heapq
import math

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (  # noqa: F401  the fragment's
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor  # noqa: F401  the fragment's

from search_spaces.lib.gluon_hopper import (
    arrive,
    fence_shared,
    finish_products,
    load_tile,
    make_barriers,
    start_product,
    store_tile,
    tile_descriptor,
    wait,
    wait_stores,
)

ROWS = 64  # query rows of one consumer: the height of one warpgroup product


@gluon.jit
def tile_of(position, m_tiles, all_heads, GROUP_HEADS: gl.constexpr):
    """Return (query tile, head) at a position of the order: group after group of heads, longest first."""
    first = position // (m_tiles * GROUP_HEADS) * GROUP_HEADS
    width = min(GROUP_HEADS, all_heads - first)
    rest = position % (m_tiles * GROUP_HEADS)
    return m_tiles - 1 - rest // width, first + rest % width


@gluon.jit
def block_range(
    m_tile, n_q, n_kv, upper, lower,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, RIGHT: gl.constexpr, LEFT: gl.constexpr,
):  # fmt: skip
    """Return the key blocks that a tile visits: at least one, so that no partition has a special case."""
    start = 0
    end = n_kv
    if RIGHT:
        end = min(max(min((m_tile + 1) * BLOCK_M, n_q) - 1 + upper, 1), n_kv)
    stop = (end + BLOCK_N - 1) // BLOCK_N
    if LEFT:
        start = min(max(m_tile * BLOCK_M + lower, 0) // BLOCK_N, stop - 1)
    return start, stop


@gluon.jit
def positions(table, tiles, TABLE: gl.constexpr):
    """Return this CTA's range of positions, or of entries in the table, which starts with offsets."""
    worker = gl.program_id(0)
    if TABLE:
        workers = gl.num_programs(0)
        return workers + 1 + gl.load(table + worker), workers + 1 + gl.load(table + worker + 1), 1
    else:
        return worker, tiles, gl.num_programs(0)


@gluon.jit
def hide(s, rows, columns, n_kv, upper, lower, RIGHT: gl.constexpr, LEFT: gl.constexpr):
    """Put -inf where a query may not look; the end of the keys is folded into one bound a row."""
    if RIGHT:
        visible = columns[None, :] < gl.minimum(rows + upper, n_kv)[:, None]
    else:
        visible = columns[None, :] < n_kv
    if LEFT:
        visible = visible & (columns[None, :] >= (rows + lower)[:, None])
    return gl.where(visible, s, -float("inf"))


@gluon.jit
def softmax_step(s, m, scale, GUARD: gl.constexpr):
    """Return weights, new row maxima, and the factor for what was summed up before."""
    m_new = gl.maximum(m, gl.max(s, 1) * scale)
    base = m_new
    if GUARD:  # a row that has seen no key yet: -inf - -inf is NaN
        base = gl.where(m_new == -float("inf"), 0.0, m_new)
    return gl.exp2(s * scale - base[:, None]), m_new, gl.exp2(m - base)


@gluon.jit
def row_sum(p, SPREAD: gl.constexpr):
    if SPREAD:  # eight neighbours a row lie in four threads: no shuffles
        return gl.sum(p.reshape([p.shape[0], p.shape[1] // 8, 8]), 1)
    else:
        return gl.sum(p, 1)


@gluon.jit
def add_up(total, p, alpha, SPREAD: gl.constexpr):
    """Return the row sums after this block."""
    if SPREAD:
        factor = gl.convert_layout(alpha, gl.SliceLayout(1, total.type.layout))
        return total * factor[:, None] + row_sum(p, SPREAD)
    else:
        return total * alpha + row_sum(p, SPREAD)


@gluon.jit
def consume(
    which, q_s, k_s, v_s, o_s, q_full, q_empty, k_full, k_empty, v_full, v_empty, turns,
    q_desc, k_desc, v_desc, o_desc, out, lse, table, tiles, m_tiles, heads, all_heads, group, n_q, n_kv,
    upper, lower, scale, inner,
    CONSUMERS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, STAGES: gl.constexpr,
    TABLE: gl.constexpr, GROUP_HEADS: gl.constexpr, RIGHT: gl.constexpr, LEFT: gl.constexpr,
    SOFTCAP: gl.constexpr, OVERLAP: gl.constexpr, FENCE: gl.constexpr, PING_PONG: gl.constexpr,
    SPLIT: gl.constexpr, SPREAD: gl.constexpr, OWN: gl.constexpr, DIRECT: gl.constexpr,
):  # fmt: skip
    """One warpgroup: 64 query rows of each tile against every key block of that tile, last block first."""
    ROWS: gl.constexpr = 64
    BLOCK_M: gl.constexpr = CONSUMERS * ROWS
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, k_width=2)
    GUARD: gl.constexpr = RIGHT or LEFT
    # Segments of a tile's blocks: 0 masked at the diagonal, 1 clear, 2 masked by the window's left edge.
    FIRST: gl.constexpr = 0 if SPLIT and (RIGHT or not OVERLAP) else 1
    LAST: gl.constexpr = 3 if SPLIT and LEFT else 2
    TEST: gl.constexpr = (not SPLIT) and (RIGHT or LEFT or not OVERLAP)
    GO: gl.constexpr = 1 if which == 0 else 0  # the first consumer's first turn needs no permission

    q = q_s.index(which)
    zero = gl.zeros([ROWS, BLOCK_N], gl.float32, S_LAYOUT)
    columns = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, S_LAYOUT))
    it = 0  # key blocks seen by this CTA: its ring stage is it % STAGES, its lap it // STAGES
    done = 0  # tiles finished
    begin, end, step = positions(table, tiles, TABLE)
    for i in range(begin, end, step):
        position = i
        if TABLE:
            position = gl.load(table + i)
        m_tile, head = tile_of(position, m_tiles, all_heads, GROUP_HEADS)
        start, stop = block_range(m_tile, n_q, n_kv, upper, lower, BLOCK_M, BLOCK_N, RIGHT, LEFT)
        blocks = stop - start
        row0 = m_tile * BLOCK_M + which * ROWS
        rows = row0 + gl.arange(0, ROWS, layout=gl.SliceLayout(1, S_LAYOUT))
        # Blocks [clear_from, clear_to) of this tile, counted from its last, need no mask in these 64 rows.
        clear_stop = n_kv
        if RIGHT:
            clear_stop = min(max(row0 + upper, 0), n_kv)
        clear_from = min(max(stop - clear_stop // BLOCK_N, 1), blocks)
        clear_to = blocks
        if LEFT:
            left_edge = (max(row0 + ROWS - 1 + lower, 0) + BLOCK_N - 1) // BLOCK_N
            clear_to = min(max(stop - left_edge, clear_from), blocks)

        m = gl.full([ROWS], -float("inf"), gl.float32, gl.SliceLayout(1, S_LAYOUT))
        o = gl.zeros([ROWS, HEAD_DIM], gl.float32, O_LAYOUT)
        total = row_sum(zero, SPREAD)
        p = gl.zeros([ROWS, BLOCK_N], q.dtype, P_LAYOUT)
        wait(q_full.index(which), done & 1)

        OPENING: gl.constexpr = 1 if OVERLAP else 0
        if OVERLAP:  # the first block: nothing yet to multiply with V beside its scores
            at = it % STAGES
            wait(k_full.index(at), it // STAGES & 1)
            if PING_PONG:
                wait(turns.index(which), (it & 1) ^ GO)
            opening = start_product(q, k_s.index(at).permute((1, 0)), zero, False)
            if PING_PONG:
                arrive(turns.index((which + 1) % CONSUMERS))
            scores = finish_products(opening, 0)
            arrive(k_empty.index(at))
            if SOFTCAP:
                scores = 1.0 - 2.0 / (1.0 + gl.exp2(scores * inner))
            scores = hide(scores, rows, (stop - 1) * BLOCK_N + columns, n_kv, upper, lower, RIGHT, LEFT)
            first_weights, m, _ = softmax_step(scores, m, scale, GUARD)
            total = row_sum(first_weights, SPREAD)
            p = gl.convert_layout(first_weights.to(q.dtype), P_LAYOUT)
            it += 1

        edges = (OPENING, OPENING, blocks, blocks)
        if SPLIT:
            edges = (OPENING, clear_from, clear_to, blocks)
        for segment in gl.static_range(FIRST, LAST):
            for j in range(edges[segment], edges[segment + 1]):
                stage = it % STAGES
                wait(k_full.index(stage), it // STAGES & 1)
                if PING_PONG:
                    wait(turns.index(which), (it & 1) ^ GO)
                s_next = start_product(q, k_s.index(stage).permute((1, 0)), zero, False)
                if OVERLAP:
                    previous = (it - 1) % STAGES
                    wait(v_full.index(previous), (it - 1) // STAGES & 1)
                    o_next = start_product(p, v_s.index(previous), o, True)
                if PING_PONG:
                    arrive(turns.index((which + 1) % CONSUMERS))
                s = finish_products(s_next, OPENING)
                arrive(k_empty.index(stage))

                if SOFTCAP:
                    s = 1.0 - 2.0 / (1.0 + gl.exp2(s * inner))
                if TEST:
                    if (j < clear_from) | (j >= clear_to):
                        s = hide(s, rows, (stop - 1 - j) * BLOCK_N + columns, n_kv, upper, lower, RIGHT, LEFT)
                elif segment != 1:
                    s = hide(s, rows, (stop - 1 - j) * BLOCK_N + columns, n_kv, upper, lower, RIGHT, LEFT)
                weights, m, alpha = softmax_step(s, m, scale, GUARD)
                total = add_up(total, weights, alpha, SPREAD)

                if OVERLAP:
                    if FENCE:
                        # Already satisfied: q_full moves on only after this consumer's q_empty. It ends the
                        # basic block, over which ptxas does not hoist the wait below.
                        wait(q_full.index(which), done & 1)
                    o = finish_products(o_next, 0)
                    arrive(v_empty.index(previous))
                o = o * gl.convert_layout(alpha, gl.SliceLayout(1, O_LAYOUT))[:, None]
                p = gl.convert_layout(weights.to(q.dtype), P_LAYOUT)
                if not OVERLAP:
                    wait(v_full.index(stage), it // STAGES & 1)
                    o_next = start_product(p, v_s.index(stage), o, True)
                    o = finish_products(o_next, 0)
                    arrive(v_empty.index(stage))
                it += 1

        if OWN or DIRECT:  # the next tile's Q may load beside what follows
            arrive(q_empty.index(which))
        if OVERLAP:
            last = (it - 1) % STAGES
            wait(v_full.index(last), (it - 1) // STAGES & 1)
            closing = start_product(p, v_s.index(last), o, True)
            o = finish_products(closing, 0)
            arrive(v_empty.index(last))

        if SPREAD:
            row_total = gl.convert_layout(gl.sum(total, 1), gl.SliceLayout(1, S_LAYOUT))
        else:
            row_total = total
        # A row without keys has m = -inf and row_total = 0: its lse comes out as -inf, its output as 0.
        inverse = 1.0 / gl.where(row_total == 0.0, 1.0, row_total)
        o = o * gl.convert_layout(inverse, gl.SliceLayout(1, O_LAYOUT))[:, None]
        first_row = head.to(gl.int64) * n_q
        gl.store(lse + first_row + rows, (m + gl.log2(row_total)) * 0.6931471805599453, mask=rows < n_q)
        if DIRECT:
            out_rows = row0 + gl.arange(0, ROWS, layout=gl.SliceLayout(1, O_LAYOUT))
            out_columns = gl.arange(0, HEAD_DIM, layout=gl.SliceLayout(0, O_LAYOUT))
            offsets = (first_row + out_rows)[:, None] * HEAD_DIM + out_columns[None, :]
            gl.store(out + offsets, o.to(q.dtype), mask=(out_rows < n_q)[:, None])
        else:
            buffer = o_s.index(which)
            if OWN:
                wait_stores()
            buffer.store(o.to(q.dtype))
            store_tile(o_desc, head // heads, head % heads, row0, buffer)
            if not OWN:
                wait_stores()
                arrive(q_empty.index(which))
        done += 1
    wait_stores()


@gluon.jit
def produce(
    q_s, k_s, v_s, o_s, q_full, q_empty, k_full, k_empty, v_full, v_empty, turns,
    q_desc, k_desc, v_desc, o_desc, out, lse, table, tiles, m_tiles, heads, all_heads, group, n_q, n_kv,
    upper, lower, scale, inner,
    CONSUMERS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, STAGES: gl.constexpr,
    TABLE: gl.constexpr, GROUP_HEADS: gl.constexpr, RIGHT: gl.constexpr, LEFT: gl.constexpr,
):  # fmt: skip
    """One warp: load Q, K and V of this CTA's tiles as buffers come free, ahead into the next tile."""
    ROWS: gl.constexpr = 64
    BLOCK_M: gl.constexpr = CONSUMERS * ROWS
    ROW_BYTES: gl.constexpr = HEAD_DIM * q_s.dtype.primitive_bitwidth // 8
    it = 0
    done = 0
    begin, end, step = positions(table, tiles, TABLE)
    for i in range(begin, end, step):
        position = i
        if TABLE:
            position = gl.load(table + i)
        m_tile, head = tile_of(position, m_tiles, all_heads, GROUP_HEADS)
        start, stop = block_range(m_tile, n_q, n_kv, upper, lower, BLOCK_M, BLOCK_N, RIGHT, LEFT)
        batch = head // heads
        q_head = head % heads
        kv_head = q_head // group
        for j in range(0, stop - start):
            stage = it % STAGES
            free = (it // STAGES & 1) ^ 1
            row = (stop - 1 - j) * BLOCK_N
            wait(k_empty.index(stage), free)
            load_tile(k_desc, batch, kv_head, row, k_full.index(stage), k_s.index(stage), BLOCK_N * ROW_BYTES)
            if j == 0:
                for w in gl.static_range(CONSUMERS):
                    wait(q_empty.index(w), (done & 1) ^ 1)
                    q_row = m_tile * BLOCK_M + w * ROWS
                    load_tile(q_desc, batch, q_head, q_row, q_full.index(w), q_s.index(w), ROWS * ROW_BYTES)
            wait(v_empty.index(stage), free)
            load_tile(v_desc, batch, kv_head, row, v_full.index(stage), v_s.index(stage), BLOCK_N * ROW_BYTES)
            it += 1
        done += 1


@gluon.jit
def partition(which, CONSUMERS: gl.constexpr, data, knobs):
    """The consumers come first, the producer last."""
    if which < CONSUMERS:
        consume(which, *data, *knobs)
    else:
        produce(*data, *knobs[:8])


@gluon.jit(do_not_specialize=[
    "tiles", "m_tiles", "heads", "all_heads", "group", "n_q", "n_kv", "upper", "lower", "scale", "inner",
])  # fmt: skip
def forward(
    q_desc, k_desc, v_desc, o_desc, out, lse, table, tiles, m_tiles, heads, all_heads, group, n_q, n_kv,
    upper, lower, scale, inner,
    CONSUMERS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, STAGES: gl.constexpr,
    TABLE: gl.constexpr, GROUP_HEADS: gl.constexpr, RIGHT: gl.constexpr, LEFT: gl.constexpr,
    SOFTCAP: gl.constexpr, OVERLAP: gl.constexpr, FENCE: gl.constexpr, PING_PONG: gl.constexpr,
    SPLIT: gl.constexpr, SPREAD: gl.constexpr, OWN: gl.constexpr, DIRECT: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    ROWS: gl.constexpr = 64
    q_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, HEAD_DIM], q_desc.dtype)
    kv_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, HEAD_DIM], q_desc.dtype)
    q_s = gl.allocate_shared_memory(q_desc.dtype, [CONSUMERS, ROWS, HEAD_DIM], q_layout)
    k_s = gl.allocate_shared_memory(q_desc.dtype, [STAGES, BLOCK_N, HEAD_DIM], kv_layout)
    v_s = gl.allocate_shared_memory(q_desc.dtype, [STAGES, BLOCK_N, HEAD_DIM], kv_layout)
    o_s = q_s
    if OWN:
        o_s = gl.allocate_shared_memory(q_desc.dtype, [CONSUMERS, ROWS, HEAD_DIM], q_layout)
    data = (
        q_s, k_s, v_s, o_s,
        make_barriers(CONSUMERS, 1), make_barriers(CONSUMERS, 1),
        make_barriers(STAGES, 1), make_barriers(STAGES, CONSUMERS),
        make_barriers(STAGES, 1), make_barriers(STAGES, CONSUMERS),
        make_barriers(CONSUMERS, 1),
        q_desc, k_desc, v_desc, o_desc, out, lse, table, tiles, m_tiles, heads, all_heads, group, n_q, n_kv,
        upper, lower, scale, inner,
    )  # fmt: skip
    fence_shared()
    gl.warp_specialize(
        [
            (partition, (which, CONSUMERS, data, (
                CONSUMERS, BLOCK_N, HEAD_DIM, STAGES, TABLE, GROUP_HEADS, RIGHT, LEFT,
                SOFTCAP, OVERLAP, FENCE, PING_PONG, SPLIT, SPREAD, OWN, DIRECT,
            )))
            for which in (0, 1, 2, 3)[: CONSUMERS + 1]
        ],
        (4, 4, 1)[3 - CONSUMERS :],
        (CONSUMER_REGISTERS, CONSUMER_REGISTERS, PRODUCER_REGISTERS)[3 - CONSUMERS :],
    )  # fmt: skip


def schedule(m_tiles, all_heads, group_heads, workers, blocks_of):
    """Deal positions in their order to the least loaded worker; return offsets, then each worker's positions.

    A tile costs its key blocks, and START_BLOCKS more for loading Q and storing the output. Within a group of
    heads the order is longest first, so a group is scheduled longest-processing-time-first.
    """
    START_BLOCKS = 2.0
    lists = [[] for _ in range(workers)]
    loads = [(0.0, worker) for worker in range(workers)]
    for position in range(m_tiles * all_heads):
        m_tile, _ = tile_of.fn(position, m_tiles, all_heads, group_heads)
        load, worker = heapq.heappop(loads)
        lists[worker].append(position)
        heapq.heappush(loads, (load + START_BLOCKS + blocks_of[m_tile], worker))
    offsets = [0]
    for positions_of_worker in lists:
        offsets.append(offsets[-1] + len(positions_of_worker))
    return offsets + [position for positions_of_worker in lists for position in positions_of_worker]


@functools.cache  # nothing is ever dropped: a captured graph may hold the address
def schedule_table(m_tiles, all_heads, group_heads, workers, n_q, n_kv, upper, lower, sizes, device):
    """Schedule one shape and put it on the device: one copy, in the first call, before any graph capture."""
    blocks_of = []
    for m_tile in range(m_tiles):
        start, stop = block_range.fn(m_tile, n_q, n_kv, upper, lower, *sizes)
        blocks_of.append(stop - start)
    entries = schedule(m_tiles, all_heads, group_heads, workers, blocks_of)
    return torch.tensor(entries, dtype=torch.int32, device=device)


def check_arguments(q, k, v, scale, window, softcap):
    """Raise ValueError for what this kernel does not compute."""
    if not q.dtype == k.dtype == v.dtype or q.dtype not in (torch.float16, torch.bfloat16):
        raise ValueError(f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}; all must be float16 or all bfloat16")
    if q.dim() != 4 or k.shape != v.shape or k.dim() != 4:
        raise ValueError(f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}: need B, H, S, D")
    if q.shape[3] != k.shape[3] or q.shape[3] not in (64, 128, 256):
        raise ValueError(f"head_dim is {q.shape[3]} in q, {k.shape[3]} in k; it must be 64, 128 or 256")
    if q.shape[0] != k.shape[0] or k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(f"q {tuple(q.shape)}, k {tuple(k.shape)}: heads must be a multiple of kv_heads")
    if not scale > 0:
        raise ValueError(f"scale is {scale}; maxima are taken before scaling, so it must be positive")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap is {softcap}; it must be positive, or None")
    if window is not None and min(window) < -1:
        raise ValueError(f"window is {window}; (left, right) are counts of keys, -1 for no limit")


def attention(q, k, v, *, scale, causal=False, window=None, softcap=None, num_sms):
    """Return (out, lse) of softmax(q @ k^T * scale) @ v; layout B, H, S, D."""
    check_arguments(q, k, v, scale, window, softcap)
    batch, heads, n_q, head_dim = q.shape
    kv_heads, n_kv = k.shape[1], k.shape[2]
    out = torch.empty((batch, heads, n_q, head_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, heads, n_q), dtype=torch.float32, device=q.device)
    if out.numel() == 0 or n_kv == 0:  # a tensor map has no empty dimension
        return out.zero_(), lse.fill_(-math.inf)

    left, right = window or (-1, -1)
    if causal:
        right = 0 if right < 0 else min(right, 0)
    upper = n_kv - n_q + max(right, 0) + 1  # query i sees keys below i + upper
    lower = n_kv - n_q - max(left, 0)  # and from i + lower on
    block_n, consumers = KNOBS["block_n"], KNOBS["consumers"]
    sizes = (consumers * ROWS, block_n, right >= 0, left >= 0)
    m_tiles = -(-n_q // sizes[0])
    all_heads = batch * heads
    tiles = m_tiles * all_heads
    workers = tiles if KNOBS["grid"] == "tiles" else min(tiles, num_sms * KNOBS["ctas_per_sm"])
    table = lse
    if KNOBS["grid"] == "table":
        table = schedule_table(
            m_tiles, all_heads, KNOBS["group_heads"], workers, n_q, n_kv, upper, lower, sizes, q.device
        )
    log2_e = 1.4426950408889634
    final_scale, inner = scale * log2_e, 0.0
    if softcap is not None:  # cap * tanh(x) with tanh(x) = 1 - 2 / (1 + exp(2 x))
        final_scale, inner = softcap * log2_e, 2.0 * log2_e * scale / softcap
    # Triton shares out the registers of a whole SM unless told that a CTA has less.
    most_registers = None
    if KNOBS["ctas_per_sm"] > 1:
        most_registers = 65536 // (128 * (consumers + 1) * KNOBS["ctas_per_sm"]) // 8 * 8
    forward[(workers,)](
        tile_descriptor("q", q, ROWS),
        tile_descriptor("k", k, block_n),
        tile_descriptor("v", v, block_n),
        tile_descriptor("out", out, ROWS),
        out, lse, table, tiles, m_tiles, heads, all_heads, heads // kv_heads, n_q, n_kv,
        upper, lower, final_scale, inner,
        CONSUMERS=consumers,
        BLOCK_N=block_n,
        HEAD_DIM=head_dim,
        STAGES=KNOBS["stages"],
        TABLE=KNOBS["grid"] == "table",
        GROUP_HEADS=KNOBS["group_heads"],
        RIGHT=right >= 0,
        LEFT=left >= 0,
        SOFTCAP=softcap is not None,
        OVERLAP=KNOBS["overlap"],
        FENCE=KNOBS["schedule_fence"],
        PING_PONG=KNOBS["ping_pong"],
        SPLIT=KNOBS["mask_loop"] == "split",
        SPREAD=KNOBS["row_sum"] == "spread",
        OWN=KNOBS["store"] == "own_buffer",
        DIRECT=KNOBS["store"] == "direct",
        CONSUMER_REGISTERS=KNOBS["consumer_registers"],
        PRODUCER_REGISTERS=KNOBS["producer_registers"],
        num_warps=4,
        maxnreg=most_registers,
    )  # fmt: skip
    return out, lse
