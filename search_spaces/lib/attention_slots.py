"""The three slots that an attention variant fills: the score, the keys a query sees, the blocks that matter.

Causal is a window that ends at the diagonal. Row i sees key j when i + low <= j <= i + high and j < seq_kv,
where low = seq_kv - seq_q - left and high = seq_kv - seq_q + right: the diagonal ends bottom-right.
"""

import triton
import triton.language as tl


@triton.jit
def modify_scores(s, scale, softcap, SOFTCAP: tl.constexpr):
    """Return (scores, factor): the score that softmax sees, in the unit of its exponential, is their product.

    A pure scale stays a factor, because softmax folds it into its own multiply-add. With a softcap, `scale`
    is such that exp2(s * scale) = exp(2 x) for tanh's argument x, and `softcap` has the unit of softmax's
    exponential.
    """
    if SOFTCAP:
        # cap * tanh(x) = cap - 2 cap / (1 + exp(2x)): no library call, and right at both infinities.
        return softcap - 2.0 * softcap / (1.0 + tl.exp2(s * scale)), 1.0
    return s, scale


@triton.jit
def visible(rows, cols, low, high, seq_kv, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """Return which keys each query sees, the tail of the keys included; rows and cols broadcast."""
    seen = cols < seq_kv
    if RIGHT:
        seen = seen & (cols <= rows + high)
    if LEFT:
        seen = seen & (cols >= rows + low)
    return seen


@triton.jit
def block_range(
    row, low, high, seq_kv,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
):  # fmt: skip
    """Return (first, first_full, end_full, end): blocks that a tile's rows see, and those all see in full.

    Blocks outside [first_full, end_full) need the mask: several on either side when the tile is not square.
    """
    end_key = seq_kv
    end_full_key = seq_kv
    if RIGHT:
        end_key = tl.maximum(tl.minimum(seq_kv, row + BLOCK_M + high), 0)
        end_full_key = tl.maximum(tl.minimum(seq_kv, row + 1 + high), 0)
    end = tl.cdiv(end_key, BLOCK_N)
    first = 0
    first_full = 0
    if LEFT:
        first = tl.minimum(tl.maximum(row + low, 0) // BLOCK_N, end)
        first_full = tl.minimum(tl.cdiv(tl.maximum(row + BLOCK_M - 1 + low, 0), BLOCK_N), end)
    return first, first_full, tl.maximum(end_full_key // BLOCK_N, first_full), end
