"""What an exported module runs for --check and --bench. Its text is copied into the export: it imports torch alone."""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

# ---- check and bench ----
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FLOAT32_EPS = 1.2e-7
# Granted beside twice the reference's error, relative to the largest output: other orders of summation, one rounding.
FLOORS = {torch.float32: 2e-6, torch.bfloat16: 2e-3, torch.float16: 2.5e-4}
PAIRS = 21  # interleaved pairs for each workload; the median of their ratios is steady to about 1%

Attention = Callable[..., Any]


def make_inputs(workload: dict[str, Any], dtype: torch.dtype, device: str, seed: int = 0) -> list[torch.Tensor]:
    """Draw Q, K and V (B, H, S, D) for a workload."""
    generator = torch.Generator(device=device).manual_seed(seed)
    shapes = [(workload["heads"], workload["seq_q"])] + [(workload["kv_heads"], workload["seq_kv"])] * 2
    return [
        torch.randn(workload["batch"], h, s, workload["head_dim"], generator=generator, device=device).to(dtype)
        for h, s in shapes
    ]


def exact_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool, compute: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention by its definition: out and natural log-sum-exp; causal is aligned bottom-right."""
    group = q.shape[1] // k.shape[1]
    keys = k.repeat_interleave(group, 1).to(compute)
    values = v.repeat_interleave(group, 1).to(compute)
    scores = q.to(compute) @ keys.transpose(-1, -2) * scale
    if causal:
        rows = torch.arange(q.shape[2], device=q.device)[:, None] + k.shape[2] - q.shape[2]
        scores = scores.masked_fill(torch.arange(k.shape[2], device=q.device)[None, :] > rows, float("-inf"))
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - torch.where(lse.isinf(), 0.0, lse)[..., None])
    return weights @ values, lse


def worst_error(attention: Attention, workload: dict[str, Any], dtype: torch.dtype, device: str) -> tuple[float, float]:
    """Return the kernel's largest error, and what is allowed: twice that of the same computation in float32."""
    q, k, v = make_inputs(workload, dtype, device, seed=1)
    scale, causal = workload["head_dim"] ** -0.5, workload["causal"]
    out, lse = attention(q, k, v, scale=scale, causal=causal, return_lse=True)
    exact, exact_lse = exact_attention(q, k, v, scale, causal)
    same, same_lse = exact_attention(q, k, v, scale, causal, torch.float32)
    visible = ~exact_lse.isinf()
    if not torch.equal(visible, ~lse.isinf()) or bool(out.isnan().any()):
        return float("inf"), 0.0
    error = float((out.double() - exact).abs().max())
    allowed = 2 * float((same.to(dtype).double() - exact).abs().max()) + FLOORS[dtype] * float(exact.abs().max())
    if bool(visible.any()):
        lse_error = float((lse.double() - exact_lse)[visible].abs().max())
        # A few roundings of float32 at the magnitude of the log-sum-exp.
        lse_allowed = 2 * float((same_lse.double() - exact_lse)[visible].abs().max()) + 4 * FLOAT32_EPS * max(
            1.0, float(exact_lse[visible].abs().max())
        )
        if lse_error > lse_allowed:
            return lse_error, lse_allowed
    return error, allowed


def check(attention: Attention, provenance: dict[str, Any], device: str) -> int:
    """Compare with exact attention at the measured lengths and at odd ones; print a line each; return the failures."""
    failures = 0
    for workload in provenance["workloads"]:
        odd = {**workload, "batch": 1, "seq_q": 77, "seq_kv": 130}
        for case in (workload, odd, {**odd, "seq_q": 130, "seq_kv": 77}, {**odd, "seq_q": 1, "seq_kv": 1}):
            error, tolerance = worst_error(attention, case, DTYPES[provenance["dtype"]], device)
            verdict = "ok" if error <= tolerance else "WRONG"
            failures += verdict != "ok"
            shape = "b{batch} h{heads} kv{kv_heads} {seq_q}x{seq_kv} d{head_dim}".format(**case)
            mask = "causal" if case["causal"] else "full"
            print(f"{verdict:5} {shape} {mask}: largest error {error:.2e}, tolerated {tolerance:.2e}")
    return failures


def bench(attention: Attention, provenance: dict[str, Any], device: str) -> None:
    """Time each measured workload beside torch's SDPA, pair by pair, and print the median of the ratios."""
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def timed(call: Callable[[], Any]) -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e6

    for workload in provenance["workloads"]:
        q, k, v = make_inputs(workload, DTYPES[provenance["dtype"]], device)
        causal = workload["causal"]

        def ours(q: Any = q, k: Any = k, v: Any = v, causal: bool = causal) -> Any:
            return attention(q, k, v, scale=q.shape[-1] ** -0.5, causal=causal)

        def theirs(q: Any = q, k: Any = k, v: Any = v, causal: bool = causal) -> Any:
            return sdpa(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])

        if causal and workload["seq_q"] != workload["seq_kv"]:
            continue  # SDPA aligns its causal mask top-left: not the same function
        for call in (ours, theirs):
            timed(call)
        pairs = [(timed(ours), timed(theirs)) for _ in range(PAIRS)]
        latency, peer = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratio = statistics.median(b / a for a, b in pairs)
        name = "b{batch}_h{heads}_s{seq_q}_d{head_dim}".format(**workload) + ("_causal" if causal else "_full")
        print(f"{name:32} {latency:10.1f} us, sdpa {peer:10.1f} us: {ratio:.3f} of its speed")


def main(attention: Attention, provenance: dict[str, Any]) -> int:
    """Answer the command line of an exported module."""
    parser = argparse.ArgumentParser(description=f"attention kernels found by evokernel run {provenance['run']}")
    parser.add_argument("--check", action="store_true", help="compare with exact attention")
    parser.add_argument("--bench", action="store_true", help="time beside torch's scaled_dot_product_attention")
    chosen = parser.parse_args()
    device = "cuda" if provenance["device_kind"] == "cuda" else "cpu"
    if not (chosen.check or chosen.bench):
        parser.print_help()
    failures = check(attention, provenance, device) if chosen.check else 0
    if chosen.bench:
        bench(attention, provenance, device)
    return 1 if failures else 0
