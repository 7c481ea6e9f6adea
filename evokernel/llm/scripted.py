"""Models that need no network: one that says what it was told to, and one that replays stored conversations."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from evokernel.llm import Message, Model, ModelError, Reply, ToolCall, ToolSchema, Unavailable

Line = str | Reply | ModelError | Callable[[Sequence[Message]], "str | Reply"]


def called(name: str, number: int = 0, **arguments: Any) -> Reply:
    """Return a reply that calls one tool."""
    written = json.dumps(arguments)
    return Reply(calls=(ToolCall(f"call-{name}-{number}", name, written, arguments),), finish="tool_calls")


class Scripted(Model):
    """Answers with its lines in turn; a line may be a text, a reply, an error to raise, or a function of the talk."""

    name = "scripted"

    def __init__(self, lines: Iterable[Line] = ()) -> None:
        self.lines = iter(lines)
        self.heard: list[list[Message]] = []
        self.cancelled = threading.Event()
        self._lock = threading.Lock()

    def chat(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), max_tokens: int = 4096) -> Reply:
        with self._lock:
            self.heard.append([dict(m) for m in messages])
            line = next(self.lines, None)
        if line is None:
            raise Unavailable("the script is at its end")
        if isinstance(line, ModelError):
            raise line
        said = line(messages) if callable(line) else line
        return Reply(said, model=self.name) if isinstance(said, str) else said


class Replay(Model):
    """Plays stored conversations in their order, at no cost: each new conversation gets the next one's answers.

    Where a stored answer names the parent that its conversation was about, it now names the new one's.
    """

    name = "replay"

    def __init__(self, conversations: Iterable[Sequence[Message]]) -> None:
        self.left = [list(talk) for talk in conversations]
        self.playing: dict[str, list[Message]] = {}
        self.cancelled = threading.Event()
        self._lock = threading.Lock()

    def chat(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), max_tokens: int = 4096) -> Reply:
        opening = json.dumps([m for m in messages if m.get("role") in ("system", "user")][:2], sort_keys=True)
        turn = sum(m.get("role") == "assistant" for m in messages)
        with self._lock:
            if turn == 0:
                if not self.left:
                    raise Unavailable("every stored conversation has been played")
                self.playing[opening] = self.left.pop(0)
            talk = self.playing.get(opening, [])
        answers = [m for m in talk if m.get("role") == "assistant"]
        if turn >= len(answers):
            raise Unavailable("the stored conversation ends here")
        return _as_reply(answers[turn], _parent(talk), _parent(messages))


def _parent(talk: Sequence[Message]) -> str:
    found = re.search(r"The parent is candidate (\d+)\.", str([m.get("content") for m in talk[:2]]))
    return found[1] if found else ""


def _as_reply(message: Message, then: str, now: str) -> Reply:
    calls = []
    for call in message.get("tool_calls", ()):
        written = call["function"]["arguments"]
        if then and now:
            written = re.sub(rf'("(?:parent|candidate)": ?){then}\b', rf"\g<1>{now}", written)
        calls.append(ToolCall(call["id"], call["function"]["name"], written, parsed(written)))
    return Reply(message.get("content") or "", tuple(calls), "tool_calls" if calls else "stop", Replay.name)


def parsed(written: str) -> dict[str, Any] | None:
    """Read a tool call's arguments; None when they are no JSON object."""
    try:
        value = json.loads(written or "{}")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
