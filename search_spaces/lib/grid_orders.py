"""Grid orders: bijections from a program's number to the (query tile, head) that it computes.

Plain scalar arithmetic, so that a test enumerates the very functions that kernels run. Dies: arXiv
2511.02132 (head-first order swizzled over the dies of a chiplet GPU), here for any number of heads. Longest
first within groups of heads: FlashAttention-3's tile scheduler.
"""

import triton
import triton.language as tl


@triton.jit
def tile_at(index, tiles, heads, ORDER: tl.constexpr, GROUP: tl.constexpr, DIES: tl.constexpr):
    """Return the query tile and the head at place `index` of an order that has tiles * heads places.

    block_first: all heads of a die side by side, tile after tile.  head_first: one head after another.
    longest_first: groups of GROUP heads (what the L2 cache holds), each from the last, longest causal tile
    down.
    """
    total = tiles * heads
    if DIES > 1:
        # Hardware deals programs to dies in turn. Each die gets one run of the order, so that it reads few
        # heads; the first `total % DIES` dies get one tile more.
        die = index % DIES
        longer = total % DIES
        index = die * (total // DIES) + (die if die < longer else longer) + index // DIES
    if ORDER == "head_first":
        return index % tiles, index // tiles
    if ORDER == "block_first":
        group_heads = (heads + DIES - 1) // DIES
    else:
        group_heads = GROUP
    first_head = index // (group_heads * tiles) * group_heads
    left = heads - first_head
    members = group_heads if group_heads < left else left  # the last group may be smaller
    place = index - first_head * tiles
    tile = place // members
    if ORDER == "longest_first":
        tile = tiles - 1 - tile
    return tile, first_head + place % members


@triton.jit
def tile_of_round(worker, turn, workers, SNAKE: tl.constexpr):
    """Return the place of the order that a persistent worker takes in its turn-th round.

    Snaking reverses every second round: who drew the longest tile of one draws the shortest of the next.
    """
    if SNAKE:
        flip = turn % 2
        return turn * workers + worker + flip * (workers - 1 - 2 * worker)
    return turn * workers + worker
