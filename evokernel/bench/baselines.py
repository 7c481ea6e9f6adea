"""What a user would call instead: the library kernels that candidates are compared with."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from evokernel.bench.reference import visible
from evokernel.errors import ConfigError
from evokernel.problem import Workload

Call = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
FA3_MODULE = "fa3_fwd_interface"  # of the distribution fa3-fwd


def _needs_mask(workload: Workload) -> bool:
    """Say whether SDPA's own causal flag, aligned top-left, would mean something else."""
    return workload.window is not None or (workload.causal and workload.seq_q != workload.seq_kv)


def _options(workload: Workload, device: torch.device) -> dict[str, Any]:
    mask = visible(workload, 0, workload.seq_q, device) if _needs_mask(workload) else None
    return {
        "attn_mask": mask,
        "is_causal": workload.causal and mask is None,
        "scale": workload.scale,
        "enable_gqa": workload.heads != workload.kv_heads,
    }


def sdpa(workload: Workload, device: torch.device) -> Call:
    """torch.nn.functional.scaled_dot_product_attention, which picks its own kernel."""
    options = _options(workload, device)
    return lambda q, k, v: scaled_dot_product_attention(q, k, v, **options)


def cudnn(workload: Workload, device: torch.device) -> Call:
    """cuDNN's fused attention, through SDPA."""
    options = _options(workload, device)

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return scaled_dot_product_attention(q, k, v, **options)

    return call


def sdpa_flash(workload: Workload, device: torch.device) -> Call:
    """FlashAttention-2, through SDPA."""
    from torch.nn.attention.bias import causal_lower_right

    options = _options(workload, device)
    if options["attn_mask"] is not None:  # bottom-right without a mask, which this kernel does not take
        options["attn_mask"] = causal_lower_right(workload.seq_q, workload.seq_kv)

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return scaled_dot_product_attention(q, k, v, **options)

    return call


@lru_cache(maxsize=1)
def import_fa3() -> Callable[..., Any] | None:
    """Return FlashAttention-3's forward function, or None where it is not installed; touches no device."""
    if find_spec(FA3_MODULE) is None:
        return None
    import importlib

    return importlib.import_module(FA3_MODULE).flash_attn_func  # type: ignore[no-any-return]


def fa3(workload: Workload, device: torch.device) -> Call:
    """FlashAttention-3 (arXiv 2407.08608); its layout is B, S, H, D, its causal mask aligned bottom-right."""
    attend = import_fa3()
    assert attend is not None
    options: dict[str, Any] = {"softmax_scale": workload.scale, "causal": workload.causal}
    if workload.window is not None:
        options["window_size"] = workload.window
    if workload.softcap is not None:
        options["softcap"] = workload.softcap

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        found = attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), **options)
        out = found[0] if isinstance(found, tuple) else found
        return out.transpose(1, 2)  # type: ignore[no-any-return]

    return call


def flex(workload: Workload, device: torch.device) -> Call:
    """torch's FlexAttention, compiled for the shape."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    attend = torch.compile(flex_attention, dynamic=False)
    shift = workload.seq_kv - workload.seq_q
    left, right = workload.window or (-1, -1)

    def seen(batch: Any, head: Any, row: Any, column: Any) -> Any:
        result = column >= 0
        if workload.causal:
            result = result & (column <= row + shift)
        if left >= 0:
            result = result & (column >= row + shift - left)
        if right >= 0:
            result = result & (column <= row + shift + right)
        return result

    options: dict[str, Any] = {"scale": workload.scale, "enable_gqa": workload.heads != workload.kv_heads}
    if workload.causal or workload.window is not None:
        options["block_mask"] = create_block_mask(seen, None, None, workload.seq_q, workload.seq_kv, device=str(device))
    if workload.softcap is not None:
        options["score_mod"] = _capped(workload.softcap)
    return lambda q, k, v: attend(q, k, v, **options)


def _capped(softcap: float) -> Callable[..., torch.Tensor]:
    return lambda score, batch, head, row, column: softcap * torch.tanh(score / softcap)


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


BASELINES: dict[str, Callable[[Workload, torch.device], Call]] = {
    "sdpa": sdpa,
    "math": math,
    "cudnn": cudnn,
    "sdpa_flash": sdpa_flash,
    "fa3": fa3,
    "flex": flex,
}
WITH_SOFTCAP = {"math", "fa3", "flex"}
GPU_ONLY = {"cudnn", "sdpa_flash", "fa3", "flex"}
SIXTEEN_BIT = {"cudnn", "sdpa_flash", "fa3"}


def unserved(name: str, workload: Workload, dtype: str) -> str:
    """Say why a baseline cannot compute a workload; "" when it can."""
    if workload.softcap is not None and name not in WITH_SOFTCAP:
        return "has no softcap"
    if name in SIXTEEN_BIT and dtype == "fp32":
        return "takes 16-bit inputs only"
    if name == "sdpa_flash" and workload.window is not None:
        return "has no window"
    if name == "fa3" and import_fa3() is None:
        return "the package fa3-fwd is not installed"
    return ""


def check_names(names: tuple[str, ...], kind: str = "cpu") -> None:
    """Raise ConfigError for a baseline that does not exist, or not on this kind of device."""
    choices = [name for name in BASELINES if kind == "cuda" or name not in GPU_ONLY]
    for name in names:
        if name not in BASELINES:
            raise ConfigError(f"baselines names {name!r}; choose of {', '.join(choices)}")
        if name not in choices:
            raise ConfigError(f"baselines names {name!r}, which runs on GPUs alone; choose of {', '.join(choices)}")
