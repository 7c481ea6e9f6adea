"""Make up names for runs that have none."""

from __future__ import annotations

import random
from collections.abc import Container

ADJECTIVES = (
    "amber", "brisk", "calm", "dusky", "eager", "fleet", "golden", "hushed", "jolly", "keen", "lucid", "mellow",
)  # fmt: skip
NOUNS = ("badger", "comet", "dune", "ember", "falcon", "glade", "heron", "island", "kestrel", "lynx", "maple", "otter")


def unused(taken: Container[str]) -> str:
    """Return a name that is not taken."""
    pick = random.SystemRandom()
    while True:
        name = f"{pick.choice(ADJECTIVES)}-{pick.choice(NOUNS)}"
        if name in taken:
            name += f"-{pick.randrange(2, 1000)}"
        if name not in taken:
            return name
