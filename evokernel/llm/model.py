"""Speak to any OpenAI-compatible endpoint: streams, tool calls, retries, rate limits; the only home of `openai`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx2  # what the openai package speaks through; an error in the middle of a stream is one of its own
import openai

from evokernel.llm import Message, Model, ModelError, Refused, Reply, ToolCall, TooLong, ToolSchema, Unavailable
from evokernel.llm.ledger import Hold, Ledger, Price, most_tokens
from evokernel.llm.scripted import parsed

LONGEST_WAIT_S = 60.0  # between two attempts, whatever a server asks for
# A server that ignores the limit of tokens is hung up on. Code has 3 to 4 characters a token; a piece of a stream has
# one token or more.
TOKEN_CHARACTERS = 4
PATIENCE = 4  # timeouts that a whole answer may take; each silence within it may take one
TOO_LONG = ("context_length", "context length", "maximum context", "context window", "too many tokens", "exceeds the")
HIDDEN = "[key]"


class _Unusable(Exception):
    """An answer that was cut off or cannot be read; another attempt may bring a better one."""


@dataclass
class _Heard:
    """An answer while it comes in."""

    text: list[str] = field(default_factory=list)
    refusal: list[str] = field(default_factory=list)
    calls: list[dict[str, str]] = field(default_factory=list)
    by_index: dict[int, int] = field(default_factory=dict)
    finish: str = ""
    usage: tuple[int, int] | None = None
    characters: int = 0
    pieces: int = 0

    def take(self, part: Any, choice: Any) -> None:
        """Add a piece of a stream, or a whole message."""
        content, refusal = getattr(part, "content", None), getattr(part, "refusal", None)
        self.pieces += bool(content)
        for piece, kept in ((content, self.text), (refusal, self.refusal)):
            if isinstance(piece, str):
                kept.append(piece)
                self.characters += len(piece)
        for position, call in enumerate(getattr(part, "tool_calls", None) or ()):
            self._take_call(call, position)
        self.finish = getattr(choice, "finish_reason", None) or self.finish

    def _take_call(self, call: Any, position: int) -> None:
        index = getattr(call, "index", None)
        index = position if index is None else index
        name = getattr(call.function, "name", None) or ""
        slot = self.by_index.get(index)
        # Some servers send every call whole and as number 0; a new id begins a new call.
        if slot is None or (call.id and self.calls[slot]["id"] not in ("", call.id)):
            slot = self.by_index[index] = len(self.calls)
            self.calls.append({"id": "", "name": "", "arguments": ""})
        kept = self.calls[slot]
        kept["id"] = kept["id"] or call.id or ""
        kept["name"] = kept["name"] or name
        piece = getattr(call.function, "arguments", None) or ""
        kept["arguments"] += piece
        self.characters += len(piece)
        self.pieces += bool(piece)

    def count(self, usage: Any) -> None:
        numbers = getattr(usage, "prompt_tokens", None), getattr(usage, "completion_tokens", None)
        if all(isinstance(n, int) and n >= 0 for n in numbers):
            self.usage = (numbers[0], numbers[1])  # type: ignore[assignment]


class Endpoint(Model):
    """One model behind one URL. Its key comes from the environment and goes nowhere but into the request."""

    def __init__(
        self,
        name: str,
        ledger: Ledger,
        base_url: str | None = None,
        key_env: str = "OPENAI_API_KEY",
        price: Price = Price(),  # noqa: B008  frozen
        timeout_s: float = 300.0,
        retries: int = 4,
        backoff_s: float = 1.0,
        per_minute: float | None = None,
        stream: bool = True,
        extra: dict[str, Any] | None = None,  # temperature, reasoning_effort, ...: sent as they are
    ) -> None:
        self.name = name
        self.ledger = ledger
        self.price = price
        self.output_usd = price.output_usd
        self.retries = retries
        self.backoff_s = backoff_s
        self.patience_s = PATIENCE * timeout_s
        self.gap_s = 60 / per_minute if per_minute else 0.0
        self.stream = stream
        self.extra = dict(extra or {})
        self.cancelled = threading.Event()
        self._next_at = 0.0
        self._asked_s = 0.0  # what the server last asked to wait for
        self._lock = threading.Lock()
        self._limit = "max_tokens"  # newer models of one vendor want another name for it
        self._usage_asked = True
        self._key = os.environ.get(key_env, "")
        self._missing = "" if self._key or base_url else f"no key in ${key_env}"
        self._where = urlsplit(base_url).hostname if base_url else "the default endpoint"
        self._client = openai.OpenAI(
            # A local server takes any key; its own retries would be neither counted nor interrupted.
            api_key=self._key or "none", base_url=base_url, timeout=timeout_s, max_retries=0,
        )  # fmt: skip

    def chat(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), max_tokens: int = 4096) -> Reply:
        if self._missing:
            raise Unavailable(f"model {self.name}: {self._missing}", lasting=True)
        why = "cancelled" if self.cancelled.is_set() else ""
        for attempt in range(1 + self.retries):
            if self.cancelled.is_set() or (attempt and self.cancelled.wait(self._delay_s(attempt))):
                break
            self._take_turn()
            held = self.ledger.hold(most_tokens(messages, tools), max_tokens, self.price)
            try:
                return self._attempt(held, messages, tools)
            except _Unusable as error:
                why = self._clean(str(error))
        raise Unavailable(f"model {self.name} at {self._where}: {why}")

    def _delay_s(self, attempt: int) -> float:
        asked = self._asked_s
        self._asked_s = 0.0
        return min(LONGEST_WAIT_S, max(asked, self.backoff_s * 2.0 ** (attempt - 1)))

    def _take_turn(self) -> None:
        """Keep to the rate that the configuration gives."""
        with self._lock:
            start = max(time.monotonic(), self._next_at)
            self._next_at = start + self.gap_s
        self.cancelled.wait(max(0.0, start - time.monotonic()))

    def _attempt(self, held: Hold, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        """Ask once. What a server has not answered for costs its worst case, or the cap would not be hard."""
        tokens, cost_usd = held.tokens, held.cost_usd
        heard = _Heard()
        try:
            self._listen(heard, held, messages, tools)
            if heard.usage:
                tokens, cost_usd = sum(heard.usage), self.price.cost(*heard.usage)
            return self._reply(heard, tokens, cost_usd)
        except (openai.APIStatusError, openai.APIConnectionError) as error:
            if isinstance(error, openai.APIStatusError) or _never_sent(error):
                tokens, cost_usd = 0, 0.0  # it was turned away
            raise self._meaning(error) from None
        except (openai.OpenAIError, httpx2.HTTPError, ValueError) as error:
            raise _Unusable(f"the answer broke off: {error or type(error).__name__}") from None
        finally:
            self.ledger.settle(held, tokens, cost_usd)

    def _listen(self, heard: _Heard, held: Hold, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> None:
        request: dict[str, Any] = {"model": self.name, "messages": list(messages), self._limit: held.tokens_out}
        request |= self.extra
        if tools:
            request["tools"] = list(tools)
        if not self.stream:
            whole = self._client.chat.completions.create(**request)
            for choice in _choices(whole):
                heard.take(getattr(choice, "message", None), choice)
            heard.count(getattr(whole, "usage", None))
            return
        request["stream"] = True
        if self._usage_asked:
            request["stream_options"] = {"include_usage": True}
        with self._client.chat.completions.create(**request) as stream:
            for chunk in self._until_too_much(stream, heard, held):
                for choice in _choices(chunk):
                    heard.take(getattr(choice, "delta", None), choice)
                heard.count(getattr(chunk, "usage", None))

    def _until_too_much(self, stream: Any, heard: _Heard, held: Hold) -> Iterator[Any]:
        """Stop listening to a server that ignores the limit of tokens, comes to no end, or is no longer needed."""
        deadline = time.monotonic() + self.patience_s
        for chunk in stream:
            yield chunk
            if time.monotonic() > deadline:
                raise _Unusable(f"no end after {self.patience_s:g} s")
            if max(heard.pieces, heard.characters / TOKEN_CHARACTERS) > held.tokens_out:
                heard.finish = "length"
                return
            if self.cancelled.is_set():
                raise _Unusable("cancelled")

    def _reply(self, heard: _Heard, tokens: int, cost_usd: float) -> Reply:
        if not heard.finish:
            raise _Unusable("the answer broke off")
        if heard.refusal or heard.finish == "content_filter":
            said = self._clean("".join(heard.refusal)) or "stopped by a content filter"
            raise Refused(f"model {self.name} declined: {said[:300]}")
        calls = []
        for number, call in enumerate(heard.calls):
            written = self._clean(call["arguments"])
            calls.append(ToolCall(call["id"] or f"call-{number}", call["name"], written, parsed(written)))
        text = self._clean("".join(heard.text))
        if not text.strip() and not calls and heard.finish != "length":
            raise _Unusable("the answer is empty")
        return Reply(text, tuple(calls), heard.finish, self.name, tokens, cost_usd)

    def _meaning(self, error: openai.APIError) -> ModelError | _Unusable:
        """Tell what another attempt, a shorter conversation or another model could mend."""
        said = self._clean(str(error))
        if isinstance(error, openai.APIStatusError):
            code = error.status_code
            if code in (400, 413, 422):
                if "max_completion_tokens" in said and self._limit == "max_tokens":
                    self._limit = "max_completion_tokens"
                    return _Unusable(said)
                if "stream_options" in said and self._usage_asked:
                    self._usage_asked = False  # every answer will then cost its worst case
                    return _Unusable(said)
                if code == 413 or any(words in said.lower() for words in TOO_LONG):
                    return TooLong(f"model {self.name}: {said[:300]}")
            if code in (408, 409, 425, 429) or code >= 500:
                self._asked_s = _asked(error)
                return _Unusable(f"HTTP {code}: {said[:300]}")
            return Unavailable(f"model {self.name} at {self._where}: HTTP {code}: {said[:300]}", lasting=True)
        return _Unusable(said[:300])

    def _clean(self, text: str) -> str:
        """Hide the key, should a server repeat it."""
        return text.replace(self._key, HIDDEN) if self._key else text


def _choices(answer: Any) -> Sequence[Any]:
    choices = getattr(answer, "choices", None)
    if not isinstance(choices, list):
        if getattr(answer, "usage", None) is not None:
            return ()
        raise _Unusable("the answer is no chat completion")
    return choices


def _never_sent(error: openai.APIConnectionError) -> bool:
    """A connection that was refused carried no request; one that timed out or broke may have."""
    return isinstance(error.__cause__, httpx2.ConnectError | httpx2.ConnectTimeout)


def _asked(error: openai.APIStatusError) -> float:
    """Return the seconds that the server asks to wait for."""
    try:
        return max(0.0, float(error.response.headers.get("retry-after", 0)))
    except ValueError:
        return 0.0
