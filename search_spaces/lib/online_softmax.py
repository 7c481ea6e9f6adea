"""The online-softmax step folds a block of scores into the running maximum, sum and output."""

import triton
import triton.language as tl


@triton.jit
def softmax_step(s, factor, acc, m_i, l_i, EXP: tl.constexpr, GUARD: tl.constexpr, RESCALE: tl.constexpr):
    """Return (p, acc, m_i, l_i) after one block; p is not normalised.

    GUARD: a row may have seen nothing yet, and -inf - -inf must not reach the exponential. Hidden scores are
    -inf, not a large finite number: `s * factor - m_i` is one multiply-add, and what it keeps of 1e30 would
    get there too.
    RESCALE: "always" multiplies the output; "moved" only does when some row's maximum moved; "threshold" lets
    a maximum stand until p would exceed 256, which fp16 holds, so that few blocks rescale (FlashAttention-4).
    """
    peak = tl.max(s, 1) * factor
    if RESCALE == "threshold":
        limit: tl.constexpr = 8.0 if EXP == "exp2" else 5.545177444479562  # log(256) in its base
        m_new = tl.where(peak - m_i > limit, peak, m_i)
    else:
        m_new = tl.maximum(m_i, peak)
    base = m_new
    if GUARD:
        base = tl.where(m_new == float("-inf"), 0.0, m_new)
    if EXP == "exp2":
        p = tl.exp2(s * factor - base[:, None])
        alpha = tl.exp2(m_i - base)
    else:
        p = tl.exp(s * factor - base[:, None])
        alpha = tl.exp(m_i - base)
    l_i = l_i * alpha + tl.sum(p, 1)
    if RESCALE == "always":
        acc = acc * alpha[:, None]
    elif tl.max((m_new != m_i).to(tl.int32), 0) > 0:
        acc = acc * alpha[:, None]
    return p, acc, m_new, l_i


@triton.jit
def softmax_end(acc, m_i, l_i, EXP: tl.constexpr):
    """Return the normalised output and the natural-log lse; rows that saw nothing give 0 and -inf."""
    out = acc * (1.0 / tl.where(l_i == 0.0, 1.0, l_i))[:, None]
    if EXP == "exp2":
        return out, (m_i + tl.log2(l_i)) * 0.6931471805599453
    return out, m_i + tl.log(l_i)
