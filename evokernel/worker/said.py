"""Clean what a candidate's process says before anyone keeps or prints it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

FACTS, NAME_CHARACTERS = 64, 64
LARGEST = 1 << 62  # of a number: a database's integers end soon after


def printable(text: str) -> str:
    """Drop what a database or a terminal would choke on: lone surrogates, NUL and other control characters."""
    return "".join(c for c in text if c.isprintable() or c in "\n\t")


def plain_facts(facts: Mapping[str, Any], longest: int) -> dict[str, Any]:
    """Keep what a process may report of itself: numbers, and words of at most so many characters."""
    kept: dict[str, Any] = {}
    for name, value in list(facts.items())[:FACTS]:
        if isinstance(value, str):
            kept[printable(name)[:NAME_CHARACTERS]] = printable(value)[:longest]
        elif isinstance(value, bool | int | float) and math.isfinite(value) and abs(value) < LARGEST:
            kept[printable(name)[:NAME_CHARACTERS]] = value
    return kept
