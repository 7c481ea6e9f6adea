"""Archives decide which candidates may become parents. One file, one archive."""

from __future__ import annotations

import enum
import random
from abc import ABC, abstractmethod
from dataclasses import dataclass

from evokernel.measurement import Record


class Admission(enum.Enum):
    NEW = "new"  # filled an empty cell
    IMPROVED = "improved"  # replaced the incumbent of its cell
    REFUSED = "refused"


@dataclass(frozen=True)
class Entry:
    """A candidate as the archive holds it: its latest record and the score over all its measurements."""

    record: Record
    score: float


class Archive(ABC):
    """Keeps the candidates of one shape class that may become parents."""

    @abstractmethod
    def add(self, record: Record, score: float | None) -> Admission:
        """Consider a scored candidate; a known one is judged anew, and dropped when disproved (no score)."""

    @abstractmethod
    def entries(self) -> list[Entry]:
        """Return what is kept, best first."""

    @abstractmethod
    def sample(self, rng: random.Random, count: int) -> list[Entry]:
        """Draw up to `count` distinct parents, better ones more often; fewer when there are fewer."""
