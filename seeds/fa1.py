"""FlashAttention, Algorithm 1 (arXiv 2205.14135, section 3.1): keys outside, query tiles inside."""

TEMPLATE = "flash_forward_triton"

KNOBS = {
    "loop_order": "kv_outer",
    "block_m": 64,
    "block_n": 64,
    "num_warps": 4,
    "num_stages": 1,
    "exponential": "exp",
}
