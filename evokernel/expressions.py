"""A small, safe expression language for conditions and constraints: Python's own syntax, no calls but min and max."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from evokernel.errors import SpaceError

BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
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
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise SpaceError(f"expression {text!r} does not parse: {error.msg}") from None
    return tree


@lru_cache(maxsize=4096)
def names(text: str) -> frozenset[str]:
    """Return the variables that an expression reads."""
    return frozenset(n.id for n in ast.walk(parse(text)) if isinstance(n, ast.Name)) - FUNCTIONS.keys()


def evaluate(text: str, values: Mapping[str, Any]) -> Any:
    """Evaluate an expression over named values; SpaceError quotes the expression and the offending part."""

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=constant):
                return constant
            case ast.Name(id=name):
                if name not in values:
                    raise SpaceError(f"expression {text!r}: unknown name {name!r}; known: {', '.join(sorted(values))}")
                return values[name]
            case ast.Tuple(elts=items) | ast.List(elts=items):
                return tuple(value(item) for item in items)
            case ast.BoolOp(op=ast.And(), values=parts):
                return all(value(part) for part in parts)
            case ast.BoolOp(op=ast.Or(), values=parts):
                return any(value(part) for part in parts)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not value(operand)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
                return BINARY[type(op)](value(left), value(right))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return value(body) if value(test) else value(orelse)
            case ast.Compare(left=left, ops=ops, comparators=rights):
                current = value(left)
                for comparison, right in zip(ops, rights, strict=True):
                    other = value(right)
                    if type(comparison) not in COMPARE:
                        break
                    if not COMPARE[type(comparison)](current, other):
                        return False
                    current = other
                else:
                    return True
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
                return FUNCTIONS[name](*(value(arg) for arg in args))
        raise SpaceError(f"expression {text!r}: {ast.unparse(node)!r} is not allowed here")

    try:
        return value(parse(text))
    except (TypeError, ZeroDivisionError, ValueError) as error:
        raise SpaceError(f"expression {text!r}: {error}") from None
