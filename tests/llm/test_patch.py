"""Edits are applied as meant, and what would waste a measurement is refused with what to mend."""

import pytest

from evokernel.candidate import MARKER
from evokernel.llm import library
from evokernel.llm.patch import PatchError, apply, parse, patched
from tests.contracts.operator_contract import CONTEXT
from tests.toys import RIGHT, genome

PARENT = genome(rows=1)
KNOBS = "KNOBS = {'block': 64, 'rows': 1, 'form': 'a', 'only_a': 1}"
VALUES = '    "knobs": {"block": [16, 32, 64, 128], "rows": [1, 2, 4], "form": ["a", "b"], "only_a": [1, 2]},'


def edit(search, replace):
    return f"<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n"


def made(answer):
    return patched(PARENT, answer, "attention", CONTEXT)


def test_edits_are_applied_one_after_another_to_the_rendered_source():
    answer = "I would try this:\n" + edit(
        "    s = scores_of(q_, k_, scale, causal)", "    t = scores_of(q_, k_, scale, causal)"
    )
    answer += edit("    t = scores_of(q_, k_, scale, causal)", "    s = 1 * scores_of(q_, k_, scale, causal)")
    found = made(answer)
    assert "1 * scores_of" in found.source
    assert dict(found.knobs) == dict(PARENT.knobs)


def test_a_whole_module_may_stand_in_one_block():
    module = PARENT.source.replace("np.exp(s - top)", "np.exp2((s - top) * 1.4426950408889634)")
    for answer in (f"Here:\n```python\n{module}```\nDone.", module):
        assert "np.exp2" in made(answer).source


def test_a_new_body_may_bring_a_space_of_its_own():
    knobs = edit(VALUES, VALUES.replace('"rows"', '"lanes": [8, 16], "rows"'))
    value = edit(KNOBS, KNOBS.replace("'rows': 1,", "'rows': 1, 'lanes': 16,"))
    found = made(knobs + value)
    assert found.body.space.knobs["lanes"] == (8, 16)
    assert found.knobs["lanes"] == 16
    assert found.body.digest != PARENT.body.digest


def test_white_space_at_the_end_of_lines_is_forgiven():
    assert (
        "3 * scores_of"
        in made(
            edit("    s = scores_of(q_, k_, scale, causal)   ", "    s = 3 * scores_of(q_, k_, scale, causal)")
        ).source
    )


def test_an_empty_replacement_deletes_lines():
    assert apply("a\nb\nc\n", edit("b", "")) == "a\nc\n"


REFUSED = {
    "nothing at all": ("I have no idea.", "no edit and no module"),
    "a unified diff": ("--- a\n+++ b\n@@ -1,2 +1,2 @@\n-x\n+y\n", "unified diffs are not read"),
    "an edit without an end": ("<<<<<<< SEARCH\na\n=======\nb\n", "cut off"),
    "an end without a start": (">>>>>>> REPLACE\n", "without <<<<<<< SEARCH"),
    "an end without a middle": ("<<<<<<< SEARCH\na\n>>>>>>> REPLACE\n", "without ======="),
    "an edit inside an edit": ("<<<<<<< SEARCH\n<<<<<<< SEARCH\n", "has not ended"),
    "an empty search": (edit("", "x = 1"), "empty SEARCH"),
    "a search that is nowhere": (edit("    s = scores_of(q_, k_, scale)", "    s = 0"), "s = scores_of(q_, k_, scale, causal)"),
    "a search that is nothing like it": (edit("qqq\nzzz", "x"), "quoted exactly"),
    "a no-op": (edit("    s = scores_of(q_, k_, scale, causal)", "    s = scores_of(q_, k_, scale, causal)"), "change nothing"),
    "a comment": (edit("    s = scores_of(q_, k_, scale, causal)", "    s = scores_of(q_, k_, scale, causal)  # better"), "change nothing"),
    "lost knobs": (edit(KNOBS, "x = 1"), "no KNOBS"),
    "a lost space": (edit("SPACE = {", "SPACES = {"), "no SPACE"),
    "a lost entry": (edit("def attention(q, k, v, *, scale, causal=False, num_sms=1):", "def attend(q, k, v, *, scale, causal=False, num_sms=1):"), "no entry function 'attention'"),
    "a lost marker": (edit(MARKER, "# kernels"), "no line"),
    "no Python": (edit("    s = scores_of(q_, k_, scale, causal)", "    s = = 1"), "invalid syntax"),
    "an unknown knob": (edit(KNOBS, KNOBS.replace("'rows': 1,", "'rows': 1, 'lanes': 3,")), "unknown knob 'lanes'"),
    "a value that is not listed": (edit(KNOBS, KNOBS.replace("'rows': 1,", "'rows': 3,")), "choose one of 1, 2, 4"),
    "a broken constraint": (edit(KNOBS, KNOBS.replace("64, 'rows': 1,", "16, 'rows': 4,")), "a block holds its rows"),
    "another backend": (edit('    "backend": "numba",', '    "backend": "triton",'), "keep 'forward' and 'numba'"),
    "two modules": (f"```python\n{RIGHT}```\n```python\n{RIGHT}```\n", "2 whole modules"),
    "a flood": (f"```python\n{RIGHT}{'# ' + 'x' * 300_000}\n```\n", "more than 200000 bytes"),
    "a module nested without end": (f"```python\n{RIGHT}x = {'-' * 50_000}1\n```\n", "nested too deeply"),
    "a lone surrogate": (edit("    s = scores_of(q_, k_, scale, causal)", "    s = '\udcff'"), "surrogate"),
    "a null byte": (edit("    s = scores_of(q_, k_, scale, causal)", "    s = '\x00'"), "null"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_would_waste_a_measurement_is_refused(what):
    answer, words = REFUSED[what]
    with pytest.raises(PatchError) as error:
        made(answer)
    assert words in str(error.value)


def test_a_search_that_occurs_twice_is_refused_with_the_number():
    with pytest.raises(PatchError, match="occurs 2 times"):
        apply("a\nb\na\nc\n", edit("a", "x"))


def test_marks_inside_strings_of_a_replacement_do_not_end_it():
    assert len(parse(edit("a", "b\n  indented =======") + edit("c", "d"))) == 2


# ---- knowledge ----


def test_the_notes_answer_with_the_section_that_was_meant():
    assert library.search("shared memory limit of a block on Hopper")[0].file == "hopper"
    assert library.search("exponentials polynomial numba vectorise")[0].file == "numba"
    assert "fence" in library.search("schedule fence overlap wait")[0].title
    assert library.search("causal load balance longest first")[0].title == "Causal load balance"


def test_a_question_without_an_answer_lists_what_there_is():
    assert library.search("zzz qqq") == []
    assert "Causal load balance" in library.answer("zzz qqq")
    assert library.answer("causal").startswith("[")


def test_every_note_has_a_heading_and_text():
    assert len(library.sections()) > 25
    assert all(s.title and len(s.text) > 80 for s in library.sections())
