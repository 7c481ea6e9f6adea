"""FlashAttention-3 (arXiv 2407.08608, section 3): warp specialization, ping-pong, overlap inside a warpgroup.

The tile is the paper's for head_dim up to 128, 128 queries by 128 keys; fa3_d256 has the one for 256.
"""

TEMPLATE = "flash_forward_gluon"

KNOBS = {
    "consumers": 2,
    "block_n": 128,
    "stages": 2,
    "consumer_registers": 240,
    "producer_registers": 24,
    "overlap": True,
    "schedule_fence": True,
    "ping_pong": True,
    "mask_loop": "split",
    "store": "q_buffer",
    "grid": "tiles",
    "group_heads": 1,
}
