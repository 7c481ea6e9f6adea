"""An OpenAI-compatible server on this machine, over real HTTP, that answers well or in every way a server may fail.

It counts the tokens that it reads and writes, four bytes each, so that a client's own account can be judged.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What one request gets. `fault` names a way to fail; None answers well."""

    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()  # (name, arguments as they are written)
    fault: str | None = None
    retry_after: str = ""
    usage: bool = True
    finish: str = ""
    refusal: str = ""
    slow_s: float = 0.0


Script = Callable[[Body], Answer]


@dataclass
class Server:
    """Answers by its script, a function of the request; keeps every request."""

    script: Script
    requests: list[Body] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    tokens: int = 0
    port: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def spend(self, tokens: int) -> None:
        with self.lock:
            self.tokens += tokens


def tokens_of(text: str) -> int:
    return (len(text.encode()) + 3) // 4


def in_turn(answers: list[Answer], then: Answer = Answer("nothing more")) -> Script:
    """Give each answer once, then the last one for ever."""
    left, lock = list(answers), threading.Lock()

    def script(body: Body) -> Answer:
        with lock:
            return left.pop(0) if left else then

    return script


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def log_message(self, *arguments: object) -> None:
        return None

    def do_POST(self) -> None:
        state: Server = self.server.state
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with state.lock:
            state.requests.append(body)
            state.keys.append(self.headers.get("authorization", ""))
        answer = state.script(body)
        if answer.fault in FAILURES:
            return self._status(*FAILURES[answer.fault], answer.retry_after)
        if answer.slow_s:
            state.stopping.wait(answer.slow_s)
        if answer.fault == "hang up":
            self.close_connection = True
            return None
        if answer.fault == "html":
            return self._send(200, b"<html>hello</html>", "text/html")
        if answer.fault == "other json":
            return self._send(200, b'{"hello": [1, 2]}', "application/json")
        prompt = sum(tokens_of(json.dumps(m)) for m in body["messages"]) + tokens_of(json.dumps(body.get("tools", "")))
        limit = body.get("max_tokens", body.get("max_completion_tokens", 1 << 30))
        limit = limit if answer.fault != "no limit" else 1 << 30
        state.spend(prompt)
        try:
            if body.get("stream"):
                self._stream(answer, prompt, limit)
            else:
                self._whole(answer, prompt, limit)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _status(self, code: int, said: Body, retry_after: str) -> None:
        payload = json.dumps({"error": said}).encode()
        self._send(code, payload, "application/json", {"retry-after": retry_after} if retry_after else {})

    def _send(self, code: int, payload: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(payload)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(payload)

    def _whole(self, answer: Answer, prompt: int, limit: int) -> None:
        text = answer.text[: 4 * limit]
        message: Body = {"role": "assistant", "content": text, "refusal": answer.refusal or None}
        if answer.calls:
            message["tool_calls"] = [
                {"id": f"c{i}", "type": "function", "function": {"name": n, "arguments": a}}
                for i, (n, a) in enumerate(answer.calls)
            ]
        written = tokens_of(text + "".join(a for _, a in answer.calls))
        self.server.state.spend(written)
        finish = answer.finish or ("tool_calls" if answer.calls else "stop")
        reply: Body = {
            "id": "x", "object": "chat.completion", "created": 0, "model": "test",
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        }  # fmt: skip
        if answer.usage:
            reply["usage"] = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
        self._send(200, json.dumps(reply).encode(), "application/json")

    def _stream(self, answer: Answer, prompt: int, limit: int) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        if answer.fault == "garbage":
            self._event("this is {no json")
            return
        written = 0
        deltas = self._deltas(answer)
        for number, (delta, size) in enumerate(deltas):
            if written + size > limit:
                answer = Answer(finish="length", usage=answer.usage)
                break
            written += size
            self.server.state.spend(size)
            self._event(json.dumps(_chunk(delta)))
            if answer.fault == "cut" and number == 1:
                return
            if answer.fault == "stall" and number == 1:
                self.server.state.stopping.wait(30)
                return
        self._event(json.dumps(_chunk({}, answer.finish or ("tool_calls" if answer.calls else "stop"))))
        if answer.usage:
            usage = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
            self._event(json.dumps({**_chunk({}), "choices": [], "usage": usage}))
        self._event("[DONE]")

    def _deltas(self, answer: Answer) -> Iterator[tuple[Body, int]]:
        yield {"role": "assistant", "content": ""}, 0
        if answer.refusal:
            yield {"refusal": answer.refusal}, tokens_of(answer.refusal)
        for start in range(0, len(answer.text), 16):
            piece = answer.text[start : start + 16]
            yield {"content": piece}, tokens_of(piece)
        for index, (name, arguments) in enumerate(answer.calls):
            call: Body = {
                "index": index,
                "id": f"c{index}",
                "type": "function",
                "function": {"name": name, "arguments": ""},
            }
            yield {"tool_calls": [call]}, 0
            for start in range(0, len(arguments), 16):
                piece = arguments[start : start + 16]
                yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}, tokens_of(piece)
        while answer.fault == "drip" and not self.server.state.stopping.wait(0.02):
            yield {"content": ""}, 0
        while answer.fault == "no limit":
            time.sleep(0.0002)  # no model writes faster, and a reader cannot stop what is in the pipes already
            yield {"content": "more and more..."}, 4

    def _event(self, data: str) -> None:
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()


FAILURES: dict[str | None, tuple[int, Body]] = {
    "429": (429, {"message": "slow down", "type": "rate_limit"}),
    "500": (500, {"message": "our fault"}),
    "503": (503, {"message": "overloaded"}),
    "401": (401, {"message": "Incorrect API key provided: sk-secret-of-the-test"}),
    "404": (404, {"message": "no such model"}),
    "400": (400, {"message": "we do not like it"}),
    "too long": (
        400,
        {"message": "This model's maximum context length is 100 tokens", "code": "context_length_exceeded"},
    ),
    "no options": (400, {"message": "extra inputs are not permitted: stream_options"}),
    "other limit": (400, {"message": "Unsupported parameter: use 'max_completion_tokens' instead"}),
}


def _chunk(delta: Body, finish: str | None = None) -> Body:
    return {
        "id": "x", "object": "chat.completion.chunk", "created": 0, "model": "test",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }  # fmt: skip


@contextmanager
def serving(script: Script) -> Iterator[Server]:
    state = Server(script)
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    http.state = state  # type: ignore[attr-defined]
    state.port = http.server_port
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.stopping.set()
        http.shutdown()
        http.server_close()


def wait_for(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    """Wait until something holds, or raise."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.005)
