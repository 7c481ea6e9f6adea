"""Spaces: canonical genomes, constraints with reasons, and one-line errors."""

import itertools
import random

import pytest

from evokernel import expressions
from evokernel.candidate import Body, Genome, load_genome
from evokernel.errors import CandidateError, SpaceError
from evokernel.space import SearchSpace
from tests.toys import RIGHT, body, genome

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
    "text", ["__import__('os')", "a.b", "[x for x in a]", "lambda: 1", "open('x')", "a if b", "f'{a}'"]
)
def test_an_expression_reaches_nothing_but_its_names(text):
    with pytest.raises(SpaceError):
        expressions.evaluate(text, {"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a + 2 * b == 5", True),
        ("a < b < 3", True),
        ("a in (2, 3)", False),
        ("min(a, b) if b else 0", 1),
        ("not a", False),
    ],
)
def test_expressions_are_pythons(text, value):
    assert expressions.evaluate(text, {"a": 1, "b": 2}) == value


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("# ---- kernel ----", "", "no line '# ---- kernel ----'"),
        ("KNOBS =", "NOBS =", "no KNOBS"),
        ("SPACE =", "PLACE =", "no SPACE"),
        ('"block": 64,', "", "KNOBS lacks 'block'"),
        ('"block": 64,', '"block": 65,', "knob block is 65; choose one of 16, 32, 64, 128"),
        ('"block": 64,', '"block": 64, "bloc": 1,', "unknown knob 'bloc'"),
        ('"block": 64,', '"block": int(64),', "must be a literal"),
        ("def attention(", "def attention((", ":"),
    ],
)
def test_a_module_that_is_no_candidate_is_said_in_one_line(tmp_path, old, new, words):
    path = tmp_path / "mine.py"
    path.write_text(RIGHT.replace(old, new))
    with pytest.raises((CandidateError, SpaceError)) as error:
        load_genome(path)
    assert str(path) in str(error.value)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_rendering_changes_the_knobs_alone():
    rendered = body().render({"block": 32, "rows": 1, "form": "b", "only_a": 1})
    again = Body(rendered)
    assert again.defaults["block"] == 32
    assert again.digest == body().digest


def test_equal_genomes_have_equal_keys_whatever_the_order_of_their_knobs():
    knobs = dict(genome().knobs)
    backwards = dict(reversed(knobs.items()))
    assert Genome(body(), knobs).key == Genome(body(), backwards).key


def test_shared_fragments_are_inlined_so_that_a_candidate_stands_alone():
    template = load_genome(__import__("pathlib").Path("search_spaces/flash_forward_triton.py"))
    assert "search_spaces.lib" not in template.source
    assert "def softmax_step" in template.source
