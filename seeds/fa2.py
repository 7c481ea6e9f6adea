"""FlashAttention-2 (arXiv 2307.08691, sections 3.1 to 3.3): query tiles outside and in parallel."""

TEMPLATE = "flash_forward_triton"

KNOBS = {
    "loop_order": "q_outer",
    "block_m": 128,
    "block_n": 64,
    "num_warps": 8,
    "num_stages": 2,
    "loads": "pointers",
    "mask_loop": "split",
    "grid_order": "head_first",
    "persistent": "off",
    "exponential": "exp2",
    "rescale": "always",
}
