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


def visible(workload: Workload, first: int, last: int, device: torch.device) -> torch.Tensor:
    """Return which keys the queries first..last-1 may see; causal and window are aligned bottom-right."""
    rows = torch.arange(first, last, device=device)[:, None] + workload.seq_kv - workload.seq_q
    keys = torch.arange(workload.seq_kv, device=device)[None, :]
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
        scores = rows @ keys.transpose(-1, -2) * workload.scale
        if workload.softcap is not None:
            scores = workload.softcap * torch.tanh(scores / workload.softcap)
        seen = visible(workload, first, first + rows.shape[2], q.device)
        scores = scores.masked_fill(~seen, float("-inf"))
        top = scores.amax(-1, keepdim=True)
        top = torch.where(top.isinf(), torch.zeros_like(top), top)  # a fully masked row: no −inf − −inf
        weights = torch.exp(scores - top)
        total = weights.sum(-1, keepdim=True)
        if round_weights:
            weights = weights.to(q.dtype).to(compute)
        outs.append(weights @ values / torch.where(total == 0, torch.ones_like(total), total))
        lses.append((top + total.log()).squeeze(-1))
    return Answer(torch.cat(outs, 2), torch.cat(lses, 2))
