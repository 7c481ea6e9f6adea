"""Commands do what they say on real files, and answer bad input in one line with exit code 2."""

import json
import os
import subprocess
import sys

import pytest
import yaml

from tests.commands import runner
from tests.toys import RIGHT

SETTINGS = {
    "problem": {
        "dtype": "fp32",
        "workloads": {"grid": {"head_dim": 16, "seq": 64, "batch": 1, "heads": 2}},
        "held_out": {"rows": [{"heads": 2, "seq": 50, "head_dim": 16}]},
    },
    "spaces": ["toy.py"],
    "operators": {"mutate": {"weight": 1}},
    "evaluator": {"type": "local", "device": "cpu"},
    "budget": {"evaluations": 6},
    "store": "sqlite:///evokernel.db",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("campaign")
    (made / "toy.py").write_text(RIGHT)
    (made / "toy.yaml").write_text(yaml.safe_dump(SETTINGS))
    return made


@pytest.fixture(scope="module")
def evokernel(folder):
    return runner(folder, EVOKERNEL_DB="sqlite:///evokernel.db")


@pytest.fixture(scope="module")
def finished(evokernel):
    return evokernel("run", "--config", "toy.yaml", "--name", "first")


def test_a_run_says_which_configuration_it_took_and_that_it_finished(finished):
    assert "configuration toy.yaml" in finished.stderr
    assert "run first finished" in finished.stderr


def test_the_effective_configuration_is_kept_beside_the_run(finished, folder):
    assert yaml.safe_load((folder / "runs/first/config.yaml").read_text())["budget"]["evaluations"] == 6


def test_every_inspection_answers_in_text_and_in_json(finished, evokernel):
    (run,) = json.loads(evokernel("runs", "--json").stdout)
    assert (run["name"], run["status"]) == ("first", "finished")
    leaders = json.loads(evokernel("top", "first", "--json").stdout)
    assert {row["shape_class"] for row in leaders} == {"d16_full_fp32_short", "d16_causal_fp32_short"}
    best = leaders[0]["candidate"]
    shown = json.loads(evokernel("show", best, "--json").stdout)
    assert shown["score"] == pytest.approx(leaders[0]["score"])
    assert json.loads(evokernel("lineage", best, "--json").stdout)[0]["candidate"] == best
    assert "diff" in json.loads(evokernel("diff", 1, best, "--json").stdout)
    assert json.loads(evokernel("query", "SELECT COUNT(*) AS n FROM run", "--json").stdout) == [{"n": 1}]
    for command in (
        ["runs"],
        ["top"],
        ["show", best],
        ["lineage", best],
        ["diff", 1, best],
        ["query", "--saved", "outcomes"],
    ):
        assert evokernel(*command).stdout.strip()


def test_show_source_prints_a_module_that_check_accepts(finished, evokernel, folder):
    (folder / "shown.py").write_text(evokernel("show", 1, "--source").stdout)
    assert "PASSED" in evokernel("check", "shown.py", "--config", "toy.yaml").stdout


def test_an_export_proves_itself_with_torch_alone_and_passes_our_own_check(finished, evokernel, folder):
    evokernel("export", "first", "-o", "best.py")
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "best.py", "--check", "--bench"],
        cwd=folder,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout
    assert "of its speed" in done.stdout
    assert "import evokernel" not in (folder / "best.py").read_text()
    checked = evokernel("check", "best.py", "--config", "toy.yaml").stdout
    assert checked.count("PASSED") == 2


def test_a_wrong_kernel_fails_its_check_with_the_place(evokernel, folder):
    (folder / "wrong.py").write_text(RIGHT.replace("* scale", "* 0.3"))
    done = evokernel("check", "wrong.py", "--config", "toy.yaml", code=1)
    assert "INCORRECT" in done.stdout
    assert "head" in done.stdout


def test_bench_times_a_kernel_beside_the_baseline(evokernel):
    (row, _) = json.loads(evokernel("bench", "toy.py", "--config", "toy.yaml", "--json").stdout)
    assert {t["held_out"] for t in row["timings"]} == {False, True}
    assert all(t["speedup"] > 0 for t in row["timings"])


def test_a_finished_run_resumes_without_measuring_again(finished, evokernel):
    before = json.loads(evokernel("runs", "--json").stdout)[0]["evaluations"]
    evokernel("resume", "first")
    full = "SELECT COUNT(*) AS n FROM measurement WHERE fidelity = 'full'"
    assert json.loads(evokernel("query", full, "--json").stdout) == [{"n": 6}]
    assert json.loads(evokernel("runs", "--json").stdout)[0]["evaluations"] >= before


def test_stopping_what_does_not_run_says_so(finished, evokernel):
    assert "run first is finished" in evokernel("stop", "first").stderr


def test_doctor_and_spaces_say_what_is_at_hand(evokernel):
    assert any(row["what"] == "gpu" for row in json.loads(evokernel("doctor", "--json").stdout))
    names = {row["name"] for row in json.loads(evokernel("spaces", "--json").stdout)}
    assert {
        "flash_forward_numba",
        "flash_forward_triton",
        "flash_forward_gluon",
        "fa1",
        "fa2",
        "fa3",
        "chiplet",
    } <= names


def test_init_writes_a_configuration_that_loads_and_replaces_none(evokernel, folder):
    evokernel("init", "mine.yaml")
    from evokernel import config

    assert config.load(folder / "mine.yaml").budget.wall == 180
    assert "mine.yaml exists" in evokernel("init", "mine.yaml", code=2).stderr


BAD = {
    "an unknown key": (["run", "-c", "toy.yaml", "-o", "bugdet.wall=3"], ["toy.yaml", "bugdet", "budget"]),
    "a wrong type": (["run", "-c", "toy.yaml", "-o", "budget.evaluations=many"], ["budget.evaluations", "many"]),
    "an unknown template": (["run", "-c", "toy.yaml", "-o", "spaces=[nope]"], ["spaces.0", "nope", "flash_forward_numba"]),
    "an unknown seed": (["run", "-c", "toy.yaml", "-o", "seeds=[nope]"], ["seeds.0", "nope", "fa2"]),
    "an unknown operator": (["run", "-c", "toy.yaml", "-o", "operators={anneal: {}}"], ["operators.anneal", "mutate", "tune"]),
    "an unknown sampler": (["run", "-c", "toy.yaml", "-o", "operators={tune: {sampler: magic}}"], ["operators.tune", "magic", "tpe"]),
    "an unknown operator setting": (["run", "-c", "toy.yaml", "-o", "operators.mutate.jump=1"], ["operators.mutate.jump", "leap"]),
    "an unknown archive": (["run", "-c", "toy.yaml", "-o", "archive.type=heap"], ["archive.type", "heap", "elites"]),
    "an unknown axis": (["run", "-c", "toy.yaml", "-o", "archive={axes: [depth]}"], ["archive.axes", "depth", "block"]),
    "an unknown evaluator": (["run", "-c", "toy.yaml", "-o", "evaluator.type=cloud"], ["evaluator.type", "cloud", "local"]),
    "an unknown baseline": (["run", "-c", "toy.yaml", "-o", "baselines=[magic]"], ["baselines", "magic", "sdpa"]),
    "a space that is empty here": (
        ["run", "-c", "toy.yaml", "-o", "spaces=[flash_forward_gluon]"],
        ["no space serves", "flash_forward_gluon"],
    ),
    "a missing GPU": (["run", "-c", "toy.yaml", "-o", "evaluator.device=cuda"], ["evaluator.device", "cuda", "cpu"]),
    "a missing configuration": (["run", "-c", "nope.yaml"], ["nope.yaml", "cpu.yaml"]),
    "a missing database": (["top", "--db", "sqlite:///none.db"], ["none.db", "evokernel run"]),
    "an unknown run": (["top", "second"], ["second", "first"]),
    "an unknown candidate": (["show", "999"], ["999"]),
    "an existing run name": (["run", "-c", "toy.yaml", "--name", "first"], ["first", "--name", "resume"]),
    "a run name that leaves the folder": (["run", "-c", "toy.yaml", "--name", "../../x"], ["--name", "../../x"]),
    "a missing file": (["check", "none.py"], ["none.py", "no such file"]),
    "a module without KNOBS": (["check", "knobless.py"], ["knobless.py", "KNOBS"]),
    "a module without an entry": (["check", "entryless.py"], ["entryless.py", "attention"]),
    "a query that writes": (["query", "DELETE FROM run"], ["readonly"]),
    "an unknown saved query": (["query", "--saved", "nope"], ["nope", "champions"]),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_line_and_exit_code_2(finished, evokernel, folder, what):
    (folder / "knobless.py").write_text(RIGHT.replace("KNOBS =", "NOBS ="))
    (folder / "entryless.py").write_text(RIGHT.replace("def attention(", "def attend("))
    arguments, words = BAD[what]
    done = evokernel(*arguments, code=2)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word in lines[0]
    assert "Traceback" not in done.stderr
