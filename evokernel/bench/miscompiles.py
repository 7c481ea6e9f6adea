"""Find code that a known compiler bug turns into wrong numbers, silently; it advises, the correctness check decides."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from evokernel import syntax

TRANSPOSED_PRODUCT = "dot(trans(x), y) where x comes out of a dot is miscompiled on Hopper by triton 3.4.0 to 3.7.0"
FIRST_BAD, FIRST_GOOD = (3, 4), (3, 7, 1)
ARCH = "cuda:90"
TRANSPOSES = frozenset({"trans", "permute", "T"})


def warnings(source: str) -> list[tuple[int, str]]:
    """Return (line, rule) for each suspect place, whatever the target and the compiler's version."""
    try:
        tree = syntax.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []  # what does not parse does not compile either
    flow = _Flow({node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)})
    try:
        return [(line, TRANSPOSED_PRODUCT) for line in sorted(set(flow.suspects()))]
    except RecursionError:
        return []


def affected(target: str, triton_version: str) -> bool:
    """Say whether this compiler has the bug on that target."""
    version = tuple(int(n) for n in re.findall(r"\d+", triton_version)[:3])
    return target == ARCH and FIRST_BAD <= version < FIRST_GOOD


@dataclass
class _Flow:
    """Which names may hold a dot's result, straight or transposed, followed through helpers, not through order."""

    functions: dict[str, ast.FunctionDef]
    products: set[tuple[str, str]] = field(default_factory=set)  # (function, name)
    turned: set[tuple[str, str]] = field(default_factory=set)
    returns_product: set[str] = field(default_factory=set)
    returns_turned: set[str] = field(default_factory=set)

    def suspects(self) -> Iterator[int]:
        while self._spread():
            pass
        for name, function in self.functions.items():
            for node in ast.walk(function):
                if not isinstance(node, ast.Call) or _called(node) != "dot":
                    continue
                if node.args and self._is_turned(name, node.args[0]):
                    yield node.lineno

    def _size(self) -> int:
        return len(self.products) + len(self.turned) + len(self.returns_product) + len(self.returns_turned)

    def _spread(self) -> bool:
        before = self._size()
        for name, function in self.functions.items():
            for node in ast.walk(function):
                if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    held = {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
                    self._note(name, node.value, held)
                elif isinstance(node, ast.Return) and node.value is not None:
                    if self._is_product(name, node.value):
                        self.returns_product.add(name)
                    if self._is_turned(name, node.value):
                        self.returns_turned.add(name)
                elif isinstance(node, ast.Call) and (called := self.functions.get(_called(node))):
                    for parameter, value in zip(called.args.args, node.args, strict=False):
                        self._note(name, value, {parameter.arg}, called.name)
                    for keyword in node.keywords:
                        if keyword.arg:
                            self._note(name, keyword.value, {keyword.arg}, called.name)
        return self._size() > before

    def _note(self, function: str, value: ast.expr, names: set[str], holder: str = "") -> None:
        if self._is_product(function, value):
            self.products |= {(holder or function, n) for n in names}
        if self._is_turned(function, value):
            self.turned |= {(holder or function, n) for n in names}

    def _is_product(self, function: str, value: ast.expr) -> bool:
        """Say whether a dot's result may be among what the expression is made of; addresses of loads are not."""
        if isinstance(value, ast.Call):
            called = _called(value)
            if called == "load":
                return False
            if called in self.functions:
                return called in self.returns_product
            if called == "dot":
                return True
        if isinstance(value, ast.Name):
            return (function, value.id) in self.products
        return any(self._is_product(function, child) for child in _operands(value))

    def _is_turned(self, function: str, value: ast.expr) -> bool:
        if isinstance(value, ast.Name):
            return (function, value.id) in self.turned
        if isinstance(value, ast.Attribute) and value.attr == "T":
            return self._is_product(function, value.value)
        if isinstance(value, ast.Call):
            called = _called(value)
            if called in self.functions:
                return called in self.returns_turned
            if called in ("load", "dot"):
                return False
            if called in TRANSPOSES:
                return self._is_product(function, value)
        return any(self._is_turned(function, child) for child in _operands(value))


def _called(node: ast.Call) -> str:
    """Return the last part of a called name: `dot` of tl.dot."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _operands(value: ast.expr) -> Iterator[ast.expr]:
    """Yield the parts of an expression, of a method call also the object: x of x.to(...)."""
    for child in ast.iter_child_nodes(value):
        if isinstance(child, ast.expr):
            yield child
        elif isinstance(child, ast.keyword):
            yield child.value
