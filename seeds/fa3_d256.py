"""FlashAttention-3 (arXiv 2407.08608, section 3) at head_dim 256: 128 queries by 64 keys, two stages."""

TEMPLATE = "flash_forward_gluon"

KNOBS = {
    "consumers": 2,
    "block_n": 64,
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
