"""Backends compile and load candidates. One file, one backend: SPACE['backend'] names it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evokernel.devices import Device
from evokernel.problem import Problem


class CompileError(Exception):
    """The candidate does not compile; the message is the compiler's own, cut to the cause."""


class Backend(ABC):
    """Compiles and loads one candidate. Runs in the candidate's own process."""

    name = "backend"
    device_kind = "cpu"
    imports: frozenset[str] = frozenset()  # modules a candidate of this backend may import

    @abstractmethod
    def load(self, source: Path, entry: str) -> Callable[..., Any]:
        """Import a rendered candidate and return its entry function, or raise CompileError."""

    @abstractmethod
    def compile(self, entry: Callable[..., Any], problem: Problem, device: Device) -> Mapping[str, Any]:
        """Compile every binary that the problem needs and return static facts, or raise CompileError.

        Afterwards a call on any of the problem's workloads compiles nothing more: lengths and strides are not
        specialised.
        """
