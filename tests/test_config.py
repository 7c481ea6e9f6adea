"""A configuration mirrors the YAML; bad input is one line naming the file, the key, the value and the choices."""

import pytest
import yaml

from evokernel import config
from evokernel.errors import ConfigError

SMALL = {
    "problem": {"dtype": "fp32", "workloads": {"rows": [{"heads": 2, "seq": 64, "head_dim": 16}]}},
    "spaces": ["flash_forward_numba"],
    "budget": {"evaluations": 5},
}


@pytest.fixture
def write(tmp_path):
    def written(data):
        path = tmp_path / "campaign.yaml"
        path.write_text(data if isinstance(data, str) else yaml.safe_dump(data))
        return path

    return written


@pytest.mark.parametrize("name", sorted(p.name for p in config.BUILT_IN.glob("*.yaml")))
def test_every_built_in_configuration_is_valid(name):
    assert config.load(config.locate(name)).problem.problem().workloads


def test_a_path_comes_before_a_built_in_of_the_same_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cpu.yaml").write_text("mine: true")
    assert config.locate("cpu.yaml").resolve() == tmp_path / "cpu.yaml"


def test_an_override_reaches_a_nested_key(write):
    assert config.load(write(SMALL), ["budget.wall=1h30m", "seed=7"]).budget.wall == 5400


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("30m", 1800), ("2h", 7200), ("1h30m5s", 5405)])
def test_durations_are_read_in_the_usual_forms(write, text, seconds):
    assert config.load(write({**SMALL, "budget": {"wall": text}})).budget.wall == seconds


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("bugdet.wall=3", ["unknown key bugdet", "budget"]),
        ("budget.wal=3", ["unknown key budget.wal", "wall"]),
        ("problem.dtype=fp64", ["problem.dtype is 'fp64'", "fp32", "bf16"]),
        ("budget.wall=soon", ["budget.wall is 'soon'", "30m"]),
        ("budget={}", ["wall, evaluations, gpu"]),
        ("spaces=[]", ["spaces is []"]),
        ("problem.workloads={}", ["names none"]),
        ("problem.workloads.rows=[{heads: 3, kv_heads: 2, seq: 4, head_dim: 8}]", ["kv_heads=2"]),
        ("problem.workloads.rows=[{heads: 3, head_dim: 8}]", ["seq_q and seq_kv"]),
        ("problem.workloads.grid={head_dim: 64, seq: 8, heads: 1}", ["tokens or batch"]),
        ("seed", ["-o seed", "key.sub=value"]),
        ("seed.deeper=1", ["seed is"]),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(write, override, words):
    with pytest.raises(ConfigError) as error:
        config.load(write({**SMALL, "seed": 1}), [override])
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("text", ["- a list", "a: [", "\x00"])
def test_a_file_that_is_no_configuration_is_named(write, text):
    with pytest.raises(ConfigError, match=r"campaign\.yaml"):
        config.load(write(text))


def test_an_unknown_name_lists_the_built_in_ones():
    with pytest.raises(ConfigError, match=r"nope.*cpu\.yaml"):
        config.locate("nope")


def test_a_grid_spans_all_combinations_and_a_repeated_shape_counts_once(write):
    grid = {"head_dim": [64, 128], "seq": [512, 1024], "tokens": 2048, "hidden": 256}
    rows = [{"batch": 4, "heads": 4, "seq": 512, "head_dim": 64}]
    loaded = config.load(write({**SMALL, "problem": {"dtype": "bf16", "workloads": {"grid": grid, "rows": rows}}}))
    names = [w.name for w in loaded.problem.problem().workloads]
    assert len(names) == 8
    assert "b2_h2_s1024_d128_causal" in names
