"""Run the command line as a stranger does: in a process of its own, in a folder, on this checkout."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def environment(**more):
    """Return this process's environment with the checkout on the path; what the caller has there stays."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), **more}


def runner(folder, timeout=120, **more):
    """Return a function that runs `evokernel` with its arguments and expects an exit code."""

    def run(*arguments, code=0):
        done = subprocess.run(
            [sys.executable, "-m", "evokernel", *map(str, arguments)],
            cwd=folder, env=environment(**more), capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run
