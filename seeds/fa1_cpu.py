"""FlashAttention, Algorithm 1 (arXiv 2205.14135, section 3.1), on the CPU: keys and values outside."""

TEMPLATE = "flash_forward_numba"

KNOBS = {
    "loop_order": "kv_outer",
    "block_m": 64,
    "block_n": 64,
    "exp_form": "exp",
    "rescale": "always",
    "parallel_axis": "heads",
}
