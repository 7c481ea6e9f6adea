"""Run one candidate, or one baseline, for the parent: load, compile, and call it on tensors in shared memory.

Nothing here is trusted: the parent holds the oracle, the clock and the verdict.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from evokernel.backends import Backend, CompileError
from evokernel.bench import baselines
from evokernel.devices import Device
from evokernel.problem import Problem, Workload
from evokernel.worker import wire
from evokernel.worker.arena import Arena, place_from_json

ERROR_CHARACTERS = 4000


class CaptureError(Exception):
    """The call cannot be recorded as a graph of GPU work."""


def backend(name: str) -> Backend:
    """Return the backend that SPACE['backend'] names."""
    import importlib

    module = importlib.import_module(f"evokernel.backends.{name}")
    found = getattr(module, name.capitalize())()
    assert isinstance(found, Backend)
    return found


class Serving:
    """Answers the parent's requests until the socket closes."""

    def __init__(self, end: socket.socket, device: Device, arena: Arena) -> None:
        self.end = end
        self.device = device
        self.arena = arena
        self.backend: Backend | None = None
        self.entry: Callable[..., Any] | None = None
        self.bound: dict[str, torch.Tensor] = {}
        self.arguments: dict[str, Any] = {}
        self.case: int | None = None  # of several calls, the one being made

    def serve(self) -> None:
        while True:
            try:
                request = wire.receive(self.end)
            except wire.Gone:
                return
            try:
                reply = getattr(self, "do_" + request.pop("op"))(**request) or {}
            except CompileError as error:
                reply = {"error": str(error)[:ERROR_CHARACTERS], "kind": "compile"}
            except CaptureError as error:
                reply = {"error": str(error)[:ERROR_CHARACTERS], "kind": "capture"}
            except BaseException as error:  # even SystemExit is the candidate's own failure
                reply = {"error": f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS], "kind": "runtime"}
            if "error" in reply and self.case is not None:
                reply["case"] = self.case
            self.case = None
            try:
                wire.send(self.end, reply)
            except wire.Gone:
                return

    def do_load(self, source: str, backend_name: str, entry: str) -> None:
        self.backend = backend(backend_name)
        self.entry = self.backend.load(Path(source), entry)

    def do_compile(self, problem: dict[str, Any]) -> dict[str, Any]:
        assert self.backend is not None and self.entry is not None
        return {"facts": dict(self.backend.compile(self.entry, Problem.from_json(problem), self.device))}

    def do_baseline(self, name: str, workload: dict[str, Any]) -> None:
        call = baselines.BASELINES[name](Workload.from_json(workload), torch.device("cpu"))
        self.entry = lambda q, k, v: (call(q, k, v), None)
        self.arguments = {}

    def do_bind(self, places: dict[str, Any], arguments: dict[str, Any]) -> None:
        """Name the tensors of the calls that follow."""
        self.bound = {name: self.arena.view(place_from_json(place)) for name, place in places.items()}
        if arguments.get("window"):
            arguments["window"] = tuple(arguments["window"])
        self.arguments = arguments

    def do_run(self) -> None:
        """Call once, and put what comes back where the parent reads it."""
        self.keep(*self.call())

    def do_run_all(self, calls: list[dict[str, Any]]) -> None:
        """Bind and call once for each; whatever is raised belongs to the one that self.case names."""
        for self.case, call in enumerate(calls):
            self.do_bind(**call)
            self.keep(*self.call())
        self.case = None

    def call(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the entry function's outputs, of the types and shapes that were asked for."""
        assert self.entry is not None
        bound = self.bound
        out, lse = self.entry(bound["q"], bound["k"], bound["v"], **self.arguments)
        require("out", out, bound["out"])
        if lse is not None:
            require("lse", lse, bound["lse"])
        return out, lse

    def keep(self, out: torch.Tensor, lse: torch.Tensor | None) -> None:
        self.bound["out"].copy_(out)
        if lse is not None:
            self.bound["lse"].copy_(lse)


def require(name: str, value: Any, place: torch.Tensor) -> None:
    """Raise TypeError unless a value is a plain tensor like the one it is to be copied to."""
    like = value.shape == place.shape and value.dtype == place.dtype if type(value) is torch.Tensor else False
    if not like or value.device != place.device:
        found = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise TypeError(f"{name} is {found}; expected {place.dtype} {tuple(place.shape)}")
