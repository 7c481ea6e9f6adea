"""Read the attention shapes of a model from its Hugging Face config.json."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evokernel.errors import EvokernelError
from evokernel.problem import TORCH_NAMES, Workload


@dataclass(frozen=True)
class ModelShapes:
    """What a model asks of attention when it reads prompts of these lengths."""

    name: str
    dtype: str
    workloads: tuple[Workload, ...]
    notes: tuple[str, ...]  # what the file says that a campaign does not search for


def shapes(path: Path, batches: Sequence[int], lengths: Sequence[int]) -> ModelShapes:
    """Return a workload for each batch and length. EvokernelError names the key that is missing or odd."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise EvokernelError(f"{path}: {error}") from None
    if not isinstance(data, dict):
        raise EvokernelError(f"{path}: holds {type(data).__name__}; expected a model's configuration")
    text = data.get("text_config")
    if isinstance(text, dict):  # a multimodal model keeps its language model's there
        data = {**data, **text}
    heads = _count(path, data, "num_attention_heads", "n_head", "n_heads")
    hidden = _count(path, data, "hidden_size", "n_embd", "d_model")
    kv_heads = data.get("num_key_value_heads") or heads
    head_dim = data.get("head_dim") or hidden // heads
    if not isinstance(kv_heads, int) or heads % kv_heads:
        raise EvokernelError(f"{path}: num_key_value_heads is {kv_heads!r}; {heads} heads need a divisor of theirs")
    names = {torch: ours for ours, torch in TORCH_NAMES.items()}
    dtype = names.get(str(data.get("torch_dtype") or data.get("dtype")), "bf16")
    architecture = (data.get("architectures") or [data.get("model_type", "model")])[0]
    causal = not any(word in str(architecture) for word in ("Bert", "Encoder", "MaskedLM", "ViT"))
    notes = []
    if data.get("sliding_window") and data.get("use_sliding_window", True):
        notes.append(f"sliding_window {data['sliding_window']}: give `window` in the rows to search for it")
    if data.get("attn_logit_softcapping"):
        notes.append(f"attn_logit_softcapping {data['attn_logit_softcapping']}: give `softcap` in the rows")
    workloads = tuple(
        Workload(batch, heads, kv_heads, length, length, head_dim, causal)
        for batch, length in itertools.product(batches, lengths)
    )
    return ModelShapes(str(architecture), dtype, workloads, tuple(notes))


def _count(path: Path, data: dict[str, Any], *names: str) -> int:
    """Return the first of some keys that is there."""
    for name in names:
        if name in data:
            value = data[name]
            if not isinstance(value, int) or value < 1:
                raise EvokernelError(f"{path}: {name} is {value!r}; expected a positive number")
            return value
    raise EvokernelError(f"{path}: {names[0]} is missing")
