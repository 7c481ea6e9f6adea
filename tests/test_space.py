"""Spaces: canonical genomes, constraints with reasons, and one-line errors."""

import itertools
import random

import pytest

from evokernel.errors import SpaceError
from evokernel.space import SearchSpace
from tests.toys import body

CONTEXT = {"seq": 100, "head_dim": 16}
SPACE = body().space


def brute_force(space, context):
    found = []
    for values in itertools.product(*space.knobs.values()):
        knobs = space.canonical(dict(zip(space.knobs, values, strict=True)), context)
        if space.valid(knobs, context) and knobs not in found:
            found.append(knobs)
    return found


def test_enumeration_finds_every_valid_genome_once():
    found = list(SPACE.enumerate(CONTEXT))
    expected = brute_force(SPACE, CONTEXT)
    assert len(found) == len(expected)
    assert all(knobs in expected for knobs in found)


def test_a_silenced_knob_is_pinned_so_that_equal_kernels_are_equal_genomes():
    knobs = {"block": 64, "rows": 2, "form": "b", "only_a": 2}
    assert SPACE.canonical(knobs, CONTEXT)["only_a"] == 1


def test_samples_are_valid_and_reach_the_whole_space():
    rng = random.Random(0)
    seen = {tuple(SPACE.sample(rng, CONTEXT).values()) for _ in range(400)}
    assert seen == {tuple(k.values()) for k in brute_force(SPACE, CONTEXT)}


def test_neighbours_are_one_step_away_and_valid():
    start = {"block": 64, "rows": 2, "form": "a", "only_a": 1}
    near = SPACE.neighbours(start, CONTEXT)
    assert {"block": 128, "rows": 2, "form": "a", "only_a": 1} in near
    assert {"block": 16, "rows": 2, "form": "a", "only_a": 1} not in near
    assert all(SPACE.valid(k, CONTEXT) for k in near)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"constraints": {"block > 999": "too small"}}, ["too small", "block > 999 never holds"]),
        ({"constraints": {"head_dim == 64": "only 64"}}, ["only 64", "head_dim=16"]),
        ({"constraints": {"block >= 128": "big", "rows * 64 < block": "few", "rows >= 4": "many"}}, ["all of them together"]),
    ],
)  # fmt: skip
def test_an_empty_space_says_why(change, words):
    space = SearchSpace.from_literal({**SPACE.to_literal(), **change}, "here")
    with pytest.raises(SpaceError) as error:
        space.sample(random.Random(0), CONTEXT)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("literal", "words"),
    [
        ([], "must be a literal dict"),
        ({"op": "forward"}, "lacks"),
        ({"op": "f", "backend": "numba", "knobs": {}}, "at least one knob"),
        ({"op": "f", "backend": "numba", "knobs": {"a": []}}, "needs a list of values"),
        ({"op": "f", "backend": "numba", "knobs": {"a": [1, 1]}}, "lists a value twice"),
        ({"op": "f", "backend": "numba", "knobs": {"a": [1]}, "extra": 1}, "unknown key 'extra'"),
        ({"op": "f", "backend": "numba", "knobs": {"a": [1]}, "conditions": {"b": "a"}}, "'b', which is no knob"),
        ({"op": "f", "backend": "numba", "knobs": {"a": [1]}, "constraints": {"a +": "x"}}, "does not parse"),
    ],
)
def test_a_malformed_space_is_said_in_one_line(literal, words):
    with pytest.raises(SpaceError, match=f"here.*{words}"):
        SearchSpace.from_literal(literal, "here")


@pytest.mark.parametrize(
    ("literal", "words"),
    [
        ({"op": "f", "backend": "numba", "knobs": {"a": [1, True]}}, "lists a value twice"),
        ({"op": "f", "backend": "numba", "knobs": {"a": [[1]]}}, "numbers, booleans or strings"),
        ({"op": "f", "backend": "numba", "knobs": {1: [1]}}, "no name that an expression could use"),
        ({"op": "f", "backend": "numba", "knobs": {"a": [1]}, "conditions": ["a"]}, "must be a dict of strings"),
        ({"op": "f", "backend": "numba", "knobs": {"a": [1]}, "constraints": {"a > 0": None}}, "must be a dict of strings"),
        ({"op": "f", "backend": "numba", "knobs": {"a": [1]}, "constraints": {"a.b": "x"}}, "not allowed"),
        ({"op": "f", "backend": "numba", "knobs": {"a": [1]}, "constraints": {"a and open(a)": "x"}}, "not allowed"),
    ],
)  # fmt: skip
def test_what_only_an_evaluation_would_have_found_is_found_when_the_space_is_read(literal, words):
    with pytest.raises(SpaceError, match=f"here.*{words}"):
        SearchSpace.from_literal(literal, "here")


def space_of(knobs, conditions=None, constraints=None):
    return SearchSpace("forward", "numba", knobs, conditions or {}, constraints or {})


def test_a_knob_whose_condition_reads_a_knob_silenced_later_is_silenced_too():
    space = space_of({"x": (1, 2), "y": (1, 2), "z": (False, True)}, {"x": "y == 2", "y": "z"})
    once = space.canonical({"x": 2, "y": 2, "z": False}, {})
    assert once == {"x": 1, "y": 1, "z": False}
    assert space.canonical(once, {}) == once


def random_space(rng):
    """Make a small space with conditions and constraints at random."""
    names = ["a", "b", "c", "d"]
    knobs = {name: tuple(sorted(rng.sample(range(8), rng.randint(1, 4)))) for name in names}
    conditions = {name: f"{rng.choice(names)} > {rng.randint(0, 6)}" for name in rng.sample(names, rng.randint(0, 2))}
    constraints = {
        f"{rng.choice(names)} + {rng.choice(names)} {rng.choice(['<', '>=', '!='])} {rng.randint(2, 9)}": f"reason {i}"
        for i in range(rng.randint(0, 3))
    }
    return space_of(knobs, conditions, constraints)


@pytest.mark.parametrize("seed", range(40))
def test_enumeration_equals_brute_force_on_spaces_made_at_random(seed):
    space = random_space(random.Random(seed))
    found, expected = list(space.enumerate({})), brute_force(space, {})
    assert sorted(map(str, found)) == sorted(map(str, expected))


@pytest.mark.parametrize("seed", range(40))
def test_canonical_genomes_stay_what_they_are_and_neighbours_are_canonical_and_valid(seed):
    space, rng = random_space(random.Random(seed)), random.Random(seed)
    for knobs in itertools.islice(space.enumerate({}), 20):
        assert space.canonical(knobs, {}) == knobs
        near = space.neighbours(knobs, {})
        assert knobs not in near
        assert all(space.valid(n, {}) and space.canonical(n, {}) == n for n in near)
    if next(space.enumerate({}), None) is None:
        with pytest.raises(SpaceError, match="the space is empty"):
            space.sample(rng, {})


def test_a_categorical_knob_has_every_other_value_for_a_neighbour():
    space = space_of({"form": ("a", "b", "c"), "size": (1, 2, 4)})
    near = space.neighbours({"form": "a", "size": 1}, {})
    assert near == [{"form": "b", "size": 1}, {"form": "c", "size": 1}, {"form": "a", "size": 2}]


def test_a_space_that_is_nearly_empty_yields_its_one_genome():
    space = space_of({name: tuple(range(10)) for name in "abcd"}, {}, {"a + b + c + d == 36": "the last corner"})
    assert space.sample(random.Random(0), {}) == dict.fromkeys("abcd", 9)


def test_a_broken_constraint_is_told_with_its_reason():
    knobs = {"block": 16, "rows": 4, "form": "a", "only_a": 1}
    assert SPACE.broken_constraint(knobs, CONTEXT) == "a block holds its rows (rows * 16 <= block)"


def test_a_restricted_space_offers_only_what_it_was_restricted_to():
    assert SPACE.restricted({"block": [64]}, "here").knobs["block"] == (64,)
    with pytest.raises(SpaceError, match="here: unknown knob 'blok'"):
        SPACE.restricted({"blok": [64]}, "here")
    with pytest.raises(SpaceError, match="no value 65; choose of 16, 32, 64, 128"):
        SPACE.restricted({"block": [65]}, "here")


def test_a_space_written_out_reads_back_the_same():
    assert SearchSpace.from_literal(SPACE.to_literal(), "here") == SPACE
