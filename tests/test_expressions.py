"""Expressions are Python's, and reach nothing but the names they are given."""

import pytest

from evokernel import expressions
from evokernel.errors import SpaceError

VALUES = {"a": 1, "b": 2, "name": "x", "flag": True}


@pytest.mark.parametrize(
    "text",
    [
        "a + 2 * b == 5",
        "a < b < 3",
        "a < b > 3",
        "a in (2, 3)",
        "name not in ('x', 'y')",
        "name in ['x']",
        "min(a, b) if b else 0",
        "max(a, b, 7)",
        "not a",
        "-b + 7 // 2 - 7 % 4",
        "b ** 10 / 4",
        "flag and a == 1 or b > 9",
        "(a, b) == (1, 2)",
        "a != b and name == 'x'",
        "a >= 1 <= b",
    ],
)
def test_an_expression_means_what_it_means_in_python(text):
    assert expressions.evaluate(text, VALUES) == eval(text, {}, VALUES)


def test_and_and_or_stop_as_soon_as_they_know():
    assert expressions.evaluate("a == 1 or 1 // 0", VALUES) is True
    assert expressions.evaluate("a == 2 and 1 // 0", VALUES) is False


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "a.b",
        "a.__class__",
        "a[0]",
        "[x for x in a]",
        "lambda: 1",
        "open('x')",
        "f'{a}'",
        "min",
        "min()",
        "min(*name)",
        "max(a, key=b)",
        "a is b",
        "(a := 3)",
        "{'a': 1}",
        "a @ b",
        "a << b",
    ],
)
def test_an_expression_reaches_nothing_but_its_names(text):
    with pytest.raises(SpaceError, match="is not allowed here"):
        expressions.function(text)


@pytest.mark.parametrize("text", ["a if b", "a +", "", "a = 1", "a; b", "a\x00"])
def test_what_does_not_parse_is_quoted(text):
    with pytest.raises(SpaceError, match="does not parse"):
        expressions.function(text)


@pytest.mark.parametrize("text", ["1 / 0", "a + name", "a in b", "-name", "10 ** 400", "9 ** 9 ** 9 ** 9", "b ** 65"])
def test_what_cannot_be_computed_is_quoted(text):
    with pytest.raises(SpaceError, match="expression '"):
        expressions.evaluate(text, VALUES)


def test_an_unknown_name_is_told_with_the_known_ones():
    with pytest.raises(SpaceError, match=r"unknown name 'blok'; known: a, b, flag, name"):
        expressions.evaluate("blok > 1", VALUES)


def test_the_names_read_are_all_of_them_but_the_functions():
    assert expressions.names("min(a, b) if c in (d, 1) else -e") == {"a", "b", "c", "d", "e"}
