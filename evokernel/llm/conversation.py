"""One conversation: cheaper models first, shortened when it grows too long, kept for whoever wants to read it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from evokernel.llm import Message, Model, ModelError, Reply, TooLong, ToolSchema, Unavailable

SHORTENINGS = 6  # each halves the longest message but the first two
LEFT_OUT = "\n[... left out, to fit the model's context ...]\n"


@dataclass(frozen=True)
class Said:
    """What was said to models and what they answered, and what it cost."""

    model: str
    messages: tuple[Message, ...]
    tokens: int = 0
    cost_usd: float = 0.0


@dataclass
class Conversation:
    """Messages, the models that may answer them, and how far up in price it has gone."""

    models: Sequence[Model]  # cheapest first
    messages: list[Message] = field(default_factory=list)
    level: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    answered: list[str] = field(default_factory=list)  # models, in the order in which they spoke

    def say(self, content: str, role: str = "user", **more: str) -> None:
        self.messages.append({"role": role, "content": content, **more})

    def ask(self, tools: Sequence[ToolSchema] = (), max_tokens: int = 4096) -> Reply:
        """Return the answer of the first model that gives one, from this level up; raise the last one's ModelError."""
        error: ModelError = Unavailable("no model is configured", lasting=True)
        lasting = True
        while self.level < len(self.models):
            try:
                return self._answer(self.models[self.level], tools, max_tokens)
            except ModelError as failed:
                error, lasting = failed, lasting and failed.lasting
                self.level += 1
        error.lasting = lasting  # as long as one of them may come back, asking again is not in vain
        raise error

    def escalate(self) -> bool:
        """Go on with the next dearer model; False when there is none."""
        if self.level + 1 >= len(self.models):
            return False
        self.level += 1
        return True

    def _answer(self, model: Model, tools: Sequence[ToolSchema], max_tokens: int) -> Reply:
        for _ in range(SHORTENINGS):
            try:
                reply = model.chat(self.messages, tools, max_tokens)
                break
            except TooLong:
                if not self._shorten():
                    raise
        else:
            reply = model.chat(self.messages, tools, max_tokens)
        self.messages.append(reply.message())
        self.tokens += reply.tokens
        self.cost_usd += reply.cost_usd
        if reply.model not in self.answered:
            self.answered.append(reply.model)
        return reply

    def _shorten(self) -> bool:
        """Take the middle out of the longest message; the instructions and the last words of all stay whole."""
        lengths = [len(m.get("content") or "") for m in self.messages]
        candidates = [i for i, m in enumerate(self.messages) if m["role"] != "system"]
        longest = max(candidates, key=lambda i: lengths[i], default=None)
        if longest is None or lengths[longest] < 4 * len(LEFT_OUT):
            return False
        text = self.messages[longest]["content"]
        quarter = len(text) // 4
        self.messages[longest] = {**self.messages[longest], "content": text[:quarter] + LEFT_OUT + text[-quarter:]}
        return True

    def said(self) -> Said:
        kept = tuple(json.loads(json.dumps(m)) for m in self.messages)
        return Said(", ".join(self.answered), kept, self.tokens, self.cost_usd)
