"""What decides, in an exported module, who computes a call. Its text is copied there: it imports torch alone."""

import os
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch

# ---- given by the export ----
KERNELS: dict[str, Callable[..., tuple[torch.Tensor, torch.Tensor]]] = {}  # by shape class
BANDS: list[tuple[str, int | None]] = []  # length bands: name, and the longest query length
PROVENANCE: dict[str, Any] = {}
NAMESPACE = "evokernel_unnamed"  # of the custom operator
# ---- dispatch ----
DTYPE_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
POLICIES = ("sdpa", "raise")
ROWS_AT_ONCE = 256  # of scores, when a fallback has to compute the log-sum-exp
settings = {"policy": os.environ.get("EVOKERNEL_POLICY", "sdpa")}
warned: set[str] = set()
decided: dict[Any, "Path"] = {}


class Unproven(ValueError):
    """The call is not one that a kernel of this module was proven for."""


@dataclass(frozen=True)
class Path:
    """Who computes a call: a kernel's shape class, or None for torch's SDPA, and why."""

    kernel: str | None
    reason: str


def policy(name: str) -> None:
    """Choose what happens to calls that were not proven: "sdpa" warns once and lets torch compute, "raise" raises."""
    if name not in POLICIES:
        raise ValueError(f"policy {name!r}; choose one of {', '.join(POLICIES)}")
    settings["policy"] = name


def explain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False) -> Path:
    """Say which kernel serves a call, or why none does. Tensors are B, H, S, D."""
    shapes = q.ndim == k.ndim == v.ndim == 4 and k.shape == v.shape and q.shape[0] == k.shape[0]
    if not shapes or q.shape[3] != k.shape[3] or 0 in q.shape or 0 in k.shape or q.shape[1] % k.shape[1]:
        return Path(None, f"shapes {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}")
    if not q.dtype == k.dtype == v.dtype or DTYPE_NAMES.get(q.dtype) != PROVENANCE["dtype"]:
        return Path(None, f"dtype {q.dtype}; proven is {PROVENANCE['dtype']}")
    if any(x.device != q.device for x in (k, v)) or q.device.type != PROVENANCE["device_kind"]:
        return Path(None, f"device {q.device}; proven is {PROVENANCE['device']}")
    if any(x.stride(3) != 1 for x in (q, k, v)):
        return Path(None, "layout: the last dimension is not contiguous")
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        return Path(None, "inputs require grad; the kernels have no backward")
    if reason := elsewhere(q.device):
        return Path(None, reason)
    group = q.shape[1] // k.shape[1]
    if group not in PROVENANCE["groups"]:
        return Path(None, f"{group} query heads for each of K and V; proven are {PROVENANCE['groups']}")
    stem = f"d{q.shape[3]}_{'causal' if causal else 'full'}_{PROVENANCE['dtype']}_"
    here = next(i for i, (_, longest) in enumerate(BANDS) if longest is None or q.shape[2] <= longest)
    for index in sorted(range(len(BANDS)), key=lambda i: abs(i - here)):
        name = stem + BANDS[index][0]
        if name in KERNELS:
            return Path(name, "proven" if index == here else f"proven for {BANDS[index][0]} lengths, the nearest band")
    return Path(None, f"no kernel for {stem}*; this module has {', '.join(KERNELS)}")


def elsewhere(device: torch.device) -> str:
    """Say what differs from where the kernels were proven, or "". A CPU kernel is right on any CPU."""
    if device.type != "cuda":
        return ""
    if (name := torch.cuda.get_device_name(device)) != PROVENANCE["device"]:
        return f"device {name}; proven on {PROVENANCE['device']}"
    tested = PROVENANCE["versions"].get("triton")
    if (found := metadata.version("triton")) != tested:
        return f"triton {found}; proven with {tested}"
    return ""


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    return_lse: bool = False,
) -> Any:
    """Return attention's output (B, H, S, D), with return_lse also the natural log-sum-exp (B, H, S) in float32.

    Causal is aligned bottom-right when K is longer or shorter than Q; a row that sees no key gives 0 and −inf.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if torch.compiler.is_compiling():
        out, lse = operator(q, k, v, scale, causal)
    else:
        out, lse = compute(q, k, v, scale, causal, return_lse)
    return (out, lse) if return_lse else out


def compute(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool, with_lse: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    grad = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    kinds = q.dtype, k.dtype, v.dtype, q.device, k.device, v.device
    key = q.shape, k.shape, v.shape, q.stride(-1), k.stride(-1), v.stride(-1), kinds, causal, grad
    path = decided.get(key)
    if path is None:
        path = decided[key] = explain(q, k, v, causal=causal)
    if path.kernel is not None:
        return KERNELS[path.kernel](q, k, v, scale=scale, causal=causal, num_sms=processors(q.device))
    unproven(path.reason)
    return by_torch(q, k, v, scale, causal, with_lse)


def unproven(reason: str) -> None:
    """Raise or warn, as the policy says; of each reason one warning."""
    if settings["policy"] == "raise":
        raise Unproven(reason)
    if reason not in warned:
        warned.add(reason)
        warnings.warn(f"computed by torch's SDPA, not by a kernel of this module: {reason}", stacklevel=4)


def by_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool, with_lse: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute with SDPA; the log-sum-exp, which it does not return, from the scores, some rows at a time."""
    mask = seen(q, k, 0, q.shape[2]) if causal and q.shape[2] != k.shape[2] else None
    grouped = q.shape[1] != k.shape[1]
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal and mask is None, scale=scale, enable_gqa=grouped
    )
    if mask is not None:  # a row that sees nothing is 0 here, NaN in some of torch's kernels
        out = torch.where(mask.any(-1)[:, None], out, torch.zeros_like(out))
    if not with_lse:
        return out, torch.empty(0, device=q.device)
    keys = k.repeat_interleave(q.shape[1] // k.shape[1], 1).float().transpose(-1, -2)
    parts = []
    for first in range(0, q.shape[2], ROWS_AT_ONCE):
        rows = q[:, :, first : first + ROWS_AT_ONCE].float() @ keys * scale
        if causal:
            rows = rows.masked_fill(~seen(q, k, first, first + rows.shape[2]), float("-inf"))
        parts.append(torch.logsumexp(rows, -1))
    return out, torch.cat(parts, 2)


def seen(q: torch.Tensor, k: torch.Tensor, first: int, last: int) -> torch.Tensor:
    """Return which keys each of some queries may see, aligned bottom-right."""
    rows = torch.arange(first, last, device=q.device)[:, None] + k.shape[2] - q.shape[2]
    return torch.arange(k.shape[2], device=q.device)[None, :] <= rows


def processors(device: torch.device) -> int:
    if device.type != "cuda":
        return torch.get_num_threads()
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@torch.library.custom_op(f"{NAMESPACE}::attention", mutates_args=())
def operator(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """What torch.compile sees: opaque, with the shapes below."""
    out, lse = compute(q, k, v, scale, causal, True)
    return out.contiguous(), lse


@operator.register_fake
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Take the arguments, and give the results, of torch's function of that name: causal is aligned top-left here."""
    reason = ""
    if attn_mask is not None:
        reason = "an attention mask"
    elif dropout_p:
        reason = "dropout"
    elif query.ndim != 4 or (query.shape[1] != key.shape[1] and not enable_gqa):
        reason = f"shapes {tuple(query.shape)}, {tuple(key.shape)} without enable_gqa"
    elif is_causal and query.shape[2] > key.shape[2]:
        reason = "top-left causal with more queries than keys"
    if reason:
        unproven(reason)
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if is_causal and key.shape[2] > query.shape[2]:  # top-left: keys beyond the queries are seen by none
        key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
    return attention(query, key, value, scale=scale, causal=is_causal)  # type: ignore[no-any-return]


def warmup(shapes: Iterable[dict[str, Any]], device: str | None = None) -> None:
    """Compile ahead of the first real call. A shape has batch, heads, seq_q, head_dim; seq_kv, kv_heads, causal follow.

    ValueError for a shape that no kernel serves.
    """
    dtype = next(d for d, name in DTYPE_NAMES.items() if name == PROVENANCE["dtype"])
    for shape in shapes:
        known = {"batch", "heads", "seq_q", "head_dim", "seq_kv", "kv_heads", "causal"}
        if unknown := shape.keys() - known:
            raise ValueError(f"warmup: unknown {', '.join(sorted(unknown))}; a shape has {', '.join(sorted(known))}")
        heads, seq_q, causal = shape["heads"], shape["seq_q"], bool(shape.get("causal", False))
        sizes = [(heads, seq_q), *[(shape.get("kv_heads", heads), shape.get("seq_kv", seq_q))] * 2]
        place = device or PROVENANCE["device_kind"]
        q, k, v = (torch.zeros(shape["batch"], h, s, shape["head_dim"], dtype=dtype, device=place) for h, s in sizes)
        path = explain(q, k, v, causal=causal)
        if path.kernel is None:
            raise Unproven(path.reason)
        attention(q, k, v, causal=causal)
