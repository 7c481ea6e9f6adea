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
    "x = torch.nn.functional.softmax": "use of .softmax",
    "x = torch.ops.aten.mm": "use of .mm",
    "x = torch.set_num_threads(1)": "torch.set_num_threads",
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


@pytest.mark.parametrize("name", available("search_spaces"))
def test_every_template_is_let_through(name):
    template = Body.load(find_module(name, "search_spaces"))
    assert violation(template.source, template.space.backend) is None
