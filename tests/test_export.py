"""Several kernels live in one module without meeting."""

import ast

import pytest

from evokernel.candidate import Body, find_module
from evokernel.errors import EvokernelError
from evokernel.export import kernel_section
from tests.toys import RIGHT, body


def names(source):
    return {n.name for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)}


def test_every_top_level_name_gets_the_suffix_wherever_it_is_meant():
    imports, text = kernel_section(body(), RIGHT, "_k1")
    assert names(text) == {"scores_of_k1", "attention_k1"}
    assert "scores_of_k1(q_, k_, scale, causal)" in text
    assert "KNOBS_k1" in text
    assert imports == {"import numpy as np", "import torch"}
    assert "SPACE" not in text


def test_a_local_of_the_same_name_is_left_alone():
    source = RIGHT + "\ndef helper(scores_of):\n    return scores_of + 1\n"
    _, text = kernel_section(Body(source), source, "_k1")
    assert "def helper_k1(scores_of):\n    return scores_of + 1" in text


def test_a_keyword_of_the_same_name_is_left_alone():
    source = RIGHT + "\ndef helper(scale):\n    return dict(scores_of=scale)\n"
    _, text = kernel_section(Body(source), source, "_k1")
    assert "dict(scores_of=scale)" in text


@pytest.mark.parametrize("name", ["flash_forward_numba", "flash_forward_triton", "flash_forward_gluon"])
def test_every_template_can_be_embedded(name):
    template = Body.load(find_module(name, "search_spaces"))
    try:
        _, text = kernel_section(template, template.render(template.defaults), "_k2")
    except EvokernelError as error:
        pytest.fail(str(error))
    compile(text, name, "exec")
    assert all(found.endswith("_k2") for found in names(text))
