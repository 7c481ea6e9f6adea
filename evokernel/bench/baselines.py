"""What a user would call instead: the library kernels that candidates are compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from evokernel.bench.reference import visible
from evokernel.errors import ConfigError
from evokernel.problem import Workload

Call = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _mask(workload: Workload, device: torch.device) -> torch.Tensor | None:
    """Return an explicit mask where SDPA's own causal flag, aligned top-left, would mean something else."""
    plain_causal = workload.causal and workload.seq_q == workload.seq_kv
    if workload.window is None and (plain_causal or not workload.causal):
        return None
    return visible(workload, 0, workload.seq_q, device)


def sdpa(workload: Workload, device: torch.device) -> Call:
    """torch.nn.functional.scaled_dot_product_attention, which picks its own kernel."""
    mask = _mask(workload, device)
    options: dict[str, Any] = {
        "attn_mask": mask,
        "is_causal": workload.causal and mask is None,
        "scale": workload.scale,
        "enable_gqa": workload.heads != workload.kv_heads,
    }
    return lambda q, k, v: scaled_dot_product_attention(q, k, v, **options)


def math(workload: Workload, device: torch.device) -> Call:
    """Attention written out in torch: the score matrix goes through memory."""
    mask = visible(workload, 0, workload.seq_q, device)
    group = workload.heads // workload.kv_heads

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = q @ k.transpose(-1, -2) * workload.scale
        if workload.softcap is not None:
            scores = workload.softcap * torch.tanh(scores / workload.softcap)
        return torch.softmax(scores.masked_fill(~mask, float("-inf")), -1).nan_to_num() @ v

    return call


BASELINES: dict[str, Callable[[Workload, torch.device], Call]] = {"sdpa": sdpa, "math": math}
WITHOUT_SOFTCAP = {"sdpa"}


def serves(name: str, workload: Workload) -> bool:
    return workload.softcap is None or name not in WITHOUT_SOFTCAP


def check_names(names: tuple[str, ...]) -> None:
    for name in names:
        if name not in BASELINES:
            raise ConfigError(f"baselines names {name!r}; choose of {', '.join(BASELINES)}")
