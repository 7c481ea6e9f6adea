"""A syntax-tree allow-list for candidates: what a kernel has no business doing is refused, by line and rule."""

from __future__ import annotations

import ast

IMPORTS = {
    "numba": {"math", "numba", "numpy", "torch"},
    "triton": {"math", "torch", "triton"},
}
STANDARD = {"functools", "heapq"}  # schedules are computed and kept on the host

# What host code may take from torch: metadata, empty memory, and views. Nothing that computes attention or part of it.
TORCH = {
    *("Tensor", "empty", "empty_like", "empty_strided", "zeros", "zeros_like", "full", "tensor", "device", "dtype"),
    *("float32", "float16", "bfloat16", "float64", "int32", "int64", "float8_e4m3fn", "float8_e5m2", "uint8", "int8"),
    *("finfo", "cuda"),
}
TORCH_CUDA = {"get_device_properties", "get_device_capability"}
FORBIDDEN_NAMES = {
    *("exec", "eval", "compile", "open", "input", "globals", "locals", "vars", "__import__", "breakpoint", "dir"),
    *("setattr", "delattr", "memoryview", "object", "super", "type.__call__"),
}
# Methods by which host code would compute what the kernel should, reach a library, or outlive the call.
FORBIDDEN_ATTRIBUTES = {
    *("matmul", "bmm", "mm", "einsum", "softmax", "baddbmm", "scaled_dot_product_attention", "nn", "ops", "compile"),
    *("jit_script", "autograd", "backends", "set_num_threads", "set_default_dtype", "use_deterministic_algorithms"),
    *("copy_", "set_", "resize_", "share_memory_", "storage", "untyped_storage"),
    *("record_stream", "Stream", "CUDAGraph", "synchronize", "Event", "autotune", "heuristics", "objmode", "ctypes"),
    *("extending", "carray", "farray", "load_library", "ctypeslib", "lib", "inline_asm_elementwise", "call_extern"),
    *("system", "popen", "environ", "modules", "f_globals", "f_locals", "gi_frame", "tb_frame", "_getframe"),
}
NOT_FORBIDDEN_IN_TRITON = {"lib"}
DUNDER_ALLOWED = {"__name__", "__fn__"}


def violation(source: str, backend: str) -> str | None:
    """Return the first broken rule as "line N: rule", or None."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    allowed = IMPORTS.get(backend, IMPORTS["numba"])
    device_functions = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.decorator_list
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if broken := _broken(node, allowed, backend, inside_kernel=id(node) in device_functions):
            return f"line {getattr(node, 'lineno', 1)}: {broken}"
    return None


def _broken(node: ast.AST, allowed: set[str], backend: str, inside_kernel: bool) -> str | None:
    match node:
        case ast.Import(names=names):
            for alias in names:
                root = alias.name.split(".")[0]
                if root not in allowed | STANDARD:
                    return f"import of {alias.name!r}; a {backend} candidate may import {', '.join(sorted(allowed))}"
                if alias.name.startswith("torch."):
                    return f"import of {alias.name!r}; import torch itself"
        case ast.ImportFrom(module=module, names=names):
            root = (module or "").split(".")[0]
            if root not in allowed | STANDARD | {"__future__"}:
                return f"import from {module!r}; a {backend} candidate may import {', '.join(sorted(allowed))}"
            if root == "torch":
                return "import from torch; import torch itself"
            for alias in names:
                if alias.name in FORBIDDEN_ATTRIBUTES:
                    return f"import of {alias.name!r} from {module}"
        case ast.Name(id=name) if name in FORBIDDEN_NAMES:
            return f"use of {name!r}"
        case ast.Name(id=name) if name.startswith("__") and name not in DUNDER_ALLOWED:
            return f"use of {name!r}"
        case ast.Attribute(value=ast.Name(id="torch"), attr=name) if name not in TORCH:
            return f"torch.{name}: host code may allocate and look at tensors, not compute"
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id="torch"), attr="cuda"), attr=name):
            if name not in TORCH_CUDA:
                return f"torch.cuda.{name}: host code may only ask for device properties"
        case ast.Attribute(attr=name) if name in FORBIDDEN_ATTRIBUTES:
            if not (backend == "triton" and name in NOT_FORBIDDEN_IN_TRITON):
                return f"use of .{name}"
        case ast.Attribute(attr=name) if name.startswith("__") and name not in DUNDER_ALLOWED:
            return f"use of .{name}"
        case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(), *_]):
            return None
        case ast.Call(func=ast.Name(id="getattr")):
            return "getattr with a computed name"
        case ast.BinOp(op=ast.MatMult()) if not inside_kernel:
            return "matrix product in host code"
        case ast.Try() | ast.With() | ast.AsyncFunctionDef() | ast.Await():
            return f"{type(node).__name__.lower()} statement: a kernel has no fallback and waits for nothing"
        case ast.Global() | ast.Nonlocal():
            return "state between calls (global or nonlocal)"
    return None
