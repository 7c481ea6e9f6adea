"""Frames on a local socket: four bytes of length, then JSON. Nothing that executes crosses it."""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

LIMIT = 1 << 20  # no honest message is longer; a candidate's process cannot fill the parent's memory


ENDED = "the process ended"


class Gone(Exception):
    """The other end is closed, or talks nonsense."""


class Late(Exception):
    """No answer within the time allowed."""


def send(end: socket.socket, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode()
    try:
        end.sendall(struct.pack("!I", len(data)) + data)
    except OSError:
        raise Gone(ENDED) from None


def receive(end: socket.socket, timeout_s: float | None = None) -> dict[str, Any]:
    """Read one message; Late after timeout_s, Gone when the other end is."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    (length,) = struct.unpack("!I", _exactly(end, 4, deadline))
    if length > LIMIT:
        raise Gone(f"a message of {length} bytes")
    try:
        message = json.loads(_exactly(end, length, deadline))
    except (ValueError, RecursionError):
        raise Gone("a message that is not JSON") from None
    if not isinstance(message, dict):
        raise Gone("a message that is no object")
    return message


def _exactly(end: socket.socket, count: int, deadline: float | None) -> bytes:
    data = b""
    while len(data) < count:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Late
            end.settimeout(left)
        else:
            end.settimeout(None)
        try:
            part = end.recv(count - len(data))
        except TimeoutError:
            raise Late from None
        except OSError:
            raise Gone(ENDED) from None
        if not part:
            raise Gone(ENDED)
        data += part
    return data
