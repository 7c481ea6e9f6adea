"""Every grid order visits every (query tile, head) once; these are the functions that kernels run."""

import itertools

import pytest

from search_spaces.lib.grid_orders import tile_at, tile_of_round

TILES = (1, 2, 3, 7, 16, 33)
HEADS = (1, 2, 3, 5, 8, 12, 33)
GROUPS = (1, 2, 4, 8, 16, 32)
DIES = (1, 2, 4, 8)


def visited(tiles, heads, order, group, dies):
    return [tile_at.fn(index, tiles, heads, order, group, dies) for index in range(tiles * heads)]


@pytest.mark.parametrize("order", ["head_first", "block_first", "longest_first"])
def test_an_order_is_a_bijection_for_all_tiles_heads_groups_and_dies(order):
    for tiles, heads, group, dies in itertools.product(TILES, HEADS, GROUPS, DIES):
        expected = list(itertools.product(range(tiles), range(heads)))
        assert sorted(visited(tiles, heads, order, group, dies)) == expected, (tiles, heads, group, dies)


@pytest.mark.parametrize("snake", [False, True])
def test_persistent_workers_share_out_every_place_once(snake):
    for total, workers in itertools.product((1, 2, 7, 64, 131, 264, 300), (1, 2, 3, 132)):
        rounds = -(-total // workers)
        draws = itertools.product(range(workers), range(rounds))
        places = [tile_of_round.fn(worker, turn, workers, snake) for worker, turn in draws]
        assert sorted(place for place in places if place < total) == list(range(total)), (total, workers)


def test_a_die_keeps_to_its_own_heads():
    tiles, heads, dies = 5, 8, 4
    for order, group in (("head_first", 1), ("block_first", 1), ("longest_first", 2)):
        seen = visited(tiles, heads, order, group, dies)
        for die in range(dies):
            assert {head for _, head in seen[die::dies]} == {2 * die, 2 * die + 1}, order


def test_longest_first_begins_with_the_last_tile_of_each_head_of_the_group():
    assert visited(3, 4, "longest_first", 2, 1)[:6] == [(2, 0), (2, 1), (1, 0), (1, 1), (0, 0), (0, 1)]


def test_block_first_takes_all_heads_side_by_side():
    assert visited(2, 3, "block_first", 1, 1) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_snaking_workers_turn_around_every_second_round():
    rounds = [[tile_of_round.fn(worker, turn, 3, True) for worker in range(3)] for turn in range(2)]
    assert rounds == [[0, 1, 2], [5, 4, 3]]
