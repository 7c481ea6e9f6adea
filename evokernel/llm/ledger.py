"""Account for every token and dollar before it is spent, so that no cap is ever passed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evokernel.llm import Message, Overdrawn, ToolSchema

LEAST_ANSWER = 64  # tokens; an answer cut shorter is of no use
PER_MESSAGE = 16  # tokens that a chat template puts around each message, at most
MILLION = 1e6


@dataclass(frozen=True)
class Price:
    """USD per million tokens."""

    input_usd: float = 0.0
    output_usd: float = 0.0

    def cost(self, tokens_in: int, tokens_out: int) -> float:
        return (tokens_in * self.input_usd + tokens_out * self.output_usd) / MILLION


@dataclass(frozen=True)
class Hold:
    """What one request may cost at most."""

    tokens_in: int
    tokens_out: int
    cost_usd: float

    @property
    def tokens(self) -> int:
        return self.tokens_in + self.tokens_out


def most_tokens(messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> int:
    """Bound the tokens of a prompt without its tokenizer: no token is shorter than a byte."""
    return sum(len(str(part).encode("utf-8", "replace")) + PER_MESSAGE for part in (*messages, *tools))


class Ledger:
    """Spending under hard caps; None is unlimited. Every request holds its worst case until it is settled."""

    def __init__(
        self,
        cap_tokens: int | None = None,
        cap_usd: float | None = None,
        spent_tokens: int = 0,
        spent_usd: float = 0.0,
    ) -> None:
        self.cap_tokens = cap_tokens
        self.cap_usd = cap_usd
        self.tokens = spent_tokens
        self.usd = spent_usd
        self.journal: Callable[[], None] = lambda: None  # called before every request: what is held survives a kill
        self._held: list[Hold] = []
        self._lock = threading.Lock()

    def hold(self, tokens_in: int, tokens_out: int, price: Price) -> Hold:
        """Set aside a request's worst case, its answer shortened to what is left; Overdrawn when that is too short."""
        with self._lock:
            if self.cap_tokens is not None:
                left = self.cap_tokens - self.tokens - sum(h.tokens for h in self._held)
                tokens_out = min(tokens_out, left - tokens_in)
            if self.cap_usd is not None and price.cost(tokens_in, tokens_out) > 0:
                left_usd = self.cap_usd - self.usd - sum(h.cost_usd for h in self._held) - price.cost(tokens_in, 0)
                affordable = left_usd * MILLION / price.output_usd if price.output_usd else tokens_out
                tokens_out = min(tokens_out, int(affordable)) if left_usd >= 0 else 0
            if tokens_out < LEAST_ANSWER:
                raise Overdrawn(f"the budget for models is spent: {self}", lasting=True)
            held = Hold(tokens_in, tokens_out, price.cost(tokens_in, tokens_out))
            self._held.append(held)
        self.journal()
        return held

    def settle(self, held: Hold, tokens: int, cost_usd: float) -> None:
        """Replace what was held by what was spent."""
        with self._lock:
            if held not in self._held:
                return  # the ledger was closed, and counted the worst case
            self._held.remove(held)
            self.tokens += tokens
            self.usd += cost_usd

    def committed(self) -> tuple[int, float]:
        """Return tokens and USD, those that are held included."""
        with self._lock:
            return self.tokens + sum(h.tokens for h in self._held), self.usd + sum(h.cost_usd for h in self._held)

    def close(self) -> None:
        """Count what is still held as spent: nobody will wait for those answers."""
        with self._lock:
            self.tokens += sum(h.tokens for h in self._held)
            self.usd += sum(h.cost_usd for h in self._held)
            self._held.clear()
            self.cap_tokens, self.cap_usd = 0, 0.0

    def __str__(self) -> str:
        tokens = (
            f"{self.tokens} of {self.cap_tokens} tokens" if self.cap_tokens is not None else f"{self.tokens} tokens"
        )
        usd = f"{self.usd:.4f} of {self.cap_usd:g} USD" if self.cap_usd is not None else f"{self.usd:.4f} USD"
        return f"{tokens}, {usd}"
