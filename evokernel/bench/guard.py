"""A syntax-tree allow-list for candidates: what a kernel has no business doing is refused, by line and rule.

Names are followed to the module they come from, and an imported name may not be rebound, so that `torch.x` means
torch's x. It is the first line of defence and teaches; the worker's processes are the second.
"""

from __future__ import annotations

import ast
import builtins
from collections import Counter
from collections.abc import Iterator

import numpy
import torch

from evokernel import syntax


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


ANY = frozenset({"*"})

# What host code may take from torch: metadata and empty memory. Nothing that computes attention or part of it.
TORCH = _names(
    """Tensor Size empty empty_like empty_strided zeros zeros_like full tensor device dtype float32 float16 bfloat16
    float64 int32 int64 int16 uint8 int8 bool float8_e4m3fn float8_e5m2 strided contiguous_format finfo cuda
    from_numpy"""
)
NUMPY = _names(
    """float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 intp uintp bool_ dtype ndarray finfo
    inf nan pi e newaxis
    array asarray ascontiguousarray empty empty_like zeros zeros_like ones ones_like full full_like arange linspace eye
    tril triu copy reshape ravel transpose swapaxes moveaxis expand_dims squeeze broadcast_to concatenate stack split
    array_split repeat tile flip roll pad where select take take_along_axis nonzero searchsorted sort argsort unique
    abs absolute add subtract multiply divide true_divide floor_divide negative power square sqrt reciprocal mod
    remainder exp exp2 expm1 log log2 log1p tanh sin cos sign copysign floor ceil rint trunc round clip maximum minimum
    fmax fmin hypot ldexp frexp isnan isinf isfinite isneginf logical_and logical_or logical_not logical_xor bitwise_and
    bitwise_or bitwise_xor invert left_shift right_shift greater greater_equal less less_equal equal not_equal
    sum prod mean max min amax amin argmax argmin any all cumsum cumprod count_nonzero dot matmul einsum outer inner
    tensordot vdot nan_to_num errstate"""
)
NUMBA = _names(
    """njit jit prange vectorize guvectorize cfunc types void boolean float32 float64 int8 int16 int32 int64 uint8
    uint16 uint32 uint64 intp uintp get_num_threads set_num_threads get_thread_id set_parallel_chunksize
    get_parallel_chunksize literal_unroll"""
)

# By dotted name: what may be taken from it. What is not listed is no module to a candidate.
MODULES: dict[str, frozenset[str]] = {
    "__future__": ANY,
    "math": ANY,
    "heapq": ANY,
    "functools": frozenset({"cache", "lru_cache", "partial", "reduce"}),
    "torch": TORCH,
    "torch.cuda": frozenset({"get_device_properties", "get_device_capability"}),
    "numpy": NUMPY,
    "numba": NUMBA,
    "numba.types": ANY,
    "triton": frozenset({"jit", "cdiv", "next_power_of_2", "language", "tools", "experimental", "constexpr_function"}),
    "triton.tools": frozenset({"tensor_descriptor"}),
    "triton.tools.tensor_descriptor": frozenset({"TensorDescriptor"}),
    "triton.language": ANY,
    "triton.experimental": frozenset({"gluon"}),
    "triton.experimental.gluon": ANY,
}
OPEN = ("triton.language.", "triton.experimental.gluon.")  # device languages: all below them, less REFUSED
REFUSED = {
    **dict.fromkeys(("inline_asm_elementwise", "extern_elementwise", "call_extern"), "no assembly or outside code"),
    **dict.fromkeys(("extra", "core", "semantic", "standard", "builtin", "_runtime", "_core"), "no compiler internals"),
    **dict.fromkeys(("autotune", "heuristics", "Config"), "knobs are chosen by the search, not at run time"),
}
IMPORTS = {
    "numba": ("math", "numba", "numpy", "torch"),
    "triton": ("math", "torch", "triton"),
}
STANDARD = frozenset({"functools", "heapq", "__future__"})  # schedules are computed and kept on the host
WHY = {
    "torch": "host code may allocate and look at tensors, not compute",
    "torch.cuda": "host code may only ask for device properties",
    "triton": "knobs are chosen by the search, and kernels launched directly",
}

# Attributes of anything but a module: tensors, arrays, containers, device-language values.
METHODS = _names(
    """shape stride strides size dtype device dim ndim numel element_size itemsize nbytes is_contiguous is_cuda layout T
    mT contiguous numpy detach view reshape transpose permute expand unsqueeze squeeze flatten ravel as_strided to
    type astype data_ptr fill_ zero_ fill new_empty new_zeros unbind narrow select copy item tolist flat swapaxes repeat
    sum max min mean prod any all argmax argmin cumsum clip round sort nonzero
    append appendleft extend pop popleft items keys values get setdefault update insert index count reverse add discard
    remove clear join split startswith endswith lower upper is_integer bit_length
    multi_processor_count major minor name total_memory args
    eps tiny fn value element_ty primitive_bitwidth scalar is_floating is_fp32 is_fp16 is_bf16 block_shape block_type
    exp exp2 log log2 sqrt rsqrt abs cast trans broadcast_to expand_dims reduce load store slice gather scatter
    atomic_add nbytes_per_cta"""
)
BUILTINS = _names(
    """abs all any bool dict divmod enumerate filter float frozenset int isinstance issubclass len list map max min next
    iter pow range repr reversed round set slice sorted str sum tuple zip property staticmethod classmethod callable
    ArithmeticError AssertionError Exception IndexError KeyError NotImplementedError OverflowError RuntimeError
    TypeError ValueError ZeroDivisionError True False None Ellipsis NotImplemented __name__"""
)
BY_NAME = ("getattr", "hasattr")  # allowed with a literal name, which is judged like an attribute
DUNDER_ATTRIBUTES = frozenset({"__name__"})
DUNDER_METHODS = frozenset({"__init__", "__post_init__", "__call__"})
COMPILED = ("numba.njit", "numba.jit", "numba.vectorize", "numba.guvectorize", "numba.cfunc")
NOT_COMPILED = ("forceobj", "looplift", "nopython")  # keywords by which such a function runs in the interpreter
# A candidate's own classes may have attributes of other names, but none by which a tensor or function would answer.
FOREIGN = frozenset({*dir(torch.Tensor), *dir(numpy.ndarray), "py_func", "ctypes", "address", "run", "warmup"})
NO_NAMES = frozenset(dir(builtins)) - BUILTINS - {*BY_NAME, "type"}


def violation(source: str, backend: str) -> str | None:
    """Return the first broken rule as "line N: rule", or None."""
    try:
        tree = syntax.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        return f"line {getattr(error, 'lineno', 1)}: {getattr(error, 'msg', error)}"
    # Of several rules broken on one line, the one that names a module says more than the one about an attribute.
    found = sorted(_Guard(tree, backend).broken(tree), key=lambda pair: (pair[0], pair[1].startswith("use of .")))
    return f"line {found[0][0]}: {found[0][1]}" if found else None


class _Guard:
    """What one candidate's names mean, and the rules they break."""

    def __init__(self, tree: ast.Module, backend: str) -> None:
        self.backend = backend
        self.roots = {*IMPORTS.get(backend, IMPORTS["numba"]), *STANDARD}
        self.names: dict[str, str] = {}  # imported name -> dotted origin
        self.own: set[str] = set()  # attributes that the candidate's classes define
        self.bound: Counter[str] = Counter()  # every name that it binds, and how often
        self.decorators: set[str] = set()  # names given to `numba.njit(...)`
        self.bases: set[int] = set()  # nodes that stand before a dot
        self.called: set[int] = set()
        self.compiled: set[int] = set()  # nodes inside functions that Numba compiles
        for node in ast.walk(tree):
            self._learn(node)
        self.decorators = {
            target.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and self._compiles(node.value)
            for target in node.targets
            if isinstance(target, ast.Name) and self.bound[target.id] == 1
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and any(self._compiles(d) for d in node.decorator_list):
                self.compiled.update(id(inner) for inner in ast.walk(node))

    def _learn(self, node: ast.AST) -> None:
        match node:
            case ast.Import(names=aliases):
                for alias in aliases:
                    root = alias.name.split(".")[0]
                    self.names[alias.asname or root] = alias.name if alias.asname else root
            case ast.ImportFrom(module=str(module), names=aliases):
                self.names.update({alias.asname or alias.name: f"{module}.{alias.name}" for alias in aliases})
            case ast.Attribute(value=value, attr=attr, ctx=ctx):
                self.bases.add(id(value))
                if isinstance(ctx, ast.Store) and isinstance(value, ast.Name) and value.id == "self":
                    self.own.add(attr)
            case ast.ClassDef(body=body):
                for inner in body:
                    if isinstance(inner, ast.FunctionDef):
                        self.own.add(inner.name)
                    elif isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
                        self.own.add(inner.target.id)
            case ast.Call(func=func):
                self.called.add(id(func))
        self.bound.update(_binds(node))

    def _compiles(self, decorator: ast.expr) -> bool:
        if isinstance(decorator, ast.Name) and decorator.id in self.decorators:
            return True
        return self._origin(decorator.func if isinstance(decorator, ast.Call) else decorator) in COMPILED

    def _origin(self, node: ast.expr) -> str:
        """Return the dotted name that an expression stands for, "" for anything that is not taken from a module."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, "")
        if isinstance(node, ast.Attribute):
            base = self._origin(node.value)
            return f"{base}.{node.attr}" if _is_module(base) else ""
        return ""

    def broken(self, tree: ast.Module) -> Iterator[tuple[int, str]]:
        line = 1
        for node in ast.walk(tree):
            line = getattr(node, "lineno", line)
            for rule in self._rules(node):
                yield line, rule

    def _rules(self, node: ast.AST) -> Iterator[str]:
        for name in _binds(node):
            if name in self.names:
                yield f"{name!r} is imported from {self.names[name]}; bind another name"
        match node:
            case ast.Import(names=aliases):
                for alias in aliases:
                    yield from self._import(alias.name, None)
            case ast.ImportFrom(module=module, names=aliases, level=level):
                for alias in aliases:
                    yield from self._import(module or "." * level, alias.name)
            case ast.Name(id=name, ctx=ast.Load()):
                yield from self._name(node, name)
            case ast.Attribute(value=value, attr=attr):
                yield from self._attribute(self._origin(value), attr)
            case ast.Call(func=ast.Name(id=name), args=arguments) if name in BY_NAME:
                if len(arguments) > 1 and isinstance(arguments[1], ast.Constant) and type(arguments[1].value) is str:
                    yield from self._attribute(self._origin(arguments[0]), arguments[1].value)
                else:
                    yield f"{name} with a computed name"
            case ast.Call(func=func, keywords=keywords) if self._origin(func) in COMPILED:
                for keyword in keywords:
                    if keyword.arg is None or keyword.arg in NOT_COMPILED:
                        yield f"{keyword.arg or '**'} in {self._origin(func)}: kernels are compiled"
            case ast.BinOp(op=ast.MatMult()) | ast.AugAssign(op=ast.MatMult()):
                if id(node) not in self.compiled:
                    yield "matrix product in host code"
            case ast.Try() | ast.TryStar() | ast.With() | ast.AsyncFunctionDef() | ast.AsyncWith() | ast.Await():
                yield f"{type(node).__name__.lower()} statement: a kernel has no fallback and waits for nothing"
            case ast.Global() | ast.Nonlocal():
                yield "state between calls (global or nonlocal)"
            case ast.MatchClass():
                yield "a class pattern reads attributes unseen; compare instead"
            case ast.FunctionDef(name=name) if name.startswith("__") and name not in DUNDER_METHODS:
                yield f"definition of {name!r}: no hooks into the language"

    def _import(self, module: str, name: str | None) -> Iterator[str]:
        root = module.split(".")[0]
        full = f"{module}.{name}" if name else module
        if root not in self.roots:
            allowed = ", ".join(IMPORTS.get(self.backend, IMPORTS["numba"]))
            yield f"import {'from' if name else 'of'} {module!r}; a {self.backend} candidate may import {allowed}"
        elif root == "torch" and full != "torch":
            yield f"import {'from torch' if name else f'of {full!r}'}; import torch itself"
        elif name == "*":
            yield f"import of everything from {module}; name what you need"
        elif name and not _is_module(module):
            yield f"import from {module!r}, which is not for candidates"
        elif name:
            yield from self._attribute(module, name)
        elif not _is_module(module):
            yield f"import of {module!r}, which is not for candidates"

    def _name(self, node: ast.Name, name: str) -> Iterator[str]:
        if name in self.names:
            if self.names[name] in ("torch", "numpy", "numba", "triton", "functools") and id(node) not in self.bases:
                yield f"the module {name!r} handed on; write {name}.NAME"
        elif name in BY_NAME or name == "type":
            if id(node) not in self.called:
                yield f"{name!r} handed on; call it"
        elif name in NO_NAMES or (name.startswith("__") and name not in BUILTINS):
            yield f"use of {name!r}"
        elif name not in self.bound and name not in BUILTINS:
            yield f"use of {name!r}, which is defined nowhere"

    def _attribute(self, base: str, attr: str) -> Iterator[str]:
        if attr.startswith("__") and attr not in DUNDER_ATTRIBUTES:
            yield f"use of .{attr}"
        elif base and _is_module(base):
            listed = MODULES.get(base, ANY)
            if attr in REFUSED and base.startswith("triton"):
                yield f"{base}.{attr}: {REFUSED[attr]}"
            elif attr.startswith("_") or not (listed is ANY or attr in listed):
                yield f"{base}.{attr}: {WHY.get(base, 'not for candidates')}"
        elif attr not in METHODS and (attr not in self.own or attr in FOREIGN):
            yield f"use of .{attr}"


def _is_open(name: str) -> bool:
    return f"{name}.".startswith(OPEN)


def _is_module(name: str) -> bool:
    return name in MODULES or _is_open(name)


def _binds(node: ast.AST) -> list[str]:
    """Return the names, other than by import, that a node binds or deletes."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            return [name]
        case ast.arg(arg=name):
            return [name]
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
            return [name]
    return []
