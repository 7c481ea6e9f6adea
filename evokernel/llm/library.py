"""Search the notes in llm/knowledge: sections ranked by the rarity of the words that they share with a query."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "knowledge"
WORD = re.compile(r"[a-z0-9_]+")
# BM25's usual constants (Robertson and Zaragoza, 2009): how fast repetitions saturate, how much length counts.
SATURATION, LENGTH = 1.2, 0.75
IN_TITLE = 3  # a word in a section's heading counts as often as this


@dataclass(frozen=True)
class Section:
    """One heading and what stands below it."""

    file: str
    title: str
    text: str

    def __str__(self) -> str:
        return f"[{self.file}] {self.title}\n{self.text}"


def _words(text: str) -> list[str]:
    return [word.rstrip("s") if len(word) > 3 else word for word in WORD.findall(text.lower())]


@functools.cache
def sections() -> tuple[Section, ...]:
    found = []
    for path in sorted(FOLDER.glob("*.md")):
        for part in re.split(r"^## ", path.read_text(), flags=re.MULTILINE)[1:]:
            title, _, text = part.partition("\n")
            found.append(Section(path.stem, title.strip(), text.strip()))
    return tuple(found)


@functools.cache
def _index() -> tuple[list[Counter[str]], Counter[str], float]:
    counts = [Counter(_words(s.text) + IN_TITLE * _words(s.title)) for s in sections()]
    seen = Counter(word for count in counts for word in count)
    return counts, seen, sum(map(Counter.total, counts)) / max(1, len(counts))


def search(query: str, limit: int = 3) -> list[Section]:
    """Return the sections that fit a query best, best first; none when they share no word with it."""
    counts, seen, mean = _index()
    total = len(counts)

    def rank(count: Counter[str]) -> float:
        size = SATURATION * (1 - LENGTH + LENGTH * count.total() / mean)
        return sum(
            math.log(1 + (total - seen[word] + 0.5) / (seen[word] + 0.5))
            * count[word] * (SATURATION + 1) / (count[word] + size)
            for word in set(_words(query))
            if count[word]
        )  # fmt: skip

    ranked = sorted(((rank(c), i) for i, c in enumerate(counts)), key=lambda pair: (-pair[0], pair[1]))
    return [sections()[i] for value, i in ranked[:limit] if value > 0]


def answer(query: str) -> str:
    """Answer a question with sections, or with the list of what there is."""
    found = search(query)
    if found:
        return "\n\n".join(map(str, found))
    return "nothing on that; there is: " + "; ".join(s.title for s in sections())
