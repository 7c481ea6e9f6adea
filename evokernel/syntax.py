"""Parse Python where several threads do.

CPython 3.11 keeps one counter for all threads while it builds a tree. When garbage collection runs Python code in the
middle, another thread may get its turn, parse too, and leave the counter wrong: "AST constructor recursion depth
mismatch", for whoever ends second.
"""

from __future__ import annotations

import ast
import threading

LOCK = threading.RLock()


def parse(source: str) -> ast.Module:
    """Return ast.parse(source), one thread at a time."""
    with LOCK:
        return ast.parse(source)


def parse_expression(text: str) -> ast.expr:
    with LOCK:
        return ast.parse(text, mode="eval").body
