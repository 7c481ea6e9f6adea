"""Language models that propose kernels: what one answers, and the ways in which it may fail to."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]  # of the chat completions API: role, content, tool_calls, tool_call_id
ToolSchema: TypeAlias = dict[str, Any]


class ModelError(Exception):
    """A model gave no usable answer; another may, and this one later unless the fault is a `lasting` one."""

    def __init__(self, message: str, *, lasting: bool = False) -> None:
        super().__init__(message)
        self.lasting = lasting


class Unavailable(ModelError):
    """No answer after every retry: the endpoint is down, or says no to the key, or sends nothing that can be read."""


class Refused(ModelError):
    """The model, or a filter before it, declined to answer."""


class TooLong(ModelError):
    """The conversation does not fit the model's context."""


class Overdrawn(ModelError):
    """The ledger has too little left for another answer."""


@dataclass(frozen=True)
class ToolCall:
    """A tool that the model wants called. `arguments` is None when what it wrote is no JSON object."""

    id: str
    name: str
    written: str
    arguments: Mapping[str, Any] | None


@dataclass(frozen=True)
class Reply:
    """One answer, with what it cost."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish: str = "stop"  # "length" when it was cut at the limit of tokens
    model: str = ""
    tokens: int = 0
    cost_usd: float = 0.0

    def message(self) -> Message:
        """Return the answer as the conversation's next message."""
        message: Message = {"role": "assistant", "content": self.text}
        if self.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.written}}
                for call in self.calls
            ]
        return message


class Model(ABC):
    """Answers conversations. Safe to ask from several threads."""

    name = "model"
    output_usd = 0.0  # per million tokens: cheaper models are asked first
    cancelled: threading.Event  # set when the campaign ends: waits are cut short

    @abstractmethod
    def chat(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), max_tokens: int = 4096) -> Reply:
        """Answer a conversation, or raise ModelError. May block for minutes."""
