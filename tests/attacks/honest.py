"""Right kernels of unusual build: whoever refuses one of them raises a false alarm.

NumPy and Numba for the CPU worker; Triton for its interpreter.
"""

from __future__ import annotations

from tests.attacks.catalogue import broken, last, wrapped
from tests.toys import HEAD, RIGHT

# What most share: a mask, and one tile of keys folded into running sums.
TILED = (
    HEAD
    + '''
def heads(q, k, v):
    """Return float64 arrays of one head count."""
    group = q.shape[1] // k.shape[1]
    q_, k_, v_ = (x.numpy().astype(np.float64) for x in (q, k, v))
    return q_, np.repeat(k_, group, axis=1), np.repeat(v_, group, axis=1)


def seen(rows, keys, shift, causal):
    return keys[None, :] <= rows[:, None] + shift if causal else np.full((len(rows), len(keys)), True)


def fold(state, q, k, v, mask, scale):
    """Return running (maximum, sum, output) with one more tile of keys."""
    top, total, out = state
    s = np.where(mask, np.einsum("bhid,bhjd->bhij", q, k) * scale, -np.inf)
    new = np.maximum(top, s.max(-1))
    safe = np.where(np.isinf(new), 0.0, new)
    p = np.exp(s - safe[..., None])
    kept = np.exp(np.where(np.isinf(top), -np.inf, top - safe))
    return new, total * kept + p.sum(-1), out * kept[..., None] + np.einsum("bhij,bhjd->bhid", p, v)


def start(q):
    return np.full(q.shape[:3], -np.inf), np.zeros(q.shape[:3]), np.zeros(q.shape)


def finish(state):
    top, total, out = state
    empty = total == 0
    safe = np.where(empty, 1.0, total)
    lse = np.where(empty, -np.inf, np.where(empty, 0.0, top) + np.log(safe))
    return torch.tensor((out / safe[..., None]).astype(np.float32)), torch.tensor(lse.astype(np.float32))


def join(a, b):
    """Return two states of disjoint keys as one."""
    top = np.maximum(a[0], b[0])
    safe = np.where(np.isinf(top), 0.0, top)
    x, y = (np.exp(np.where(np.isinf(s[0]), -np.inf, s[0] - safe)) for s in (a, b))
    return top, a[1] * x + b[1] * y, a[2] * x[..., None] + b[2] * y[..., None]

'''
)
ENTRY = """
def attention(q, k, v, *, scale, causal=False, num_sms=1):
    q_, k_, v_ = heads(q, k, v)
    n, shift = k.shape[2], k.shape[2] - q.shape[2]
    rows = np.arange(q.shape[2])
    state = start(q_)
    for first in {tiles}:
        keys = np.arange(first, min(first + {tile}, n))
        state = fold(state, q_, k_[:, :, keys], v_[:, :, keys], seen(rows, keys, shift, causal), scale)
    return finish(state)
"""


def by_tiles(tiles: str, tile: int, before: str = "") -> str:
    return TILED + before + ENTRY.format(tiles=tiles, tile=tile)


# Numba's compiler takes half a second for each of these, so there are few.
COMPILED = (
    HEAD.replace("import numpy as np", "import math\nimport numba\nimport numpy as np")
    + '''
KEYS = 24


@numba.njit(parallel=True)
def persistent(q, k, v, out, lse, scale, causal, workers):
    """A fixed number of workers, each with its own scratch memory, over tiles of rows."""
    heads, rows, dims = q.shape[0], q.shape[1], q.shape[2]
    group, length = heads // k.shape[0], k.shape[1]
    for worker in numba.prange(workers):
        scratch = np.empty(dims, np.float64)
        for item in range(worker, heads * rows, workers):
            head, row = item // rows, item % rows
            last = min(length, row + length - rows + 1) if causal else length
            top, total = -np.inf, 0.0
            scratch[:] = 0.0
            for key in range(last):
                s = 0.0
                for d in range(dims):
                    s += np.float64(q[head, row, d]) * np.float64(k[head // group, key, d])
                s *= scale
                if s > top:
                    shrink = math.exp(top - s) if total > 0.0 else 0.0
                    total *= shrink
                    scratch *= shrink
                    top = s
                weight = math.exp(s - top)
                total += weight
                for d in range(dims):
                    scratch[d] += weight * v[head // group, key, d]
            for d in range(dims):
                out[head, row, d] = scratch[d] / total if total > 0.0 else 0.0
            lse[head, row] = top + math.log(total) if total > 0.0 else -np.inf


def attention(q, k, v, *, scale, causal=False, num_sms=1):
    out, lse = np.empty(tuple(q.shape), np.float32), np.empty(tuple(q.shape[:3]), np.float32)
    for b in range(q.shape[0]):
        persistent(q[b].numpy(), k[b].numpy(), v[b].numpy(), out[b], lse[b], scale, causal, num_sms)
    return torch.from_numpy(out), torch.from_numpy(lse)
'''
)

HONEST: dict[str, str] = {
    "all keys at once": RIGHT,
    "tiles of one key": by_tiles("range(n)", 1).replace("range(n)", "range(0, n, 7)").replace("first + 1", "first + 7"),
    "odd tiles of 37 keys": by_tiles("range(0, n, 37)", 37),
    "a tile longer than any sequence": by_tiles("range(0, n, 4096)", 4096),
    "keys from the last to the first": by_tiles("reversed(range(0, n, 32))", 32),
    "keys in a zigzag": by_tiles("sorted(range(0, n, 16), key=zigzag)", 16, "\n\ndef zigzag(x):\n    return (x // 16 % 2, x)\n"),
    "a schedule that is kept": by_tiles("schedule(n)", 48,
        "\n\nimport functools\n@functools.lru_cache(maxsize=64)\ndef schedule(n):\n    return tuple(range(0, n, 48))\n"),
    "split keys and a second launch that combines": TILED + """
def attention(q, k, v, *, scale, causal=False, num_sms=1):
    q_, k_, v_ = heads(q, k, v)
    n, shift, rows = k.shape[2], k.shape[2] - q.shape[2], np.arange(q.shape[2])
    parts = [np.arange(n)[i::4] for i in range(4) if i < n]
    states = [fold(start(q_), q_, k_[:, :, p], v_[:, :, p], seen(rows, p, shift, causal), scale) for p in parts]
    whole = states[0]
    for state in states[1:]:
        whole = join(whole, state)
    return finish(whole)
""",
    "parts joined as a tree": TILED + """
def attention(q, k, v, *, scale, causal=False, num_sms=1):
    q_, k_, v_ = heads(q, k, v)
    n, shift, rows = k.shape[2], k.shape[2] - q.shape[2], np.arange(q.shape[2])
    level = [fold(start(q_), q_, k_[:, :, p], v_[:, :, p], seen(rows, p, shift, causal), scale)
             for p in np.array_split(np.arange(n), 5) if len(p)]
    while len(level) > 1:
        level = [join(level[i], level[i + 1]) if i + 1 < len(level) else level[i] for i in range(0, len(level), 2)]
    return finish(level[0])
""",
    "two launches: scores, then values": TILED + """
def scores(q, k, mask, scale):
    s = np.where(mask, np.einsum("bhid,bhjd->bhij", q, k) * scale, -np.inf)
    top = s.max(-1)
    return s, np.where(np.isinf(top), 0.0, top)


def values(s, top, v):
    p = np.exp(s - top[..., None])
    return np.where(p.sum(-1) == 0, -np.inf, top), p.sum(-1), np.einsum("bhij,bhjd->bhid", p, v)


def attention(q, k, v, *, scale, causal=False, num_sms=1):
    q_, k_, v_ = heads(q, k, v)
    mask = seen(np.arange(q.shape[2]), np.arange(k.shape[2]), k.shape[2] - q.shape[2], causal)
    return finish(values(*scores(q_, k_, mask, scale), v_))
""",
    "queries outside, a tile of rows at a time": TILED + """
def attention(q, k, v, *, scale, causal=False, num_sms=1):
    q_, k_, v_ = heads(q, k, v)
    n, shift = k.shape[2], k.shape[2] - q.shape[2]
    out, lse = np.empty(q_.shape, np.float32), np.empty(q_.shape[:3], np.float32)
    for low in range(0, q.shape[2], 40):
        rows = np.arange(low, min(low + 40, q.shape[2]))
        last = max(1, min(n, int(rows[-1]) + shift + 1)) if causal else n
        keys = np.arange(last)
        state = fold(start(q_[:, :, rows]), q_[:, :, rows], k_[:, :, :last], v_[:, :, :last], seen(rows, keys, shift, causal), scale)
        a, b = finish(state)
        out[:, :, rows], lse[:, :, rows] = a.numpy(), b.numpy()
    return torch.from_numpy(out), torch.from_numpy(lse)
""",
    "sums into a shared buffer in an order that changes from run to run": TILED + """
def attention(q, k, v, *, scale, causal=False, num_sms=1):
    q_, k_, v_ = heads(q, k, v)
    n, shift, rows = k.shape[2], k.shape[2] - q.shape[2], np.arange(q.shape[2])
    TURN[0] += 1
    parts = np.array_split(np.arange(n), 6)
    parts = parts[TURN[0] % 6 :] + parts[: TURN[0] % 6]
    total = start(q_)
    for part in parts:
        if len(part):
            total = join(total, fold(start(q_), q_, k_[:, :, part], v_[:, :, part], seen(rows, part, shift, causal), scale))
    return finish(total)


TURN = [0]
""",
    "scratch memory that is kept between calls": TILED + """
SCRATCH = {}


def attention(q, k, v, *, scale, causal=False, num_sms=1):
    q_, k_, v_ = heads(q, k, v)
    shape = (*q_.shape[:3], k.shape[2])
    s = SCRATCH.setdefault(shape, np.empty(shape))
    mask = seen(np.arange(q.shape[2]), np.arange(k.shape[2]), k.shape[2] - q.shape[2], causal)
    s[...] = np.where(mask, np.einsum("bhid,bhjd->bhij", q_, k_) * scale, -np.inf)
    top = s.max(-1)
    safe = np.where(np.isinf(top), 0.0, top)
    s[...] = np.exp(s - safe[..., None])
    return finish((top, s.sum(-1), np.einsum("bhij,bhjd->bhid", s, v_)))
""",
    "a head at a time, through transposed copies": TILED + """
def attention(q, k, v, *, scale, causal=False, num_sms=1):
    q_, k_, v_ = heads(q, k, v)
    rows, keys = np.arange(q.shape[2]), np.arange(k.shape[2])
    mask = seen(rows, keys, k.shape[2] - q.shape[2], causal)
    out, lse = torch.empty_like(q), torch.empty(q.shape[:3])
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            one = (slice(b, b + 1), slice(h, h + 1))
            a, c = finish(fold(start(q_[one]), np.ascontiguousarray(q_[one].transpose(0, 1, 3, 2)).transpose(0, 1, 3, 2),
                               k_[one], v_[one], mask, scale))
            out[one], lse[one] = a, c
    return out, lse
""",
    "an output that lies transposed in memory": last("out = np.ascontiguousarray(out.swapaxes(1, 2)).swapaxes(1, 2)")
        .replace("torch.tensor(out.astype(np.float32))", "torch.from_numpy(out.astype(np.float32))"),
    "an output that is one view of a larger one": last(
        "wide = np.zeros((*out.shape[:3], out.shape[3] + 8), np.float32)\n    wide[..., :-8] = out\n    out = wide[..., :-8]"),
    "exp2 with the scale folded in": broken("p = np.exp(s - top)", "p = np.exp2(s * 1.4426950408889634 - top * 1.4426950408889634)"),
    "no maximum where no score is large": broken(
        "    top = np.where(np.isinf(top), 0.0, top)", "    top = np.where(np.abs(top) < 300, 0.0, top)\n    top = np.where(np.isinf(top), 0.0, top)"),
    "a maximum that is only about right": broken(
        "    top = np.where(np.isinf(top), 0.0, top)", "    top = np.where(np.isinf(top), 0.0, np.ceil(top) + 3.0)"),
    "the scale is applied to the queries": broken("* scale\n", "\n").replace(
        "    s = scores_of(q_,", "    s = scores_of(q_ * scale,"),
    "grouped heads without repeating the keys": HEAD + """
def attention(q, k, v, *, scale, causal=False, num_sms=1):
    b, h, n, d = q.shape
    q_ = q.numpy().astype(np.float64).reshape(b, k.shape[1], h // k.shape[1], n, d)
    k_, v_ = (x.numpy().astype(np.float64) for x in (k, v))
    s = np.einsum("bgrid,bgjd->bgrij", q_, k_) * scale
    if causal:
        s = np.where(np.tril(np.ones((n, k.shape[2])), k.shape[2] - n) > 0, s, -np.inf)
    top = s.max(-1)
    top = np.where(np.isinf(top), 0.0, top)
    p = np.exp(s - top[..., None])
    total = p.sum(-1)
    safe = np.where(total == 0, 1.0, total)
    out = np.einsum("bgrij,bgjd->bgrid", p, v_) / safe[..., None]
    lse = np.where(total == 0, -np.inf, top + np.log(safe))
    return torch.tensor(out.reshape(b, h, n, d).astype(np.float32)), torch.tensor(lse.reshape(b, h, n).astype(np.float32))
""",
    "a table of configurations chosen by the lengths": wrapped("""
TABLE = ((64, 16), (256, 32), (1 << 30, 64))


def attention(q, k, v, **rest):
    tile = next(t for most, t in TABLE if k.shape[2] <= most)
    return compute(q, k, v, **rest) if tile else None
"""),
    "a class that holds the plan": wrapped("""
class Plan:
    def __init__(self, scale, causal):
        self.scale = scale
        self.causal = causal

    def __call__(self, q, k, v):
        return compute(q, k, v, scale=self.scale, causal=self.causal)


def attention(q, k, v, *, scale, causal=False, num_sms=1):
    return Plan(scale, causal)(q, k, v)
"""),
    "workers that persist, each with scratch memory, compiled": COMPILED,
}  # fmt: skip

# ---- for Triton's interpreter ----

TRITON_HEAD = '''"""A toy."""

SPACE = {"op": "forward", "backend": "triton", "knobs": {"block": [32]}}

KNOBS = {"block": 32}

# ---- kernel ----
import torch
import triton
import triton.language as tl

'''

SPLIT = (
    TRITON_HEAD
    + '''
@triton.jit
def part(q, k, v, sums, tops, totals, heads, group, seq_q, seq_kv, sqb, sqh, sqs, sqd, skb, skh, sks, skd,
         svb, svh, svs, svd, scale, CAUSAL: tl.constexpr, SPLITS: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr,
         M: tl.constexpr, N: tl.constexpr):
    """One split of the keys, tile by tile: its maximum, sum and unscaled output."""
    tile, bh, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    b, h = bh // heads, bh % heads
    rows, dims = tile * M + tl.arange(0, M), tl.arange(0, D)
    inside = (rows[:, None] < seq_q) & (dims[None, :] < DIM)
    x = tl.load(q + b * sqb + h * sqh + rows[:, None] * sqs + dims[None, :] * sqd, mask=inside, other=0.0).to(tl.float32)
    top = tl.full((M,), float("-inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    out = tl.zeros((M, D), tl.float32)
    for first in range(split * N, seq_kv, SPLITS * N):
        keys = first + tl.arange(0, N)
        there = (keys[:, None] < seq_kv) & (dims[None, :] < DIM)
        y = tl.load(k + b * skb + (h // group) * skh + keys[:, None] * sks + dims[None, :] * skd, mask=there, other=0.0)
        s = tl.dot(x, tl.trans(y.to(tl.float32)), input_precision="ieee") * scale
        seen = keys[None, :] < seq_kv
        if CAUSAL:
            seen = seen & (keys[None, :] <= rows[:, None] + seq_kv - seq_q)
        s = tl.where(seen, s, float("-inf"))
        new = tl.maximum(top, tl.max(s, 1))
        safe = tl.where(new == float("-inf"), 0.0, new)
        p = tl.exp(s - safe[:, None])
        kept = tl.exp(top - safe)
        z = tl.load(v + b * svb + (h // group) * svh + keys[:, None] * svs + dims[None, :] * svd, mask=there, other=0.0)
        total = total * kept + tl.sum(p, 1)
        out = out * kept[:, None] + tl.dot(p, z.to(tl.float32), input_precision="ieee")
        top = new
    place = (split * tl.num_programs(1) + bh) * seq_q + rows
    tl.store(tops + place, top, mask=rows < seq_q)
    tl.store(totals + place, total, mask=rows < seq_q)
    tl.store(sums + place[:, None] * DIM + dims[None, :], out, mask=inside)


@triton.jit
def combine(sums, tops, totals, out, lse, count, SPLITS: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr):
    """One row: all splits by their common maximum."""
    row, splits, dims = tl.program_id(0), tl.arange(0, SPLITS), tl.arange(0, D)
    place = splits * count + row
    top = tl.load(tops + place)
    most = tl.max(top, 0)
    safe = tl.where(most == float("-inf"), 0.0, most)
    weight = tl.exp(top - safe)
    total = tl.sum(tl.load(totals + place) * weight, 0)
    parts = tl.load(sums + place[:, None] * DIM + dims[None, :], mask=dims[None, :] < DIM, other=0.0)
    found = tl.sum(parts * weight[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out + row * DIM + dims, found.to(out.dtype.element_ty), mask=dims < DIM)
    tl.store(lse + row, tl.where(total == 0.0, float("-inf"), safe + tl.log(tl.where(total == 0.0, 1.0, total))))


def attention(q, k, v, *, scale, causal=False, num_sms=1):
    b, h, seq_q, dim = q.shape
    splits, rows = SPLITS_HERE, b * h * seq_q
    sums = torch.empty((splits, rows, dim), dtype=torch.float32, device=q.device)
    tops, totals = (torch.empty((splits, rows), dtype=torch.float32, device=q.device) for _ in range(2))
    out = torch.empty((b, h, seq_q, dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, seq_q), dtype=torch.float32, device=q.device)
    wide = triton.next_power_of_2(max(dim, 16))
    part[(triton.cdiv(seq_q, BLOCK_M), b * h, splits)](
        q, k, v, sums, tops, totals, h, h // k.shape[1], seq_q, k.shape[2], *q.stride(), *k.stride(), *v.stride(),
        scale, CAUSAL=causal, SPLITS=splits, D=wide, DIM=dim, M=BLOCK_M, N=BLOCK_N)
    combine[(rows,)](sums, tops, totals, out, lse, rows, SPLITS=splits, D=wide, DIM=dim)
    return out, lse
'''
)


def split(splits: int, rows: int, keys: int) -> str:
    text = SPLIT.replace("SPLITS_HERE", str(splits)).replace("BLOCK_M", str(rows))
    return text.replace("BLOCK_N", str(keys))


INTERPRETED: dict[str, str] = {
    "one split": split(1, 32, 32),
    "four splits of the keys, and a second launch that combines them": split(4, 16, 16),
    "tall tiles and two splits": split(2, 64, 16),
}
