"""Attention by its definition: exact in float64, and in the arithmetic that a same-dtype kernel is held to."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from evokernel.problem import Workload

ROWS_AT_ONCE = 256  # bounds the score matrix: 256 rows × 16k keys in float64 are 32 MB a head


@dataclass(frozen=True)
class Answer:
    """Output B, H, Sq, D and natural log-sum-exp B, H, Sq."""

    out: torch.Tensor
    lse: torch.Tensor


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, workload: Workload) -> Answer:
    """Compute in float64 throughout."""
    return _attention(q, k, v, workload, torch.float64, round_weights=False)


def same_dtype(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, workload: Workload) -> Answer:
    """Compute as a careful kernel may: float32 scores and sums, weights rounded to the input's dtype, rounded output.

    torch's math path is not this: it upcasts the inputs.
    """
    answer = _attention(q, k, v, workload, torch.float32, round_weights=True)
    return Answer(answer.out.to(q.dtype), answer.lse)


def exact_rows(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, workload: Workload, batch: int, heads: list[int], rows: list[int]
) -> Answer:
    """Compute some rows of some heads of one batch entry in float64: shapes 1, heads, rows, D."""
    group = workload.heads // workload.kv_heads
    kv_heads = [head // group for head in heads]
    chosen = q[batch : batch + 1, heads][:, :, rows].double()
    keys, values = (x[batch : batch + 1, kv_heads].double() for x in (k, v))
    seen = visible_rows(workload, torch.tensor(rows, device=q.device))
    out, lse = _rows(chosen, keys, values, workload, seen, None)
    return Answer(out, lse)


def visible(workload: Workload, first: int, last: int, device: torch.device) -> torch.Tensor:
    """Return which keys the queries first..last-1 may see; causal and window are aligned bottom-right."""
    return visible_rows(workload, torch.arange(first, last, device=device))


def visible_rows(workload: Workload, queries: torch.Tensor) -> torch.Tensor:
    """Return which keys each of some queries may see."""
    rows = queries[:, None] + workload.seq_kv - workload.seq_q
    keys = torch.arange(workload.seq_kv, device=queries.device)[None, :]
    seen = torch.ones_like(rows >= keys)
    if workload.causal:
        seen &= keys <= rows
    left, right = workload.window or (-1, -1)
    if left >= 0:
        seen &= keys >= rows - left
    if right >= 0:
        seen &= keys <= rows + right
    return seen


def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, workload: Workload, compute: torch.dtype, round_weights: bool
) -> Answer:
    group = workload.heads // workload.kv_heads
    keys = k.repeat_interleave(group, 1).to(compute)
    values = v.repeat_interleave(group, 1).to(compute)
    outs, lses = [], []
    for first in range(0, workload.seq_q, ROWS_AT_ONCE):
        rows = q[:, :, first : first + ROWS_AT_ONCE].to(compute)
        seen = visible(workload, first, first + rows.shape[2], q.device)
        out, lse = _rows(rows, keys, values, workload, seen, q.dtype if round_weights else None)
        outs.append(out)
        lses.append(lse)
    return Answer(torch.cat(outs, 2), torch.cat(lses, 2))


def _rows(
    rows: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    workload: Workload,
    seen: torch.Tensor,
    weights_as: torch.dtype | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend from some rows; `weights_as` is the dtype to which the weights are rounded."""
    scores = rows @ keys.transpose(-1, -2) * workload.scale
    if workload.softcap is not None:
        scores = workload.softcap * torch.tanh(scores / workload.softcap)
    scores = scores.masked_fill(~seen, float("-inf"))
    top = scores.amax(-1, keepdim=True)
    top = torch.where(top.isinf(), torch.zeros_like(top), top)  # a fully masked row: no −inf − −inf
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True)
    if weights_as is not None:
        weights = weights.to(weights_as).to(rows.dtype)
    out = weights @ values / torch.where(total == 0, torch.ones_like(total), total)
    return out, (top + total.log()).squeeze(-1)
