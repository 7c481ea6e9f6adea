"""Swizzled head-first order for GPUs of eight dies (arXiv 2511.02132): a die's L2 cache serves few heads."""

TEMPLATE = "flash_forward_triton"

KNOBS = {
    "loop_order": "q_outer",
    "block_m": 128,
    "block_n": 64,
    "num_warps": 8,
    "num_stages": 2,
    "grid_order": "head_first",
    "dies": 8,
}
