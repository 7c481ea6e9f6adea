"""The Numba backend loads, compiles once, and explains what it could not."""

import random
from contextlib import contextmanager

import pytest
import torch
from numba.core import event

from evokernel import devices
from evokernel.backends import CompileError
from evokernel.backends.numba import Numba
from evokernel.bench import correctness, inputs
from evokernel.candidate import Body, find_module
from evokernel.problem import Problem, Workload
from tests.contracts.backend_contract import BackendContract
from tests.test_extending import program
from tests.toys import RIGHT

PROBLEM = Problem("forward", "fp32", (Workload(1, 4, 2, 96, 96, 16, True), Workload(1, 4, 2, 64, 64, 16, False)))


@pytest.fixture
def backend():
    return Numba()


class TestNumba(BackendContract):
    @pytest.fixture
    def backend(self):
        return Numba()

    @pytest.fixture
    def device(self):
        return devices.cpu()

    @pytest.fixture
    def problem(self):
        return PROBLEM

    @pytest.fixture
    def source(self):
        return program("rows.py").replace('"parallel": True}', '"parallel": False}')  # compiles in half the time

    @contextmanager
    def counted(self, device):
        with event.install_recorder("numba:compile") as recorded:
            yield recorded.buffer


def written(tmp_path, text):
    path = tmp_path / "candidate.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["flash_forward_numba"])
def test_after_compiling_no_length_or_stride_compiles_anything_more(backend, tmp_path, name):
    template = Body.load(find_module(name, "search_spaces"))
    entry = backend.load(written(tmp_path, template.render(template.defaults)), "attention")
    facts = backend.compile(entry, PROBLEM, devices.cpu())
    assert facts["compile_s"] > 0
    rng = random.Random(0)
    with event.install_recorder("numba:compile") as recorded:
        for case in correctness.small_cases(PROBLEM, rng):
            tensors = inputs.draw("random", case.workload, "fp32", 1)
            views = [case.layout.view(torch.zeros(case.layout.padded(tuple(t.shape))), tuple(t.shape)) for t in tensors]
            for view, tensor in zip(views, tensors, strict=True):
                view.copy_(tensor)
            entry(*views, num_sms=2, **case.workload.arguments())
    assert recorded.buffer == []


def test_plain_numpy_is_a_candidate_too(backend, tmp_path):
    entry = backend.load(written(tmp_path, RIGHT), "attention")
    backend.compile(entry, PROBLEM, devices.cpu())


def test_a_typing_error_names_the_line_and_the_cause(backend, tmp_path):
    text = (
        "import numba\n\n@numba.njit\ndef kernel(x):\n    return x + 'a'\n\n\n"
        "def attention(q, k, v, **rest):\n    return kernel(q.numpy()), None\n"
    )
    entry = backend.load(written(tmp_path, text), "attention")
    with pytest.raises(CompileError) as caught:
        backend.compile(entry, PROBLEM, devices.cpu())
    assert str(caught.value).startswith("TypingError at line 9")
    assert "unicode_type" in str(caught.value) or "No implementation" in str(caught.value)
