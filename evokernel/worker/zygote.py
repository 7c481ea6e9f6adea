"""Fork one disposable process per candidate out of a process that has already imported what candidates need.

Started by exec (a fork out of a process with threads is not safe). It never computes and never touches a device, so
each child starts clean, in milliseconds.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evokernel.worker import sandbox

PR_SET_PDEATHSIG = 1
REQUEST_BYTES = 65536
DESCRIPTORS = 3  # at most: a channel, a log, an arena
OPEN_FILES = {"cpu": 256, "cuda": 1024}  # the CUDA driver opens a few hundred


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends: Ray and SIGKILL leave orphans otherwise."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def confine(request: dict[str, Any], log: int) -> None:
    """Give a child its own process group, home, standard streams and limits."""
    os.setpgid(0, 0)
    die_with_parent()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(request["home"])
    os.environ.update(HOME=request["home"], TMPDIR=request["home"])
    tempfile.tempdir = None  # as the zygote may have found it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Output beyond this raises in the candidate, so that gigabytes of text fill no disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (request["output_bytes"],) * 2)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES[request["device"]["kind"]],) * 2)
    if request["cpu_s"]:
        resource.setrlimit(resource.RLIMIT_CPU, (request["cpu_s"],) * 2)
    if request["memory_bytes"]:
        with open("/proc/self/statm") as statm:
            mapped = int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (mapped + request["memory_bytes"],) * 2)
    if request["device"]["kind"] == "cpu":  # a GPU's child does so once it has a context, which needs such calls
        sandbox.drop_privileges()
        sandbox.refuse_writes([Path(request["home"])])
        sandbox.refuse_system_calls()


def run_child(request: dict[str, Any], end: int, log: int, arena: int | None = None) -> None:
    from evokernel.devices import Device

    confine(request, log)
    import torch

    torch.set_num_threads(request["threads"])
    device = Device(**request["device"])
    channel = socket.socket(fileno=end)
    if arena is None:
        from evokernel.worker.gpu_child import GpuServing

        GpuServing(channel, device, trusted=request["trusted"]).serve()
    else:
        from evokernel.worker.arena import HostArena
        from evokernel.worker.child import Serving

        Serving(channel, device, HostArena(request["arena_bytes"], arena)).serve()


def prepare(kind: str, arch: int, folder: str) -> None:
    """Import what children need, so that each has it in the milliseconds of a fork."""
    import numpy  # noqa: F401
    import torch  # noqa: F401

    if kind == "cpu":
        import numba  # noqa: F401

        import evokernel.worker.child  # noqa: F401
    else:
        from evokernel.worker import gpu_child

        gpu_child.prepare(arch, folder)


def main() -> None:
    """Serve the control socket whose descriptor is the first argument; the others are for prepare()."""
    die_with_parent()
    sandbox.hide_memory()
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C on the terminal is the driver's to handle
    prepare(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    serve(control, run_child)


def serve(control: socket.socket, run: Callable[..., None]) -> None:
    """Fork a child for each request that asks for one; it gets the request and the descriptors that came with it."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, REQUEST_BYTES, DESCRIPTORS)
        if not data:
            return
        request = json.loads(data)
        if request["op"] == "reap":
            reply = {"status": reap(request["pid"], request["grace_s"])}
        else:
            pid = os.fork()
            if pid == 0:
                control.close()
                try:
                    run(request, *descriptors)
                finally:
                    os._exit(0)
            for descriptor in descriptors:
                os.close(descriptor)
            reply = {"pid": pid}
        control.sendall(json.dumps(reply).encode())


def reap(pid: int, grace_s: float) -> int:
    """Kill a child's whole process group and return how the child ended (os.waitstatus_to_exitcode).

    A child whose socket has closed is dying: it is given some time to do so, or its own reason would be lost.
    """
    deadline = time.monotonic() + grace_s
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
        while not done and time.monotonic() < deadline:
            time.sleep(0.001)
            done, status = os.waitpid(pid, os.WNOHANG)
        for target in (-pid, pid):
            try:
                os.kill(target, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if not done:
            _, status = os.waitpid(pid, 0)
            return 0  # it was alive: the kill was ours
    except ChildProcessError:
        return 0
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    main()
