"""A candidate is a module: it is read, rendered and named by its text, and what is no candidate is said in one line."""

import ast
from pathlib import Path

import pytest

from evokernel.bench import guard
from evokernel.candidate import Body, Genome, available, find_module, library, load_genome
from evokernel.errors import CandidateError, SpaceError
from tests.toys import RIGHT, body, genome


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("# ---- kernel ----", "", "no line '# ---- kernel ----'"),
        ("KNOBS =", "NOBS =", "no KNOBS"),
        ("SPACE =", "PLACE =", "no SPACE"),
        ('"block": 64,', "", "KNOBS lacks 'block'"),
        ('"block": 64,', '"block": 65,', "knob block is 65; choose one of 16, 32, 64, 128"),
        ('"block": 64,', '"block": 64.0,', "knob block is 64.0"),
        ('"block": 64,', '"block": 64, "bloc": 1,', "unknown knob 'bloc'"),
        ('"block": 64,', '"block": int(64),', "must be a literal"),
        ('"block": 64,', '[1]: 64,', "must be a literal"),
        ("# ---- kernel ----", "KNOBS = {}\n# ---- kernel ----", "KNOBS is assigned twice"),
        ("KNOBS = {", "KNOBS = 3; IGNORED = {", "KNOBS is int"),
        ("def attention(", "def attention((", ":"),
        ("def attention(", "\x00def attention(", "null byte"),
    ],
)  # fmt: skip
def test_a_module_that_is_no_candidate_is_said_in_one_line(tmp_path, old, new, words):
    path = tmp_path / "mine.py"
    path.write_text(RIGHT.replace(old, new))
    with pytest.raises((CandidateError, SpaceError)) as error:
        load_genome(path)
    assert str(path) in str(error.value)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", [b"\xff\xfe\x00", b"", b"TEMPLATE = 3\nKNOBS = {}", b"TEMPLATE = 'a'\nKNOBS = []"])
def test_a_file_that_is_no_module_of_ours_is_said_in_one_line(tmp_path, text):
    path = tmp_path / "mine.py"
    path.write_bytes(text)
    with pytest.raises(CandidateError) as error:
        load_genome(path)
    assert "mine.py" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(CandidateError, match=r"absent\.py"):
        load_genome(Path("absent.py"))


def test_rendering_changes_the_knobs_alone():
    knobs = {"block": 32, "rows": 1, "form": "b", "only_a": 1}
    rendered = body().render(knobs)
    changed = [(a, b) for a, b in zip(RIGHT.splitlines(), rendered.splitlines(), strict=True) if a != b]
    assert [b for _, b in changed] == [f"KNOBS = {knobs!r}"]
    assert Body(rendered).digest == body().digest
    assert Body(rendered).defaults == knobs


def test_knobs_written_over_several_lines_are_rendered_in_their_place():
    spread = RIGHT.replace('KNOBS = {"block": 64, "rows": 2, ', 'KNOBS = {\n    "block": 64,\n    "rows": 2,\n    ')
    rendered = Body(spread).render({"block": 16, "rows": 1, "form": "a", "only_a": 1})
    assert Body(rendered).defaults["block"] == 16
    assert Body(rendered).render({}) == body().render({})


@pytest.mark.parametrize("odd", ["\x0c", "\u2028", "\x1c", "\x85"])
def test_only_newlines_count_as_line_ends(odd):
    strange = Body(RIGHT.replace('"""A toy."""', f'"""A {odd} toy {odd} of Unicode."""'))
    rendered = strange.render({"block": 16, "rows": 1, "form": "a", "only_a": 1})
    assert odd in rendered
    assert Body(rendered).defaults["block"] == 16
    assert rendered.count("KNOBS =") == 1


def test_equal_genomes_have_equal_keys_whatever_the_order_of_their_knobs():
    knobs = dict(genome().knobs)
    backwards = dict(reversed(knobs.items()))
    assert Genome(body(), knobs).key == Genome(body(), backwards).key


def test_genomes_that_differ_in_a_knob_or_in_their_body_have_different_keys():
    other = Genome(Body(RIGHT + "\n# another body\n"), genome().knobs)
    assert len({genome().key, genome(block=128).key, other.key}) == 3


def test_an_entry_that_is_missing_is_told_with_what_is_there():
    with pytest.raises(CandidateError, match="no entry function 'decode'; found: scores_of, attention"):
        body().require_entry("decode")


@pytest.mark.parametrize("name", available("search_spaces"))
def test_every_template_stands_alone_when_rendered(name):
    template = load_genome(find_module(name, "search_spaces"))
    tree = ast.parse(template.source)
    roots = {
        part.split(".")[0]
        for node in ast.walk(tree)
        for part in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        )
    }  # fmt: skip
    assert roots <= {name.split(".")[0] for name in guard.IMPORTS[template.body.space.backend]} | guard.STANDARD
    assert Body(template.source).digest == template.body.digest


def test_shared_fragments_are_inlined_where_they_were_imported():
    template = load_genome(library() / "search_spaces" / "flash_forward_triton.py")
    assert "search_spaces.lib" not in template.source
    assert "def softmax_step" in template.source


def test_a_fragment_that_does_not_exist_is_named_with_its_line(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(RIGHT.replace("import torch\n", "import torch\nfrom search_spaces.lib.nothing import a\n"))
    with pytest.raises(CandidateError, match=r"mine\.py:\d+: no fragment search_spaces\.lib\.nothing"):
        load_genome(path)


@pytest.mark.parametrize("name", available("seeds"))
def test_every_seed_is_a_template_with_other_knobs(name):
    seed = load_genome(find_module(name, "seeds"))
    seed.body.space.check_names(seed.knobs, name)


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(CandidateError, match=r"no 'flash'; choose one of .*flash_forward_numba"):
        find_module("flash", "search_spaces")
    with pytest.raises(CandidateError, match="no such file"):
        find_module("./flash.py", "search_spaces")
