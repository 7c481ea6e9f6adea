"""Count the attention calls of the program whose interpreter finds this on its path. See evokernel/tracing.py.

Runs inside the user's program: it imports nothing of ours, waits for torch to be imported, and writes at exit.
"""

import atexit
import collections
import importlib.abc
import importlib.machinery
import json
import os
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

CALLS: collections.Counter[str] = collections.Counter()
LOCK = threading.Lock()


def describe(
    query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: float, is_causal: bool, scale: float | None
) -> str:
    """Return what a call asks for, as a line of JSON."""
    call = {
        "q": list(query.shape),
        "k": list(key.shape),
        "v": list(value.shape),
        "dtype": str(query.dtype).removeprefix("torch."),
        "causal": bool(is_causal),
        "mask": attn_mask is not None,
        "dropout": bool(dropout_p),
        "own_scale": scale is not None and abs(scale * query.shape[-1] ** 0.5 - 1) > 1e-6,
        "grad": bool(query.requires_grad or key.requires_grad or value.requires_grad),
    }
    return json.dumps(call, sort_keys=True)


def watch(torch: Any) -> None:
    real = torch.nn.functional.scaled_dot_product_attention

    def scaled_dot_product_attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        **rest: Any,
    ) -> Any:
        if not torch.compiler.is_compiling():
            with LOCK:
                CALLS[describe(query, key, value, attn_mask, dropout_p, is_causal, scale)] += 1
        return real(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **rest)

    torch.nn.functional.scaled_dot_product_attention = scaled_dot_product_attention


def write() -> None:
    folder = os.environ.get("EVOKERNEL_TRACE")
    if folder and CALLS:
        with open(os.path.join(folder, f"{os.getpid()}.json"), "w") as file:
            json.dump([[json.loads(call), count] for call, count in CALLS.items()], file)


class AfterTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads torch as usual, and then puts the counter in place."""

    loader: Any = None  # torch's own

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None:
            return None
        self.loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        watch(module)


if os.environ.get("EVOKERNEL_TRACE"):
    sys.meta_path.insert(0, AfterTorch())
    atexit.register(write)
