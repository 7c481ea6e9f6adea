"""Compile one candidate in a process of its own: compilers abort, run for minutes, and print megabytes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from evokernel.measurement import Outcome

LIMIT_S = 120.0
CAUSE_LINES = 6


def compile_in_child(
    source: str, entry: str, problem: dict[str, Any], target: str, limit_s: float = LIMIT_S
) -> tuple[Outcome, str, list[dict[str, Any]]]:
    """Return the outcome, its cause ("" when PASSED) and the static facts of every binary."""
    with tempfile.TemporaryDirectory(prefix="evokernel-") as folder:
        path = Path(folder) / "candidate.py"
        path.write_text(source)
        request = json.dumps({"source": str(path), "entry": entry, "problem": problem, "target": target})
        environment = {**os.environ, "TRITON_CACHE_DIR": str(Path(folder) / "cache"), "HOME": folder}
        environment.pop("TRITON_INTERPRET", None)
        answer = Path(folder) / "answer.json"
        try:
            done = subprocess.run(
                [sys.executable, "-m", "evokernel.backends.compile_child", str(answer)],
                input=request,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=limit_s,
                env=environment,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Outcome.TIMEOUT, f"compiling took longer than {limit_s:g} s", []
        if not answer.exists():
            return Outcome.CRASHED, f"the compiler ended with status {done.returncode}: {cause(done.stderr)}", []
        reply = json.loads(answer.read_text())
    if "error" in reply:
        return Outcome.COMPILE_ERROR, f"{reply['error']}\n{cause(done.stderr)}".strip(), []
    return Outcome.PASSED, "", reply["kernels"]


def cause(text: str) -> str:
    """Cut a compiler's output to the lines that say what went wrong."""
    telling = [line for line in text.splitlines() if re.search(r"error|Assertion|LLVM ERROR|abort|failed", line)]
    return "\n".join(line[:300] for line in (telling or text.splitlines()[-CAUSE_LINES:])[:CAUSE_LINES])


def main() -> None:
    """Answer the request on standard input in the file whose name is the first argument."""
    from evokernel.backends import CompileError
    from evokernel.backends.targets import parse
    from evokernel.backends.triton import Triton, compile_ahead
    from evokernel.problem import Problem

    request = json.loads(sys.stdin.read())
    try:
        entry = Triton().load(Path(request["source"]), request["entry"])
        kernels = compile_ahead(entry, Problem.from_json(request["problem"]), parse(request["target"]))
        reply: dict[str, Any] = {"kernels": kernels}
    except CompileError as error:
        reply = {"error": str(error)[:2000]}
    Path(sys.argv[1]).write_text(json.dumps(reply))


if __name__ == "__main__":
    main()
