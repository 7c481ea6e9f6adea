"""People, scripts and agents of other makers hand candidates to a running campaign, and see what became of them."""

import asyncio
import json
import subprocess
import sys

import pytest
import yaml

from evokernel import devices
from evokernel.store import Store, exchange
from tests.commands import environment, runner
from tests.llm.server import wait_for
from tests.operators.test_rewrite import edit
from tests.toys import PROBLEM, RIGHT, candidate

mcp = pytest.importorskip("mcp")
SETTINGS = {
    "problem": {
        "dtype": "fp32",
        "workloads": {"grid": {"head_dim": 16, "seq": 64, "batch": 1, "heads": 2}},
    },
    "spaces": ["toy.py"],
    "operators": {"mutate": {"weight": 1}},
    "evaluator": {"type": "tests.paced:Paced"},
    "budget": {"wall": 120},
    "store": "sqlite:///evokernel.db",
}


DATABASE = {"EVOKERNEL_DB": "sqlite:///evokernel.db"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("campaign")
    (made / "toy.py").write_text(RIGHT)
    (made / "toy.yaml").write_text(yaml.safe_dump(SETTINGS))
    return made


@pytest.fixture(scope="module")
def evokernel(folder):
    return runner(folder, timeout=60, **DATABASE)


@pytest.fixture(scope="module")
def store(folder):
    """A campaign that is running, with a candidate that has been measured."""
    driver = subprocess.Popen(
        [sys.executable, "-m", "evokernel", "run", "-c", "toy.yaml", "--name", "live"],
        cwd=folder, env=environment(**DATABASE), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    database = folder / "evokernel.db"
    wait_for(lambda: database.exists() and bool(database.stat().st_size) and driver.poll() is None, 60)
    opened = Store.open(f"sqlite:///{database}")
    wait_for(lambda: bool(opened.runs()) and any(opened.records(opened.run("live").id)), 60)
    yield opened
    driver.terminate()
    driver.communicate(timeout=60)


def answer(store, number):
    wait_for(lambda: exchange.answered(store, number) is not None, 20)
    return exchange.answered(store, number)


def parent_of(store, where="causal"):
    run = store.run("live")

    def passed():
        return [r.candidate for r in store.records(run.id) if r.measurement.passed and where in r.candidate.shape_class]

    wait_for(lambda: bool(passed()), 20)
    return passed()[0]


def submitted(done):
    return [int(n) for n in done.stderr.split("submission ")[1].split(" to run")[0].split(", ")]


def test_a_file_of_edits_becomes_a_candidate_of_the_running_campaign(store, evokernel, folder):
    parent = parent_of(store)
    (folder / "edit.txt").write_text(edit())
    done = evokernel(
        "submit", "live", "edit.txt", "--parent", parent.id, "--note", "once more", "--prediction", "slower"
    )
    (number,) = submitted(done)
    made = store.candidate(answer(store, number).candidate_id)
    assert (made.operator, made.parents, made.note) == ("submit", (parent.id,), "once more")
    assert made.generation == parent.generation + 1
    assert made.shape_class == parent.shape_class
    wait_for(lambda: bool(store.measurements(made.id)), 20)
    lessons = [x for x in store.lessons(store.run("live").id) if x.candidate_id == made.id]
    assert [(x.tried, x.prediction) for x in lessons] == [("once more", "slower")]
    assert "came of no conversation" in evokernel("show", made.id, "--conversation").stdout


def test_a_module_without_a_parent_goes_to_every_shape_class(store, evokernel, folder):
    (folder / "mine.py").write_text(RIGHT.replace("np.exp(s - top)", "np.exp2((s - top) * 1.4426950408889634)"))
    made = [store.candidate(answer(store, n).candidate_id) for n in submitted(evokernel("submit", "mine.py"))]
    assert len({c.shape_class for c in made}) == 2
    assert all(c.parents == () for c in made)


def test_what_the_driver_refuses_it_answers_with_the_reason(store):
    run = store.run("live")
    stranger = store.add_candidate(store.create_run("other", {}, PROBLEM, devices.cpu(), 0).id, candidate())
    other = RIGHT.replace('"backend": "numba"', '"backend": "triton"')
    cases = {
        "no line": store.add_submission(run.id, "x = 1", None, "d16_causal_fp32_short", ""),
        "is none of": store.add_submission(run.id, RIGHT, None, "elsewhere", ""),
        f"has no candidate {stranger.id}": store.add_submission(run.id, RIGHT, stranger.id, None, ""),
        "its backend is 'triton'": store.add_submission(run.id, other, None, "d16_causal_fp32_short", ""),
    }
    for words, number in cases.items():
        found = answer(store, number)
        assert found.candidate_id is None
        assert words in found.refusal


BAD = {
    "edits without a parent": (["submit", "edit.txt"], "--parent"),
    "an unknown parent": (["submit", "edit.txt", "--parent", "9999"], "no candidate 9999"),
    "an unknown run": (["submit", "dead", "edit.txt"], "no run named 'dead'"),
    "an unknown class": (["submit", "toy.py", "--class", "x"], "--class is 'x'; choose one of d16"),
    "a missing file": (["submit", "none.py"], "none.py"),
    "no candidate": (["submit", "toy.yaml"], "toy.yaml: "),
    "too many files": (["submit", "live", "toy.py", "edit.txt"], "[NAME] FILE"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_bad_submission_is_one_line_and_exit_code_2(store, evokernel, folder, what):
    (folder / "edit.txt").write_text(edit())
    arguments, words = BAD[what]
    (line,) = evokernel(*arguments, code=2).stderr.strip().splitlines()
    assert words in line


def test_any_agent_may_play_through_the_model_context_protocol(store, folder):
    parent = parent_of(store)
    edits = edit(replace="    s = 3 * scores_of(q_, k_, scale / 3, causal)")

    async def play():
        server = mcp.StdioServerParameters(
            command=sys.executable,
            args=["-m", "evokernel", "mcp", "live"],
            cwd=str(folder),
            env=environment(**DATABASE),
        )
        async with mcp.Client(server) as client:

            async def ask(name, **arguments):
                reply = await client.call_tool(name, arguments)
                return reply.content[0].text, bool(reply.is_error)

            names = [tool.name for tool in (await client.list_tools()).tools]
            said = {
                "leaders": await ask("leaders"),
                "source": await ask("source", candidate=parent.id),
                "lineage": await ask("lineage", candidate=parent.id),
                "knowledge": await ask("knowledge", query="causal load balance"),
                "failures": await ask("failures"),
                "lessons": await ask("lessons"),
                "compile": await ask("compile", parent=parent.id, edits=edits),
                "check": await ask("check", parent=parent.id, edits=edits, note="three times"),
                "time": await ask("time", parent=parent.id, edits=edits, note="three times", prediction="the same"),
                "bad": await ask("check", parent=parent.id, edits="nothing"),
                "submit": await ask(
                    "submit", parent=parent.id, edits=edits.replace("3", "5"), note="five times", prediction="the same"
                ),
            }
            return names, said

    names, said = asyncio.run(asyncio.wait_for(play(), 60))
    assert {"leaders", "check", "time", "submit"} <= set(names)
    assert [name for name, (_, wrong) in said.items() if wrong] == ["bad"]
    assert "no edit and no module" in said["bad"][0]
    assert said["source"][0] == parent.genome.source
    assert f"{parent.id} by {parent.operator}" in said["lineage"][0]
    assert "Causal load balance" in said["knowledge"][0]
    assert "use check" in said["compile"][0]
    checked = store.candidate(int(said["check"][0].split()[1].rstrip(":")))
    assert (checked.operator, checked.note) == ("mcp", "three times")
    assert said["time"][0].startswith(f"candidate {checked.id}: ")
    handed = answer(store, int(said["submit"][0].split()[1]))
    assert store.candidate(handed.candidate_id).note == "five times"


def test_a_submission_to_a_run_that_has_ended_waits_for_the_next_sitting(store, evokernel, folder):
    evokernel(
        "run", "-c", "toy.yaml", "--name", "done", "-o", "budget={evaluations: 3}", "-o", "evaluator={type: 'null'}"
    )
    (folder / "mine.py").write_text(RIGHT.replace("np.exp(s - top)", "np.exp(1 * (s - top))"))
    done = evokernel("submit", "done", "mine.py", "--class", "d16_causal_fp32_short", "--note", "later")
    assert "run done is finished, so it waits for: evokernel resume" in done.stderr
    (number,) = submitted(done)
    assert exchange.answered(store, number) is None
    evokernel("resume", "done")  # its budget is reached, so it goes on waiting
    assert exchange.answered(store, number) is None


def test_a_conversation_is_shown_in_text_and_in_json(store, evokernel):
    from evokernel.store import Conversation

    one = parent_of(store)
    call = {"id": "c", "type": "function", "function": {"name": "check", "arguments": "{}"}}
    talk = [{"role": "user", "content": "hi \x1b[2J"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    store.add_conversation(store.run("live").id, Conversation("m", talk, one.id, 10, 0.5))
    shown = evokernel("show", one.id, "--conversation").stdout
    assert "m: 10 tokens, 0.5000 USD" in shown and "calls check {}" in shown
    assert "\x1b" not in shown
    assert json.loads(evokernel("show", one.id, "--conversation", "--json").stdout)[0]["messages"] == talk
