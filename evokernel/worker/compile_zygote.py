"""Fork one disposable compile process per candidate out of one that has torch and triton imported and has compiled.

Started by exec, for one target. It has a stub driver and never a CUDA context; of threads it has one.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from evokernel.errors import EvokernelError
from evokernel.worker import sandbox, wire
from evokernel.worker.zygote import confine, die_with_parent, serve

ERROR_CHARACTERS = 20_000  # the pool cuts it to the cause

# Compiled once before the first fork: it loads what every compile needs (LLVM's passes, the hash of triton's own
# files, the versions of its tools) into memory that the children share.
WARM_UP = """
import torch, triton
import triton.experimental.gluon
import triton.language as tl

@triton.jit
def warm(q, out, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    tile = tl.load(q + offsets)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for _ in range(n):
        total = tl.dot(tl.exp2(tl.dot(tile, tile)).to(tile.dtype), tile, total)
    tl.store(out + offsets, total.to(tile.dtype))

def attention(q, k, v, **rest):
    warm[(1,)](q, torch.empty_like(q), q.shape[2], BLOCK=64, num_warps=4)
"""


def warm_up(target_name: str) -> None:
    """Compile a small kernel for the target; DeviceError when this machine cannot."""
    from evokernel.backends import CompileError
    from evokernel.backends.targets import parse, require_compiler
    from evokernel.errors import DeviceError
    from evokernel.problem import Problem, Workload

    target = parse(target_name)
    require_compiler(target)
    from evokernel.backends.triton import Triton, compile_ahead

    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        source = Path(folder) / "warm_up.py"
        source.write_text(WARM_UP)
        try:
            problem = Problem("forward", "bf16", (Workload(1, 1, 1, 64, 64, 64, False),))
            compile_ahead(Triton().load(source, "attention"), problem, target)
        except CompileError as error:
            raise DeviceError(f"nothing compiles for {target_name} here: {str(error).splitlines()[0]}") from None


def compile_one(end: socket.socket, target_name: str) -> None:
    """Answer the one request on the socket."""
    from evokernel.backends import CompileError
    from evokernel.backends.targets import parse
    from evokernel.backends.triton import Triton, compile_ahead
    from evokernel.problem import Problem

    request = wire.receive(end)
    os.environ["TRITON_CACHE_DIR"] = request["cache"]
    try:
        entry = Triton().load(Path(request["source"]), request["entry"])
        reply = compile_ahead(entry, Problem.from_json(request["problem"]), parse(target_name))
    except CompileError as error:
        reply = {"error": str(error)[:ERROR_CHARACTERS], "memory": _out_of_memory(error)}
    except BaseException as error:  # even SystemExit, or no memory left, is the candidate's own failure
        text = f"{type(error).__name__}: {error}"
        reply = {"error": text[:ERROR_CHARACTERS], "memory": _out_of_memory(error)}
    wire.send(end, reply)


def _out_of_memory(error: BaseException | None) -> bool:
    words = ("Cannot allocate memory", "can't allocate memory", "bad_alloc")  # of the system, torch and C++
    while error:
        if isinstance(error, MemoryError) or any(word in str(error) for word in words):
            return True
        error = error.__cause__ or error.__context__
    return False


def run_child(request: dict[str, Any], target_name: str, end: int, log: int) -> None:
    confine(request, log)
    sandbox.drop_privileges()
    sandbox.refuse_writes([Path(request["home"]), Path(request["cache"])])  # no other candidate's cache
    sandbox.refuse_system_calls(programs=True)  # the assembler is one
    compile_one(socket.socket(fileno=end), target_name)


def main() -> None:
    """Serve the control socket whose descriptor is the first argument, for the target that is the second."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C on the terminal is the driver's to handle
    control = socket.socket(fileno=int(sys.argv[1]))
    target_name = sys.argv[2]
    try:
        warm_up(target_name)
    except EvokernelError as error:
        control.sendall(json.dumps({"error": str(error)}).encode())
        return
    gc.freeze()  # what is shared with the children stays shared
    control.sendall(json.dumps({"threads": len(os.listdir("/proc/self/task"))}).encode())
    serve(control, lambda request, end, log: run_child(request, target_name, end, log))


if __name__ == "__main__":
    main()
