"""Measure `help_s`: how long `evokernel --help` takes from the installed command."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.record import Figure, write


def main() -> None:
    command = Path(sys.executable).parent / "evokernel"
    samples = []
    for _ in range(15):
        start = time.perf_counter()
        subprocess.run([command, "--help"], check=True, capture_output=True)
        samples.append(time.perf_counter() - start)
    write("help.json", [Figure("help_s", "s", "<= 0.5", "median", samples)])


if __name__ == "__main__":
    main()
