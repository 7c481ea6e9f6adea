"""The guard refuses by line and rule, and lets every template through."""

import pytest

from evokernel.bench.guard import violation
from evokernel.candidate import Body, available, find_module
from tests.toys import RIGHT

REFUSED = {
    "import os": "import of 'os'",
    "import torch.nn.functional": "import of 'torch.nn.functional'",
    "from torch.nn.functional import scaled_dot_product_attention": "import from torch",
    "import ctypes": "import of 'ctypes'",
    "x = eval('1')": "use of 'eval'",
    "x = open('/etc/passwd')": "use of 'open'",
    "x = getattr(torch, 'n' + 'n')": "getattr with a computed name",
    "x = torch.nn.functional.softmax": "torch.nn: host code may allocate",
    "x = torch.ops.aten.mm": "torch.ops",
    "x = torch.compile": "torch.compile",
    "x = torch.set_num_threads(1)": "torch.set_num_threads",
    "x = getattr(torch, 'nn')": "torch.nn",
    "g = getattr": "'getattr' handed on",
    "t = torch": "the module 'torch' handed on",
    "import torch as t\nx = t.addmm": "torch.addmm",
    "import torch as t\nt.ops = 1": "torch.ops",
    "import numba\nx = numba.objmode": "numba.objmode",
    "from numba import extending": "numba.extending",
    "import numba\n@numba.njit(forceobj=True)\ndef f(): pass": "forceobj in numba.njit",
    "import numba\n@numba.jit(**OPTIONS)\ndef f(): pass": "** in numba.jit",
    "import numba\nnumba = 1": "'numba' is imported from numba; bind another name",
    "import numba\ndef njit(f):\n    return f\n@njit\ndef f(a, b):\n    return a @ b": "matrix product in host code",
    "import functools\n@functools.cache\ndef f(a, b):\n    return a @ b": "matrix product in host code",
    "x = np.fromfile('x')": "numpy.fromfile",
    "x = np.ctypeslib": "numpy.ctypeslib",
    "from numpy.lib import format": "import from 'numpy.lib'",
    "from torch import *": "import from torch",
    "from math import *": "import of everything from math",
    "from functools import update_wrapper": "functools.update_wrapper",
    "def f(q, k):\n    return q.matmul(k)": "use of .matmul",
    "class C:\n    addmv_: int = 0\ndef f(q, k):\n    return q.addmv_(q, k)": "use of .addmv_",
    "def f(exec): pass\nexec('1')": "use of 'exec'",
    "def f(q):\n    match q:\n        case float(real=x): return x": "a class pattern",
    "class C:\n    def __getattr__(self, name): pass": "definition of '__getattr__'",
    "import threading": "import of 'threading'",
    "import subprocess": "import of 'subprocess'",
    "import sys": "import of 'sys'",
    "print('score 9.9')": "use of 'print'",
    "x = undefined": "use of 'undefined', which is defined nowhere",
    "x = ().__class__": "use of .__class__",
    "x = __builtins__": "use of '__builtins__'",
    "def f(a, b):\n    return a @ b": "matrix product in host code",
    "def f():\n    try:\n        pass\n    except ValueError:\n        pass": "try statement",
    "def f():\n    global STATE": "state between calls",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_a_kernel_has_no_business_doing_is_refused(text):
    lines = RIGHT.count("\n") + 1
    found = violation(RIGHT + text + "\n", "numba")
    assert found is not None
    assert REFUSED[text] in found
    assert int(found.split(":")[0].removeprefix("line ")) >= lines


TRITON_REFUSED = {
    "import triton\n@triton.autotune([], [])\ndef f(): pass": "triton.autotune: knobs are chosen by the search",
    "import triton.language as tl\nx = tl.inline_asm_elementwise": "no assembly",
    "from triton.language import extra": "no compiler internals",
    "from triton.runtime import driver": "import from 'triton.runtime'",
    "import triton\nx = triton.compiler": "triton.compiler",
    "import numba": "import of 'numba'; a triton candidate may import math, torch, triton",
    "import torch\nx = torch.cuda.CUDAGraph": "torch.cuda.CUDAGraph",
    "import triton\n@triton.jit\ndef f(a, b):\n    return a @ b": "matrix product in host code",
}


@pytest.mark.parametrize("text", TRITON_REFUSED)
def test_a_gpu_candidate_has_no_way_around_the_search_either(text):
    assert TRITON_REFUSED[text] in violation(text, "triton")


def test_a_matrix_product_is_allowed_where_numba_compiles_it():
    assert violation("import numba\n@numba.njit\ndef f(a, b):\n    return a @ b\n", "numba") is None
    named = "import numba\nfast = numba.njit(fastmath=True)\n@fast\ndef f(a, b):\n    return a @ b\n"
    assert violation(named, "numba") is None
    assert violation(named + "def fast(f):\n    return f\n", "numba") == "line 5: matrix product in host code"


def test_text_that_is_no_program_is_refused_with_its_line():
    assert violation("x = 1\ndef (", "numba").startswith("line 2: ")


@pytest.mark.parametrize("name", available("search_spaces"))
def test_every_template_is_let_through(name):
    template = Body.load(find_module(name, "search_spaces"))
    assert violation(template.source, template.space.backend) is None
