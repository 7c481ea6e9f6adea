"""Read what a compiled kernel will use, without a GPU: registers, spills, shared memory, the order of its main loop."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evokernel.backends.targets import Target
from evokernel.errors import DeviceError

SERIALIZED = re.compile(r"C75(0[89]|1[0-5])")  # ptxas's notes that wgmma cannot overlap
MARKS = (("HGMMA", "G"), ("MUFU.EX2", "e"), ("WARPGROUP.DEPBAR", "W"))
ORDER_CHARACTERS = 400


def tool(name: str) -> Path:
    """Find one of the NVIDIA tools that triton's wheel carries."""
    import triton

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    if not path.exists():
        raise DeviceError(f"{name} is missing from this triton; its Linux wheel carries it")
    return path


def read(compiled: Any, target: Target) -> dict[str, Any]:
    """Return the static facts of one compiled Triton kernel."""
    metadata = compiled.metadata
    facts: dict[str, Any] = {
        "kernel": metadata.name,
        "shared_bytes": metadata.shared,
        "num_warps": metadata.num_warps,
        "over_shared_limit": metadata.shared > target.shared_bytes,
    }
    facts |= _nvidia(compiled.asm) if target.backend == "cuda" else _amd(compiled.asm["amdgcn"])
    facts["occupancy"] = occupancy(facts, target)
    return facts


def occupancy(facts: Mapping[str, Any], target: Target) -> int:
    """Count the blocks that fit a multiprocessor by registers, shared memory and threads."""
    threads = facts["num_warps"] * target.warp_size
    by_threads = target.threads // threads
    by_registers = target.registers // max(1, facts["registers"] * threads)
    by_shared = (target.shared_bytes + 1024) // (facts["shared_bytes"] + 1024)  # 1 KiB of each block is reserved
    return int(min(by_threads, by_registers, by_shared))


def _nvidia(asm: Mapping[str, Any]) -> dict[str, Any]:
    text = asm["ptx"]
    arch = re.search(r"^\.target\s+(\w+)", text, re.MULTILINE)
    with tempfile.TemporaryDirectory() as folder:
        ptx, cubin = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        ptx.write_text(text)
        cubin.write_bytes(asm["cubin"])
        gpu = f"--gpu-name={arch[1]}" if arch else "--gpu-name=sm_90a"
        notes = _output([tool("ptxas"), "-v", gpu, ptx, "-o", Path(folder) / "again.cubin"])
        sass = _output([tool("nvdisasm"), "-c", cubin])
    registers = [int(n) for n in re.findall(r"Used (\d+) registers", notes)]
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill (?:stores|loads)", notes)]
    return {
        "registers": max(registers, default=0),
        "spill_bytes": max(spills, default=0),
        "wgmma_serialized": bool(SERIALIZED.search(notes)),
        **_order(sass),
    }


def _order(sass: str) -> dict[str, Any]:
    """Count matrix products, exponentials and waits, and write their order as letters: G, e and W."""
    found = []
    for line in sass.splitlines():
        for mark, letter in MARKS:
            if mark in line:
                found.append(letter)
    runs = re.sub(r"(.)\1+", lambda run: f"{run[1]}{len(run[0])}", "".join(found))
    return {
        "hgmma": found.count("G"),
        "exp2": found.count("e"),
        "waits": found.count("W"),
        "order": runs[:ORDER_CHARACTERS],
        "instructions": len(re.findall(r"/\*[0-9a-f]{4,}\*/", sass)),
    }


def _amd(text: str) -> dict[str, Any]:
    def number(name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", text)
        return int(found[1]) if found else 0

    return {
        "registers": number("vgpr_count"),
        "accumulation_registers": number("agpr_count"),
        "spill_bytes": 4 * number("vgpr_spill_count"),
        "wgmma_serialized": False,
        "instructions": len(re.findall(r"^\t[sv]_", text, re.MULTILINE)),
    }


def _output(command: list[Any]) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, timeout=120)
    return done.stdout + done.stderr
