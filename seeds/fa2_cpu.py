"""FlashAttention-2 (arXiv 2307.08691, sections 3.1 and 3.2), on the CPU: query tiles outside, in parallel."""

TEMPLATE = "flash_forward_numba"

KNOBS = {
    "loop_order": "q_outer",
    "block_m": 64,
    "block_n": 64,
    "mask_where": "diagonal",
    "rescale": "always",
    "parallel_axis": "tiles",
}
