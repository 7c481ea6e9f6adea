"""A small, safe expression language for conditions and constraints: Python's own syntax, no calls but min and max."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from evokernel import syntax
from evokernel.errors import SpaceError

Function: TypeAlias = Callable[[Mapping[str, Any]], Any]

LARGEST_POWER = 64  # an expression may come from a language model: 9**9**9 must not stall the driver


def _power(base: Any, exponent: Any) -> Any:
    if abs(exponent) > LARGEST_POWER or abs(base) > 2**LARGEST_POWER:
        raise ValueError(f"{base} ** {exponent} is too large")
    return base**exponent


BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max}


@lru_cache(maxsize=4096)
def parse(text: str) -> ast.expr:
    """Parse an expression, or raise SpaceError quoting it."""
    try:
        return syntax.parse_expression(text)
    except (SyntaxError, ValueError) as error:
        raise SpaceError(f"expression {text!r} does not parse: {getattr(error, 'msg', error)}") from None


@lru_cache(maxsize=4096)
def names(text: str) -> frozenset[str]:
    """Return the variables that an expression reads."""
    return frozenset(n.id for n in ast.walk(parse(text)) if isinstance(n, ast.Name)) - FUNCTIONS.keys()


@lru_cache(maxsize=4096)
def function(text: str) -> Function:
    """Return the expression as a function of its names; SpaceError quotes a part that is not allowed.

    A search evaluates the same few expressions thousands of times a second; walking the tree each time is slow.
    """
    return _function(parse(text), text)


def _function(node: ast.expr, text: str) -> Function:
    def part(inner: ast.expr) -> Function:
        return _function(inner, text)

    match node:
        case ast.Constant(value=constant):
            return lambda values: constant
        case ast.Name(id=name) if name not in FUNCTIONS:
            return lambda values: values[name]
        case ast.Tuple(elts=items) | ast.List(elts=items):
            elements = [part(item) for item in items]
            return lambda values: tuple(element(values) for element in elements)
        case ast.BoolOp(op=op, values=items):
            parts = [part(item) for item in items]
            if isinstance(op, ast.And):
                return lambda values: all(p(values) for p in parts)
            return lambda values: any(p(values) for p in parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = part(operand)
            return lambda values: not inner(values)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = part(operand)
            return lambda values: -inner(values)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            combine, a, b = BINARY[type(op)], part(left), part(right)
            return lambda values: combine(a(values), b(values))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            condition, a, b = part(test), part(body), part(orelse)
            return lambda values: a(values) if condition(values) else b(values)
        case ast.Compare(left=left, ops=ops, comparators=rights) if all(type(op) in COMPARE for op in ops):
            return _comparison(part(left), [COMPARE[type(op)] for op in ops], [part(right) for right in rights])
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS and args:
            call, arguments = FUNCTIONS[name], [part(arg) for arg in args]
            return lambda values: call(*(argument(values) for argument in arguments))
    raise SpaceError(f"expression {text!r}: {ast.unparse(node)!r} is not allowed here")


def _comparison(first: Function, tests: list[Callable[[Any, Any], Any]], rights: list[Function]) -> Function:
    if len(tests) == 1:
        test, right = tests[0], rights[0]
        return lambda values: test(first(values), right(values))

    def chained(values: Mapping[str, Any]) -> bool:
        current = first(values)
        for test, right in zip(tests, rights, strict=True):
            other = right(values)
            if not test(current, other):
                return False
            current = other
        return True

    return chained


def evaluate(text: str, values: Mapping[str, Any]) -> Any:
    """Evaluate an expression over named values; SpaceError quotes the expression and the offending part."""
    try:
        return function(text)(values)
    except KeyError as error:
        raise SpaceError(
            f"expression {text!r}: unknown name {error.args[0]!r}; known: {', '.join(sorted(values))}"
        ) from None
    except (TypeError, ArithmeticError, ValueError, MemoryError) as error:
        raise SpaceError(f"expression {text!r}: {error}") from None
