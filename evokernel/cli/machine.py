"""Commands about this machine and what is at hand: doctor, spaces."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from evokernel.cli.options import Json


def doctor(as_json: Json = False) -> None:
    """Say what this machine can do and what is missing."""
    checks = _checks()
    if as_json:
        print(json.dumps(checks, indent=2))
        return
    for check in checks:
        print(f"{'yes' if check['ok'] else 'no ':4} {check['what']:26} {check['detail']}")


def _checks() -> list[dict[str, Any]]:
    import importlib.util
    import sys

    from evokernel import devices
    from evokernel.worker import sandbox

    def row(what: str, ok: bool, detail: str) -> dict[str, Any]:
        return {"what": what, "ok": ok, "detail": detail}

    versions = devices.versions()
    gpus = devices.gpus()
    rows = [
        row("python >= 3.11", sys.version_info >= (3, 11), versions["python"]),
        row("linux", sys.platform == "linux", f"{sys.platform}; GPU work needs it"),
        row(
            "cpu campaigns (numba)",
            "numba" in versions,
            f"{devices.cpu().model}, numba {versions.get('numba', 'absent')}",
        ),
        row("torch", "torch" in versions, versions.get("torch", "absent: pip install torch")),
        row("triton", "triton" in versions, versions.get("triton", "absent: GPU templates cannot be compiled")),
    ]
    rows += [
        row("seccomp", sandbox.filters_system_calls(), "CPU candidates start no process, open no connection"),
        row("landlock", sandbox.landlock_version() > 0, "candidates write in their own folders alone"),
    ]
    for gpu in gpus:
        rows.append(row("gpu", True, f"{gpu.model}, sm_{gpu.arch}, driver {gpu.facts['driver']}"))
    if not gpus:
        rows.append(row("gpu", False, "no NVIDIA GPU answers: GPU templates can be compiled here, not timed"))
    for module, purpose in (
        ("optuna", "operator tune"),
        ("ray", "evaluator ray"),
        ("openai", "operators that ask a model"),
        ("pyarrow", "landscapes and datasets: pip install 'evokernel-attention[figures]'"),
        ("matplotlib", "figures: pip install 'evokernel-attention[figures]'"),
        ("fa3_fwd_interface", "baseline fa3 (package fa3-fwd)"),
    ):
        rows.append(row(module, importlib.util.find_spec(module) is not None, purpose))
    for tool, purpose in (
        ("ncu", "profiles"),
        ("compute-sanitizer", "races in champions"),
        ("bwrap", "stronger isolation"),
    ):
        rows.append(row(tool, shutil.which(tool) is not None, purpose))
    return rows


def spaces(as_json: Json = False) -> None:
    """List the templates and seeds that a configuration may name."""
    from evokernel.candidate import available, find_module, load_genome

    rows = []
    for folder in ("search_spaces", "seeds"):
        for name in available(folder):
            path = find_module(name, folder)
            genome = load_genome(path)
            space = genome.body.space
            rows.append(
                {
                    "kind": "template" if folder == "search_spaces" else "seed",
                    "name": name,
                    "op": space.op,
                    "backend": space.backend,
                    "combinations": space.size(),
                    "knobs": {knob: list(values) for knob, values in space.knobs.items()},
                    "intent": _first_line(path),
                    "path": str(path),
                }
            )
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        size = f"{row['combinations']:,} combinations" if row["kind"] == "template" else ""
        print(f"{row['kind']:8} {row['name']:24} {row['op']:8} {row['backend']:7} {size:26} {row['intent']}")


def _first_line(path: Path) -> str:
    import ast

    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]


COMMANDS = {"doctor": doctor, "spaces": spaces}
