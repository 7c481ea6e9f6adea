"""Read what a compiled kernel will use, without a GPU: registers, spills, shared memory, the order of its main loop."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evokernel.backends import sass
from evokernel.backends.targets import Target, nvidia_tool

SERIALIZED = re.compile(r"C751[0-5]")  # ptxas's notes that wgmma cannot overlap
TOOL_LIMIT_S = 60.0


def read(compiled: Any, target: Target, ptxas_log: str = "") -> dict[str, Any]:
    """Return the static facts of one compiled Triton kernel; without its log, ptxas is asked once more."""
    metadata = compiled.metadata
    facts: dict[str, Any] = {
        "kernel": metadata.name,
        "shared_bytes": metadata.shared,
        "num_warps": metadata.num_warps,
    }
    facts |= _nvidia(compiled.asm, target, ptxas_log) if target.backend == "cuda" else _amd(compiled.asm["amdgcn"])
    facts["occupancy"] = occupancy(facts, target)
    return facts


def summary(kernels: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one fact each for a candidate that launches several kernels: the worst of them, or the sum."""
    if not kernels:
        return {}
    worst = ("registers", "spill_bytes", "shared_bytes", "num_warps")
    return {
        **{name: max(k[name] for k in kernels) for name in worst},
        "occupancy": min(k["occupancy"] for k in kernels),
        "wgmma_serialized": any(k["wgmma_serialized"] for k in kernels),
        "instructions": sum(k["instructions"] for k in kernels),
        "order": max(kernels, key=lambda k: int(k.get("loop_instructions", 0))).get("order", ""),
    }


def occupancy(facts: Mapping[str, Any], target: Target) -> int:
    """Count the blocks that fit a multiprocessor by registers, shared memory and threads; 0 cannot launch."""
    threads = facts["num_warps"] * target.warp_size
    each = -(-facts["registers"] // 8) * 8  # registers are given out in eights
    limits = [target.blocks, target.threads // threads, target.registers // max(1, each * threads)]
    if facts["shared_bytes"]:
        reserved = target.reserved_shared_bytes
        limits.append((target.shared_bytes + reserved) // (facts["shared_bytes"] + reserved))
    return int(min(limits))


def _nvidia(asm: Mapping[str, Any], target: Target, log: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(asm["cubin"])
        log = log or _assemble(asm["ptx"], target, Path(folder))
        # Without its data-flow analysis, which only annotates, nvdisasm takes half the time.
        text = _output([nvidia_tool("nvdisasm"), "-c", "-ndf", cubin])
    registers = [int(n) for n in re.findall(r"Used (\d+) registers", log)]
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill (?:stores|loads)", log)]
    return {
        "registers": max(registers, default=0),
        "spill_bytes": max(spills, default=0),
        "wgmma_serialized": bool(SERIALIZED.search(log)),
        **sass.facts(text),
    }


def _assemble(ptx: str, target: Target, folder: Path) -> str:
    arch = re.search(r"^\.target\s+(\w+)", ptx, re.MULTILINE)
    source = folder / "kernel.ptx"
    source.write_text(ptx)
    gpu = f"--gpu-name={arch[1]}" if arch else f"--gpu-name=sm_{target.number}"
    return _output([nvidia_tool(target.assembler), "-v", gpu, source, "-o", folder / "again.cubin"])


def _amd(text: str) -> dict[str, Any]:
    def number(name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", text)
        return int(found[1]) if found else 0

    return {
        "registers": number("vgpr_count"),  # on CDNA3 the accumulation registers are among them
        "accumulation_registers": number("agpr_count"),
        "scalar_registers": number("sgpr_count"),
        "spill_bytes": 4 * number("vgpr_spill_count"),
        "scalar_spills": number("sgpr_spill_count"),  # into lanes of vector registers, not into memory
        "wgmma_serialized": False,
        "mfma": len(re.findall(r"^\tv_mfma_", text, re.MULTILINE)),
        "exp2": len(re.findall(r"^\tv_exp_", text, re.MULTILINE)),
        "waits": len(re.findall(r"^\ts_waitcnt", text, re.MULTILINE)),
        "instructions": len(re.findall(r"^\t(?:[sv]|ds|buffer|global|flat|scratch)_", text, re.MULTILINE)),
    }


def _output(command: list[Any]) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, timeout=TOOL_LIMIT_S
    )
    return done.stdout + done.stderr
