"""FlashAttention forward for the CPU in Numba: packed tiles, register-blocked strips, online softmax.

Loop orders: FlashAttention (arXiv:2205.14135, Algorithm 1: K and V tiles outside) and FlashAttention-2
(arXiv:2307.08691, section 3.1: query tiles outside). Both products are rank-`unroll` updates of `rows` query
rows over contiguous columns (Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication").
"""

SPACE = {'op': 'forward',
 'backend': 'numba',
 'knobs': {'block_m': [16, 32, 64, 128],
           'block_n': [32, 64, 128, 256],
           'rows': [1, 2, 4, 8],
           'unroll': [1, 2],
           'panel': [32],
           'loop_order': ['q_outer', 'kv_outer'],
           'kv_direction': ['natural'],
           'fusion': ['strip', 'tile'],
           'pack_k': [True, False],
           'pack_v': [True],
           'pack_scope': ['tile'],
           'exp_form': ['poly'],
           'scale_where': ['scores'],
           'mask_where': ['every_tile'],
           'rescale': ['always'],
           'parallel_axis': ['heads'],
           'schedule': ['blocked']},
 'conditions': {'pack_scope': "loop_order == 'q_outer' and (pack_k or pack_v)",
                'parallel_axis': "loop_order == 'q_outer'"},
 'constraints': {"dtype == 'fp32'": 'the Numba kernels compute and store float32 only'}}

KNOBS = {'block_m': 64, 'block_n': 64, 'rows': 4, 'unroll': 2, 'panel': 32, 'loop_order': 'q_outer', 'kv_direction': 'natural', 'fusion': 'tile', 'pack_k': True, 'pack_v': True, 'pack_scope': 'tile', 'exp_form': 'poly', 'scale_where': 'scores', 'mask_where': 'every_tile', 'rescale': 'always', 'parallel_axis': 'heads', 'schedule': 'blocked'}

# ---- kernel ----
import math

import numba
import numpy as np
import torch

BLOCK_M = KNOBS["block_m"]
BLOCK_N = KNOBS["block_n"]
ROWS = KNOBS["rows"]
UNROLL = KNOBS["unroll"]
PANEL = KNOBS["panel"]
Q_OUTER = KNOBS["loop_order"] == "q_outer"
REVERSE = KNOBS["kv_direction"] == "reverse"
PHASES = 1 if KNOBS["fusion"] == "strip" else 3
PACK_K = KNOBS["pack_k"]
PACK_V = KNOBS["pack_v"]
PACK_HEAD = Q_OUTER and KNOBS["pack_scope"] == "head"
POLY = KNOBS["exp_form"] == "poly"
EXP2 = KNOBS["exp_form"] == "exp2"
SCALE_SCORES = KNOBS["scale_where"] == "scores"
SCALE_EXP = KNOBS["scale_where"] == "exp"
MASK_ALL = KNOBS["mask_where"] == "every_tile"
RESCALE_ALWAYS = KNOBS["rescale"] == "always"
BY_TILE = Q_OUTER and KNOBS["parallel_axis"] == "tiles"
CYCLIC = KNOBS["schedule"] == "cyclic"

# Numba drops a branch on a global truth value before it types the code.
U2, U4, U8 = (UNROLL >= u for u in (2, 4, 8))
R2, R4 = (ROWS >= r for r in (2, 4))

# Strides of packed tiles. Numba compiles a function anew for each literal argument, not for a typed constant.
NIL, UNIT = np.int64(0), np.int64(1)
Q_STEP, K_STEP, V_STEP, V_PANEL = (np.int64(n) for n in (ROWS, BLOCK_N, PANEL, BLOCK_N * PANEL))

NEG_INF = np.float32(-np.inf)
LOWEST_INT, ALL_BUT_SIGN, SIGN_SHIFT = np.int32(-(2**31)), np.int32(2**31 - 1), np.int32(31)
ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)
LN2 = math.log(2)
FAR = 1 << 40  # keys: a side of the window without a limit

# 2^f on |f| <= 1/2, degree 6: relative error 1.9e-9, below float32 rounding.
E1, E2, E3, E4, E5, E6 = (
    np.float32(c) for c in (0.69314718, 0.240226462, 0.0555032865, 0.00961848907, 0.00133999309, 0.000153458124)
)
LOWEST_EXPONENT = np.float32(-127)  # made as a bit pattern, 2^-127 is the 0.0 that a masked score must give
# (tanh(x) / x - 1) / x^2 in powers of x^2 on |x| <= 5/8: relative error 4.4e-9.
T0, T1, T2, T3, T4 = (np.float32(c) for c in (-0.333332807, 0.133314416, -0.0537397154, 0.0206390861, -0.00570498500))
SMALL_TANH = np.float32(0.625)
MINUS_TWO_LOG2E = np.float32(-2 / LN2)

# A masked score is -inf, so no flag may assume infinities away. NaN never occurs in what `fast` covers.
# Without _nrt=False every view of an array counts references, atomically, in memory that the threads share.
jit = numba.njit(fastmath={"contract", "nsz"}, error_model="numpy", _nrt=False)
fast = numba.njit(fastmath={"contract", "nsz", "reassoc", "nnan"}, error_model="numpy", _nrt=False)


def rank_update(columns, row_step, depth_step, pitch):
    """Make a function for target[r, :] += coefficients[r, u] * source[u, :], UNROLL values of u at a time.

    The number of columns is a constant, so the loop over them becomes straight vector code that loads each
    source vector once for ROWS rows. `pitch` is the distance of source rows if they are packed, or None.
    """
    packed = pitch is not None
    p1, p2, p3, p4, p5, p6, p7 = (np.uintp(u * (pitch or 0)) for u in range(1, 8))
    d2, d3, d4, d5, d6, d7 = (u * depth_step for u in range(2, 8))
    reach = (ROWS - 1) * row_step + (UNROLL - 1) * depth_step + 1

    @jit
    def update(target, coefficients, source, start, stride, first, stop):
        # Unsigned offsets spare the vector loop Numba's test for a negative index.
        if packed:
            l1, l2, l3, l4, l5, l6, l7 = p1, p2, p3, p4, p5, p6, p7
        else:
            l1, l2, l3 = np.uintp(stride), np.uintp(2 * stride), np.uintp(3 * stride)
            l4, l5, l6, l7 = l1 + l3, l2 + l3, l3 + l3, l1 + l3 + l3
        for depth in range(first, stop, UNROLL):
            w = coefficients[depth * depth_step : depth * depth_step + reach]
            b = source[start + depth * stride :]
            for column in range(columns):
                c = np.uintp(column)
                b0 = b[c]
                if U2:
                    b1 = b[c + l1]
                if U4:
                    b2 = b[c + l2]
                    b3 = b[c + l3]
                if U8:
                    b4 = b[c + l4]
                    b5 = b[c + l5]
                    b6 = b[c + l6]
                    b7 = b[c + l7]
                for r in range(ROWS):
                    x = r * row_step
                    t = target[r * columns + column] + w[x] * b0
                    if U2:
                        t += w[x + depth_step] * b1
                    if U4:
                        t += w[x + d2] * b2
                        t += w[x + d3] * b3
                    if U8:
                        t += w[x + d4] * b4
                        t += w[x + d5] * b5
                        t += w[x + d6] * b6
                        t += w[x + d7] * b7
                    target[r * columns + column] = t

    return update


add_scores = rank_update(BLOCK_N, 1, ROWS, BLOCK_N)
add_output = rank_update(PANEL, BLOCK_N, 1, PANEL if PACK_V else None)


@fast
def dot_scores(s, q, k, start, stride, depth, keys):
    """Scores without packed keys: dot products along head_dim, for up to four rows at each load of a key."""
    for r in range(0, ROWS, 4):
        q0 = q[r * depth : (r + 1) * depth]
        if R2:
            q1 = q[(r + 1) * depth : (r + 2) * depth]
        if R4:
            q2 = q[(r + 2) * depth : (r + 3) * depth]
            q3 = q[(r + 3) * depth : (r + 4) * depth]
        for j in range(keys):
            key = k[start + j * stride : start + j * stride + depth]
            t0 = t1 = t2 = t3 = ZERO
            for d in range(depth):
                t0 += q0[d] * key[d]
                if R2:
                    t1 += q1[d] * key[d]
                if R4:
                    t2 += q2[d] * key[d]
                    t3 += q3[d] * key[d]
            s[r * BLOCK_N + j] = t0
            if R2:
                s[(r + 1) * BLOCK_N + j] = t1
            if R4:
                s[(r + 2) * BLOCK_N + j] = t2
                s[(r + 3) * BLOCK_N + j] = t3


@fast
def exp_unit(x):
    """e^x or 2^x, whichever base the host scaled the scores for, of x <= 0."""
    if POLY:
        x = max(x, LOWEST_EXPONENT)
        n = np.int32(x - HALF)  # truncation gives the nearest integer, as x <= 0
        f = x - np.float32(n)
        y = ONE + f * (E1 + f * (E2 + f * (E3 + f * (E4 + f * (E5 + f * E6)))))
        return y * np.int32((n + 127) << 23).view(np.float32)
    if EXP2:
        return np.exp2(x)
    return math.exp(x)


@fast
def tanh_unit(x):
    if POLY:
        a = abs(x)
        z = x * x
        e = exp_unit(a * MINUS_TWO_LOG2E)
        small = a + a * z * (T0 + z * (T1 + z * (T2 + z * (T3 + z * T4))))
        t = small if a < SMALL_TANH else (ONE - e) / (ONE + e)
        return -t if x < ZERO else t
    return math.tanh(x)


@jit
def ordered(bits):
    """Map float32 bits to integers of the same order, and back: LLVM vectorises only the integer maximum."""
    return np.int32(bits ^ ((bits >> SIGN_SHIFT) & ALL_BUT_SIGN))


@fast
def softmax_strip(scores, acc, tops, sums, rows, before, after, keys, masked, panels, capped, factors):
    """Turn the scores of a strip into weights, and bring its running maximum, sum and output up to date.

    Row r sees the columns from before + r up to, not including, after + r.
    """
    cap_in, cap_out, score_factor, exp_factor = factors
    for r in range(rows):
        s = scores[r * BLOCK_N : r * BLOCK_N + BLOCK_N]
        if capped:
            for c in range(BLOCK_N):
                s[c] = cap_out * tanh_unit(s[c] * cap_in)
        if MASK_ALL or masked:
            lo, hi = np.int32(max(before + r, 0)), np.int32(min(after + r, keys))
            for c in range(BLOCK_N):
                s[c] = s[c] if (np.int32(c) >= lo) & (np.int32(c) < hi) else NEG_INF
        highest = LOWEST_INT
        for c in range(BLOCK_N):
            x = s[c]
            if SCALE_SCORES:
                x = x * score_factor
                s[c] = x
            highest = np.int32(max(highest, ordered(np.float32(x).view(np.int32))))
        top = np.int32(ordered(highest)).view(np.float32)
        if SCALE_EXP:
            top = top * exp_factor
        old = tops[r]
        top = max(old, top)
        if top == NEG_INF:
            for c in range(BLOCK_N):
                s[c] = ZERO
            continue
        total = ZERO
        for c in range(BLOCK_N):
            p = exp_unit(s[c] * exp_factor - top) if SCALE_EXP else exp_unit(s[c] - top)
            s[c] = p
            total += p
        if RESCALE_ALWAYS or top != old:
            alpha = exp_unit(old - top)
            for panel in range(panels):
                at = (panel * ROWS + r) * PANEL
                o = acc[at : at + PANEL]
                for c in range(PANEL):
                    o[c] *= alpha
            total += sums[r] * alpha
            tops[r] = top
        else:
            total += sums[r]
        sums[r] = total


@jit
def attend_tile(
    q, k, k_start, k_stride, v, v_start, v_stride, v_panel, scores, acc, tops, sums,
    count, keys, before, after, depth, panels, capped, factors,
):  # fmt: skip
    """One tile of queries against one tile of keys: all of one strip after another, or phase after phase."""
    for phase in range(PHASES):
        for row in range(0, count, ROWS):
            rows = min(ROWS, count - row)
            lo, hi = max(before + row, 0), min(after + row + rows - 1, keys)
            if hi <= lo:
                continue
            at = row * BLOCK_N if PHASES == 3 else 0
            s = scores[at : at + ROWS * BLOCK_N]
            o = acc[row * panels * PANEL : (row + ROWS) * panels * PANEL]
            if phase == 0:
                if PACK_K:
                    for c in range(ROWS * BLOCK_N):
                        s[c] = ZERO
                    add_scores(s, q[row * depth : (row + ROWS) * depth], k, k_start, K_STEP, NIL, depth)
                else:
                    dot_scores(s, q[row * depth : (row + ROWS) * depth], k, k_start, k_stride, depth, keys)
            if PHASES == 1 or phase == 1:
                masked = before + row + rows - 1 > 0 or after + row < BLOCK_N or keys < BLOCK_N
                softmax_strip(
                    s, o, tops[row : row + ROWS], sums[row : row + ROWS], rows, before + row, after + row,
                    keys, masked, panels, capped, factors,
                )  # fmt: skip
            if PHASES == 1 or phase == 2:
                first, stop = lo // UNROLL * UNROLL, (hi + UNROLL - 1) // UNROLL * UNROLL
                for panel in range(panels):
                    at = panel * ROWS * PANEL
                    add_output(o[at : at + ROWS * PANEL], s, v, v_start + panel * v_panel, v_stride, first, stop)


@jit
def pack(source, start, stride, rows, columns, factor, target, row_step, column_step, clear):
    """Copy rows into a tile of any layout, times factor; its first `clear` elements are zeroed before."""
    for i in range(clear):
        target[i] = ZERO
    for r in range(rows):
        row = source[start + r * stride : start + r * stride + columns]
        to = target[r * row_step :]
        if column_step == 1:
            for c in range(columns):
                to[c] = row[c] * factor
        else:
            for c in range(columns):
                to[c * column_step] = row[c] * factor


@jit
def store_tile(acc, tops, sums, out, lse, row, count, dim, panels, to_natural):
    """Normalise a tile of outputs; a row that saw no key gives 0 and -inf."""
    for i in range(count):
        total = sums[i]
        inverse = ONE / total if total > ZERO else ZERO
        lse[row + i] = tops[i] * to_natural + np.float32(math.log(total)) if total > ZERO else NEG_INF
        for panel in range(panels):
            at = ((i // ROWS * panels + panel) * ROWS + i % ROWS) * PANEL
            o = acc[at : at + PANEL]
            to = out[(row + i) * dim + panel * PANEL : (row + i + 1) * dim]
            for c in range(min(PANEL, dim - panel * PANEL)):
                to[c] = o[c] * inverse


def attend(worker, workers, q, k, v, out, lse, sizes, scalars, scratch):
    """The share of one thread."""
    heads, group, q_len, kv_len, dim, depth, panels, items, left, right, capped = sizes[:11]
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row = sizes[11:20]
    k_at, v_at, scores_at, acc_at, tops_at, sums_at = sizes[20:]
    factors = (scalars[2], scalars[3], scalars[4], scalars[5])
    space = scratch[worker]
    q_pack, k_pack, v_pack = space[:k_at], space[k_at:v_at], space[v_at:scores_at]
    scores = space[scores_at:acc_at]
    acc, tops, sums = space[acc_at:tops_at], space[tops_at:sums_at], space[sums_at:]
    width = panels * PANEL
    q_size, k_size, v_size, acc_size = BLOCK_M * depth, depth * BLOCK_N, BLOCK_N * width, BLOCK_M * width
    q_tiles = (q_len + BLOCK_M - 1) // BLOCK_M
    offset = kv_len - q_len
    packed_head = -1

    begin = worker if CYCLIC else worker * items // workers
    end = items if CYCLIC else (worker + 1) * items // workers
    for item in range(begin, end, workers if CYCLIC else 1):
        head = item // q_tiles if BY_TILE else item
        b, h = head // heads, head % heads
        q_base = b * q_batch + h * q_head
        k_base = b * k_batch + h // group * k_head
        v_base = b * v_batch + h // group * v_head
        # A round is one query tile (FlashAttention-2) or all query tiles of the head (FlashAttention-1).
        span = 1 if Q_OUTER else q_tiles
        begin_q = item % q_tiles if BY_TILE else 0
        end_q = begin_q + 1 if BY_TILE else q_tiles
        for first_tile in range(begin_q, end_q, span):
            first_row = first_tile * BLOCK_M
            end_row = min(q_len, first_row + span * BLOCK_M)
            for row in range(first_row, end_row, ROWS):
                strip = q_pack[(row - first_row) * depth :]
                pack(
                    q, q_base + row * q_row, q_row, min(ROWS, end_row - row), dim, scalars[0], strip,
                    UNIT if PACK_K else depth, Q_STEP if PACK_K else UNIT, ROWS * depth,
                )  # fmt: skip
            for i in range(span * acc_size):
                acc[i] = ZERO
            for i in range(span * BLOCK_M):
                tops[i] = NEG_INF
                sums[i] = ZERO

            # Tiles in which no row of this round sees a key are left out, unless a whole head is packed here.
            packing = not PACK_HEAD or packed_head != head // group
            packed_head = head // group
            first_kv = max(0, first_row + offset - left) // BLOCK_N
            end_kv = (min(kv_len, end_row + offset + right) + BLOCK_N - 1) // BLOCK_N
            if PACK_HEAD and packing:
                first_kv, end_kv = 0, (kv_len + BLOCK_N - 1) // BLOCK_N
            for turn in range(end_kv - first_kv):
                tile = end_kv - 1 - turn if REVERSE else first_kv + turn
                column = tile * BLOCK_N
                keys = min(BLOCK_N, kv_len - column)
                k_tile = k_pack[tile * k_size :] if PACK_HEAD else k_pack
                v_tile = v_pack[tile * v_size :] if PACK_HEAD else v_pack
                k_start = k_base + column * k_row
                v_start = v_base + column * v_row
                # A ragged tile of values is packed whatever the gene says: a weight of 0 times NaN is NaN.
                in_place = not PACK_V and keys == BLOCK_N and dim == panels * PANEL
                if packing:
                    if PACK_K:
                        ragged = keys < BLOCK_N or dim < depth
                        clear = k_size if ragged else NIL
                        pack(k, k_start, k_row, keys, dim, ONE, k_tile, UNIT, K_STEP, clear)
                    if not in_place:
                        for panel in range(panels):
                            columns = min(PANEL, dim - panel * PANEL)
                            clear = V_PANEL if keys < BLOCK_N or columns < PANEL else NIL
                            pack(
                                v, v_start + panel * PANEL, v_row, keys, columns, ONE,
                                v_tile[panel * BLOCK_N * PANEL :], V_STEP, UNIT, clear,
                            )  # fmt: skip
                for row in range(first_row, end_row, BLOCK_M):
                    i = (row - first_row) // BLOCK_M
                    attend_tile(
                        q_pack[i * q_size :], k_tile if PACK_K else k, NIL if PACK_K else k_start, k_row,
                        v if in_place else v_tile, v_start if in_place else NIL,
                        v_row if in_place else V_STEP, V_STEP if in_place else V_PANEL,
                        scores, acc[i * acc_size :], tops[i * BLOCK_M :], sums[i * BLOCK_M :],
                        min(BLOCK_M, end_row - row), keys, row + offset - left - column,
                        row + offset + right + 1 - column, depth, panels, capped, factors,
                    )  # fmt: skip

            for row in range(first_row, end_row, BLOCK_M):
                i = (row - first_row) // BLOCK_M
                store_tile(
                    acc[i * acc_size :], tops[i * BLOCK_M :], sums[i * BLOCK_M :], out, lse,
                    head * q_len + row, min(BLOCK_M, end_row - row), dim, panels, scalars[1],
                )  # fmt: skip


def build_launch():
    """Compile `attend` apart and call it by address: linked into the parallel loop it is optimised thrice."""
    floats, ints = numba.float32[::1], numba.int64[::1]
    signature = numba.void(
        numba.int64, numba.int64, floats, floats, floats, floats, floats, ints, floats, numba.float32[:, ::1]
    )
    attend_one = numba.cfunc(signature, error_model="numpy", _nrt=False)(attend)

    @numba.njit(parallel=True)
    def launch(workers, q, k, v, out, lse, sizes, scalars, scratch):
        for worker in numba.prange(workers):
            attend_one(np.int64(worker), workers, q, k, v, out, lse, sizes, scalars, scratch)

    return launch


LAUNCH = []  # filled by the first call, so that an import compiles nothing


def flat(tensor):
    """The memory under a tensor as one array: strides are numbers, so one signature serves every layout."""
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(f"the last dimension must be contiguous, got strides {tuple(tensor.stride())}")
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return tensor.detach().as_strided((1 + reach if tensor.numel() else 0,), (1,)).numpy()


def factors_of(scale, softcap):
    """Where the scale enters: (query, units to natural log, cap in, cap out, scores, exp) factors."""
    # A negative scale becomes a sign of the query, and 0 a query of 0: what multiplies a maximum is positive.
    sign, inner = (math.copysign(1.0, scale), abs(scale)) if scale else (0.0, 1.0)
    unit = 1.0 if KNOBS["exp_form"] == "exp" else 1.0 / LN2
    where = KNOBS["scale_where"]
    outer = softcap * unit if softcap else 1.0
    inner = inner / softcap if softcap else inner * unit
    at_query = inner if where == "query" else 1.0
    if softcap:
        at_exp = outer if where == "exp" else 1.0
        return sign * at_query, 1 / unit, inner / at_query, outer / at_exp, 1.0, at_exp
    at_exp = inner if where == "exp" else 1.0
    return sign * at_query, 1 / unit, 1.0, 1.0, inner / at_query / at_exp, at_exp


def attention(q, k, v, *, scale, causal=False, window=None, softcap=None, num_sms=1):
    for tensor in (q, k, v):
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            raise ValueError(f"only float32 tensors on the CPU, got {tensor.dtype} on {tensor.device}")
    batch, heads, q_len, dim = q.shape
    kv_heads, kv_len = k.shape[1], k.shape[2]
    if heads % kv_heads or k.shape != (batch, kv_heads, kv_len, dim) or v.shape != k.shape:
        raise ValueError(f"shapes do not fit: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}")
    out = torch.empty((batch, heads, q_len, dim), dtype=torch.float32)
    lse = torch.empty((batch, heads, q_len), dtype=torch.float32)
    if lse.numel() == 0:
        return out, lse

    left, right = (side if side >= 0 else FAR for side in window or (-1, -1))
    right = min(right, 0) if causal else right
    depth = -(-dim // UNROLL) * UNROLL if PACK_K else dim
    panels = -(-dim // PANEL)
    q_tiles = -(-q_len // BLOCK_M)
    kv_tiles = -(-kv_len // BLOCK_N) if PACK_HEAD else 1
    q_rows = BLOCK_M * (1 if Q_OUTER else q_tiles)
    items = batch * heads * (q_tiles if BY_TILE else 1)
    workers = min(numba.get_num_threads(), items)
    regions = (
        q_rows * depth,
        kv_tiles * depth * BLOCK_N if PACK_K else 0,
        kv_tiles * panels * PANEL * BLOCK_N,
        (BLOCK_M if PHASES == 3 else ROWS) * BLOCK_N,
        q_rows * panels * PANEL,
        q_rows,
        q_rows,
    )
    ends = [0]
    for size in regions:
        ends.append(ends[-1] + -(-size // 16) * 16)  # every region starts on a cache line
    sizes = [heads, heads // kv_heads, q_len, kv_len, dim, depth, panels, items, left, right, bool(softcap)]
    sizes += [*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *ends[1:-1]]
    if not LAUNCH:
        LAUNCH.append(build_launch())
    LAUNCH[0](
        workers, flat(q), flat(k), flat(v), out.view(-1).numpy(), lse.view(-1).numpy(),
        np.array(sizes, dtype=np.int64), np.array(factors_of(scale, softcap), dtype=np.float32),
        torch.empty((workers, ends[-1])).numpy(),
    )  # fmt: skip
    return out, lse
