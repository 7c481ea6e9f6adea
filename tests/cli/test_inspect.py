"""The commands that ask the database show what is there, safely, and refuse in one line."""

import json
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from evokernel import devices
from evokernel.cli import app
from evokernel.errors import EvokernelError
from evokernel.measurement import Measurement, Outcome
from evokernel.store import Store
from tests.toys import PROBLEM, candidate, passed

ESCAPE = "\x1b[2J\x1b]0;owned\x07"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """A run of two seeds, two crossings of both, and their crossing: lines that meet again."""
    url = f"sqlite:///{tmp_path_factory.mktemp('inspect')}/evokernel.db"
    store = Store.open(url)
    run = store.create_run("first", {}, PROBLEM, devices.cpu(), 0)

    def add(found, measured):
        stored = store.add_candidate(run.id, found)
        store.add_measurement(run.id, stored, measured)
        return stored.id

    facts = {"resources": {"compile_s": 2.0}, "environment": {"device": "a cpu"}, "errors": {"w/random": 0.4}}
    a = add(candidate(rows=1), passed(1.1, **facts))
    b = add(candidate(rows=2), passed(1.2))
    c = add(replace(candidate(parents=(a, b), rows=4), operator="cross", note=ESCAPE), passed(1.3))
    d = add(candidate(parents=(a, b), block=32), Measurement(Outcome.CRASHED, f"died {ESCAPE}"))
    add(candidate(parents=(c, d), block=128), passed(1.4))
    return url


@pytest.fixture
def ask(url, monkeypatch):
    monkeypatch.setenv("EVOKERNEL_DB", url)

    def ask(*arguments):
        done = CliRunner().invoke(app, [str(a) for a in arguments])
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.stdout

    return ask


def test_runs_and_top_list_the_latest_run(ask):
    assert json.loads(ask("runs", "--json"))[0]["evaluations"] == 5
    assert [row["candidate"] for row in json.loads(ask("top", "--json"))] == [5, 3, 2, 1]
    assert [row["candidate"] for row in json.loads(ask("top", "first", "-n", 1, "--json"))] == [5]


def test_show_tells_knobs_timings_errors_resources_and_environment(ask):
    text = ask("show", 1)
    for words in ("rows               1", "110.0 us", "sdpa", "tolerance used: 0.40", "compile_s", "a cpu"):
        assert words in text
    shown = json.loads(ask("show", 1, "--json"))
    assert shown["score"] == pytest.approx(1.1)
    assert shown["measurements"][0]["errors"] == {"w/random": 0.4}


def test_show_source_prints_the_module_alone(ask):
    assert "'rows': 1" in ask("show", 1, "--source")


@pytest.mark.parametrize("arguments", [("show", 3), ("show", 4), ("lineage", 5)])
def test_what_a_candidate_wrote_does_not_steer_the_terminal(ask, arguments):
    assert "\x1b" not in ask(*arguments)
    assert "\x07" not in ask(*arguments)


def test_lineage_is_a_tree_in_which_lines_that_meet_again_are_drawn_once(ask):
    lines = ask("lineage", 5).splitlines()
    assert lines[0].startswith("5 mutate 1.400 ")
    assert lines[1].startswith("  3 cross 1.300 rows 1→4")
    assert lines[2:4] == ["    1 mutate 1.100", "    2 mutate 1.200"]
    assert lines[4].startswith("  4 mutate CRASHED")
    assert lines[5:] == ["    1 mutate 1.100 (above)", "    2 mutate 1.200 (above)"]


def test_lineage_as_json_holds_each_ancestor_once(ask):
    nodes = json.loads(ask("lineage", 5, "--json"))
    assert [node["candidate"] for node in nodes] == [5, 4, 3, 2, 1]
    assert nodes[2]["score"] == pytest.approx(1.3)


def test_a_line_longer_than_the_interpreters_stack_is_drawn(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path}/deep.db"
    store = Store.open(url)
    run = store.create_run("deep", {}, PROBLEM, devices.cpu(), 0)
    last = 0
    depth = sys.getrecursionlimit() + 50
    found = candidate()
    for _ in range(depth):
        last = store.add_candidate(run.id, replace(found, parents=(last,) if last else ())).id
    done = CliRunner().invoke(app, ["lineage", str(last), "--db", url])
    assert done.exit_code == 0
    assert len(done.stdout.splitlines()) == depth


def test_diff_names_the_knobs_and_shows_the_lines(ask):
    text = ask("diff", 1, 2)
    assert text.splitlines()[0] == "rows: 1 → 2"
    assert "+++ candidate 2" in text
    assert json.loads(ask("diff", 1, 2, "--json"))["knobs"] == {"rows": [1, 2]}


def test_query_answers_sql_and_saved_names(ask):
    assert json.loads(ask("query", "SELECT COUNT(*) AS n FROM run", "--json")) == [{"n": 1}]
    assert "CRASHED" in ask("query", "--saved", "recent_failures")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("show", 99), "no candidate 99"),
        (("show", 10**30), "no candidate 1000"),
        (("lineage", 99), "no candidate 99"),
        (("diff", 1, 99), "no candidate 99"),
        (("top", "frist"), "runs: first"),
        (("query", "--saved", "nope"), "choose one of champions"),
        (("query",), "give a SQL query"),
        (("query", "DELETE FROM run"), "readonly"),
    ],
)
def test_what_cannot_be_answered_is_said_in_one_line(ask, arguments, words):
    with pytest.raises(EvokernelError, match=words) as error:
        ask(*arguments)
    assert "\n" not in str(error.value)
