"""Read SASS: count what bounds an attention kernel, and write the order of its main loop."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

# Fact, letter in the order, instruction. A wait's letter carries how many products may still be in flight.
MARKS = (
    ("hgmma", "G", re.compile(r"\b[HQI]GMMA\b")),
    ("mma", "M", re.compile(r"\b(?:[HIQOD]MMA|UTC\w*MMA)\b")),
    ("exp2", "e", re.compile(r"\bMUFU\.EX2\b")),
    ("waits", "W", re.compile(r"\bWARPGROUP\.DEPBAR\b(?:.*\b0x([0-9a-f]+))?")),
)
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?(.*?)\s*;")
LABEL = re.compile(r"^(\.L_x_\d+):")
TARGET = re.compile(r"\.L_x_\d+")
ORDER_CHARACTERS = 400


@dataclass
class Block:
    """Instructions that run one after the other."""

    marks: list[tuple[str, str]] = field(default_factory=list)  # (fact, letter)
    instructions: int = 0
    targets: list[str] = field(default_factory=list)
    falls_through: bool = True


def facts(text: str) -> dict[str, Any]:
    """Return counts over the kernel, and over its main loop with the order of what is counted."""
    blocks, labels = _blocks(text)
    loop = _main_loop(blocks, labels)
    everything = [name for block in blocks for name, _ in block.marks]
    inside = [block for index, block in enumerate(blocks) if index in loop]
    return {
        **{name: everything.count(name) for name, _, _ in MARKS},
        "instructions": sum(block.instructions for block in blocks),
        "loop_instructions": sum(block.instructions for block in inside),
        "order": _runs([letter for block in inside for _, letter in block.marks])[:ORDER_CHARACTERS],
    }


def _runs(letters: list[str]) -> str:
    """Write runs as letter and length; a wait as W and the number of products it leaves in flight."""
    parts: list[tuple[str, int]] = []
    for letter in letters:
        if parts and parts[-1][0] == letter and not letter.startswith("W"):
            parts[-1] = (letter, parts[-1][1] + 1)
        else:
            parts.append((letter, 1))
    return " ".join(letter if letter.startswith("W") else f"{letter}{count}" for letter, count in parts)


def _blocks(text: str) -> tuple[list[Block], dict[str, int]]:
    blocks, labels = [Block()], {}
    for line in text.splitlines():
        if label := LABEL.match(line):
            if blocks[-1].instructions:
                blocks.append(Block())
            labels[label[1]] = len(blocks) - 1
        elif found := INSTRUCTION.match(line):
            condition, instruction = found.groups()
            block = blocks[-1]
            block.instructions += 1
            for name, letter, pattern in MARKS:
                if mark := pattern.search(instruction):
                    block.marks.append((name, letter + str(int(mark[1] or "0", 16)) if name == "waits" else letter))
            operation = instruction.split(maxsplit=1)[0]
            if operation.startswith(("BRA", "BRX", "EXIT", "RET", "JMP")):
                block.targets = TARGET.findall(instruction)
                # `BRA P1, label` and `BRA.DIV UR4, label` are conditional without a guard
                plain = not condition and re.fullmatch(r"BRA(\.U)?\s+`?\(?\.L_x_\d+\)?", instruction) is not None
                block.falls_through = not (plain or (operation.startswith(("BRX", "EXIT", "RET")) and not condition))
                blocks.append(Block())
    return blocks, labels


def _main_loop(blocks: list[Block], labels: dict[str, int]) -> set[int]:
    """Return the blocks of the innermost loop with the most matrix products; of equals the shortest.

    Of a causal kernel's two loops, masked and clear, the clear one runs more often and is the shorter.
    """
    following = [
        [labels[t] for t in block.targets if t in labels]
        + ([index + 1] if block.falls_through and index + 1 < len(blocks) else [])
        for index, block in enumerate(blocks)
    ]
    products = [sum(name in ("hgmma", "mma") for name, _ in block.marks) for block in blocks]
    found = [loop for loop in _loops(following) if any(products[i] for i in loop)]
    inner = [loop for loop in found if not any(other < loop for other in found)]
    return max(
        inner,
        key=lambda loop: (sum(products[i] for i in loop), -sum(blocks[i].instructions for i in loop)),
        default=set(),
    )


def _loops(following: list[list[int]]) -> Iterator[set[int]]:
    """Yield the natural loops: for each edge back to a block that dominates it, what reaches it from there.

    Address intervals would not do: spins on a barrier lie out of line and jump back into the middle of a loop.
    """
    before: list[list[int]] = [[] for _ in following]
    for index, targets in enumerate(following):
        for target in targets:
            before[target].append(index)
    dominators = _dominators(following, before)
    by_header: dict[int, set[int]] = {}
    for index, targets in enumerate(following):
        for header in targets:
            if dominators[index] >> header & 1:
                body = by_header.setdefault(header, {header})
                _spread(index, before, body)
    yield from by_header.values()


def _spread(start: int, edges: list[list[int]], reached: set[int]) -> None:
    """Add to `reached` what the edges lead to from a block on, without passing what is in it already."""
    todo = [start]
    while todo:
        block = todo.pop()
        if block not in reached:
            reached.add(block)
            todo += edges[block]


def _dominators(following: list[list[int]], before: list[list[int]]) -> list[int]:
    """Return each block's dominators as a bit set. What no edge reaches (indirect branches do) is an entry too."""
    reached: set[int] = set()
    entries = set()
    for index in range(len(following)):
        if index not in reached:
            entries.add(index)
            _spread(index, following, reached)
    all_blocks = (1 << len(following)) - 1
    dominators = [1 << index if index in entries else all_blocks for index in range(len(following))]
    changed = True
    while changed:
        changed = False
        for index in range(len(following)):
            if index in entries:
                continue
            common = all_blocks
            for earlier in before[index]:
                common &= dominators[earlier]
            common |= 1 << index
            if common != dominators[index]:
                dominators[index] = common
                changed = True
    return dominators
