"""Campaigns with models: an agent finds what no knob reaches, the tuner goes on from there, and no fault stops them."""

import json
import os
import subprocess
import sys

import pytest

from evokernel import assemble, devices
from evokernel.config import validate
from evokernel.evaluators.null import Null
from evokernel.llm.scripted import called
from evokernel.measurement import Fidelity, Outcome, score
from evokernel.reporters import Silent
from evokernel.store import Store, exchange
from evokernel.worker.parent import CpuWorker
from tests.commands import environment
from tests.llm.server import Answer, serving, wait_for
from tests.toys import PROBLEM, RIGHT

KEY = "sk-secret-of-the-test"

# Exact attention that takes a few keys at a time; no knob makes it take more.
SLOW = RIGHT.replace(
    "    s = (q[:, :, :, None, :] * k[:, :, None, :, :]).sum(-1) * scale\n",
    "    s = np.zeros((*q.shape[:3], k.shape[2]))\n"
    "    for row in range(q.shape[2]):\n"
    "        for first in range(0, k.shape[2], 4):\n"
    "            s[:, :, row, first : first + 4] = (q[:, :, row, None] * k[:, :, first : first + 4]).sum(-1) * scale\n",
)
SEVERAL = (
    "    s = np.zeros((*q.shape[:3], k.shape[2]))\n"
    "    for row in range(q.shape[2]):\n"
    "        for first in range(0, k.shape[2], KNOBS['columns']):\n"
    "            some = slice(first, first + KNOBS['columns'])\n"
    "            s[:, :, row, some] = (q[:, :, row, None] * k[:, :, some]).sum(-1) * scale"
)


def block(search, replace):
    return f"<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n"


def structural(source):
    """Edit the slow module into one with more keys at once, and a knob of its own that starts badly."""
    lines = source.split("\n")
    knobs = next(line for line in lines if line.startswith("KNOBS = "))
    values = next(line for line in lines if '"knobs": {' in line)
    start = lines.index("    s = np.zeros((*q.shape[:3], k.shape[2]))")
    return (
        block(values, values.replace('"rows"', '"columns": [4, 8, 16, 32, 64, 128], "rows"'))
        + block(knobs, knobs.replace("{", "{'columns': 4, "))
        + block("\n".join(lines[start : start + 4]), SEVERAL)
    )


def settings(tmp_path, source=SLOW, **more):
    (tmp_path / "toy.py").write_text(source)
    return {
        "problem": {
            "dtype": "fp32",
            "workloads": {"grid": {"head_dim": 16, "seq": 32, "causal": True, "batch": 1, "heads": 2}},
            "held_out": {"rows": [{"heads": 2, "seq": 50, "head_dim": 16, "causal": True}]},
        },
        "spaces": [str(tmp_path / "toy.py")],
        "operators": {"tune": {"sampler": "random", "weight": 3}, "agent": {"weight": 1}},
        "evaluator": {"type": "local", "device": "cpu"},
        "budget": {"evaluations": 16},
        "store": f"sqlite:///{tmp_path}/evokernel.db",
        **more,
    }


def model(server, **more):
    return {
        "name": "test",
        "base_url": server.url,
        "key_env": "TEST_KEY",
        "retries": 1,
        "backoff": 0.001,
        "timeout": 5,
        **more,
    }


class Notes(Silent):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)

    def found(self, candidate):
        """Look at a new leader."""

    def evaluated(self, record, score, improved):
        if improved:
            self.found(record.candidate)


def campaign(data, name="run"):
    config = validate(data, "test")
    store = Store.open(config.store)
    known = [r for r in store.runs() if r.name == name]
    run = (
        known[0]
        if known
        else store.create_run(
            name, config.model_dump(mode="json"), config.problem.problem(), devices.cpu(), config.seed
        )
    )
    return assemble.campaign(config, store, run, devices.cpu(), Notes())


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("TEST_KEY", KEY)


def calls(*replies):
    return tuple((c.name, c.written) for r in replies for c in r.calls)


def parent_of(body):
    """Return the number and the module of the parent that a prompt shows."""
    text = body["messages"][1]["content"]
    number = int(text.split("The parent is candidate ")[1].split(".")[0])
    return number, text.split("```python\n")[1].split("```")[0]


def inventor(body):
    """Be an agent: look, check, submit the structural edit once; then have no more ideas."""
    said = [m for m in body["messages"] if m["role"] == "assistant"]
    number, source = parent_of(body)
    if "columns" in source or "more keys at once; expected" in body["messages"][1]["content"]:  # a lesson
        return Answer("I have no other idea.")
    if not said:
        return Answer("Let me look.", calls(called("leaders"), called("knowledge", query="numpy matrix product")))
    edits = structural(source)
    if len(said) == 1:
        return Answer(calls=calls(called("check", parent=number, edits=edits, note="more keys at once")))
    return Answer(
        calls=calls(called("submit", parent=number, edits=edits, note="more keys at once", prediction="twice as fast"))
    )


def test_an_agent_finds_a_structure_that_no_knob_reaches_and_the_tuner_improves_it(tmp_path, monkeypatch):
    """Real kernels in real processes, a real client and a server on this machine."""
    monkeypatch.setattr("evokernel.loop.CHAMPIONS", 0)  # to verify them takes longer than all the rest
    with serving(inventor) as server:
        data = settings(tmp_path, budget={"evaluations": 60}, models=[model(server, input_usd=1.0, output_usd=2.0)])
        made = campaign(data)
        made.reporter.found = lambda candidate: candidate.genome.knobs.get("columns", 0) > 4 and made.stop("found")
        try:
            assert made.execute() == "finished"
        finally:
            made.evaluator.close()
    assert made.stopping == "found"
    store, run = made.store, made.run
    part = next(iter(made.parts.values()))
    records = list(store.records(run.id))
    found = {r.candidate.id: r.candidate for r in records}
    scores = {n: score(store.measurements(n), part) for n in found}
    invented = next(c for c in found.values() if c.operator == "agent")
    first = found[invented.parents[0]]
    assert first.genome.body.digest != invented.genome.body.digest
    assert invented.genome.knobs["columns"] == 4
    # The champion has the agent's structure with other knobs, which the tuner set.
    (champion,) = (e.record.candidate for e in made.search.leaders(made.classes[invented.shape_class], 1))
    assert champion.genome.body.digest == invented.genome.body.digest
    assert champion.genome.knobs["columns"] > 4
    assert champion.operator == "tune"
    assert scores[champion.id] > scores[invented.id]
    assert scores[champion.id] > max(
        s for n, s in scores.items() if s and found[n].genome.body.digest == first.genome.body.digest
    )
    # It was checked before it was timed, its prediction is kept, and its conversation can be read.
    (lesson,) = [x for x in store.lessons(run.id) if x.candidate_id == invented.id]
    assert lesson.tried == "more keys at once"
    assert "once tuned" in lesson.outcome
    assert [m.fidelity for m in store.measurements(invented.id)][:2] == [Fidelity.SCREEN, Fidelity.FULL]
    (talk,) = exchange.conversations_about(store, invented.id)
    assert [m["role"] for m in talk.messages[:4]] == ["system", "user", "assistant", "tool"]
    # Every token is accounted for, none twice.
    spent = store.spent(run.id)
    assert spent.tokens == server.tokens
    assert spent.usd == pytest.approx(made.desk.ledger.usd) and spent.usd > 0
    # The key went to the server and nowhere else.
    assert f"Bearer {KEY}" in server.keys
    assert KEY.encode() not in b"".join(p.read_bytes() for p in tmp_path.rglob("evokernel.db*"))


def without_models(tmp_path, **more):
    return settings(tmp_path, RIGHT, **{"evaluator": {"type": "null"}, **more})


def full(made):
    return [r for r in made.store.records(made.run.id) if r.measurement.fidelity is Fidelity.FULL]


def test_without_a_model_the_samplers_go_on_and_the_campaign_says_so(tmp_path):
    made = campaign(without_models(tmp_path))
    assert made.execute() == "finished"
    assert len(full(made)) == 16
    (note,) = [n for n in made.reporter.notes if "no model answers" in n]
    assert "no model is configured" in note and "samplers" in note
    assert {r.candidate.operator for r in full(made)} == {"seed", "tune"}


def test_without_a_key_the_samplers_go_on(tmp_path, monkeypatch):
    monkeypatch.delenv("TEST_KEY")
    made = campaign(without_models(tmp_path, models=[{"name": "m", "key_env": "TEST_KEY"}]))
    assert made.execute() == "finished"
    assert any("no key in $TEST_KEY" in n for n in made.reporter.notes)
    assert len(full(made)) == 16


class Waiting(Null):
    """Makes measurements up, and gives those who think a moment before each."""

    def __init__(self, made, moment_s):
        super().__init__()
        self.desk, self.moment_s = made.desk, moment_s

    def wait(self, timeout_s):
        self.desk.wait(self.moment_s)
        return super().wait(timeout_s)


def thoughtful(data, name="run", moment_s=0.3):
    made = campaign(data, name)
    made.evaluator = Waiting(made, moment_s)
    made.desk.open(made.begin, made.in_flight, lambda: made.stopping)
    return made


def test_a_budget_of_no_tokens_asks_no_model_and_ends_no_search(tmp_path):
    with serving(inventor) as server:
        made = campaign(without_models(tmp_path, models=[model(server)], budget={"evaluations": 16, "tokens": 0}))
        assert made.execute() == "finished"
    assert server.requests == []
    assert any("budget for models is spent: 0 of 0 tokens" in n for n in made.reporter.notes)
    assert len(full(made)) == 16


def test_a_campaign_of_models_alone_waits_for_one_that_is_away_for_a_moment(tmp_path):
    calls, number = iter([Answer(fault="503")] * 4), iter(range(2, 99))

    def script(body):
        fault = next(calls, None)
        factor = next(number)
        edit = f"    s = {factor} * scores_of(q_, k_, scale / {factor}, causal)"
        return fault or Answer(block("    s = scores_of(q_, k_, scale, causal)", edit))

    with serving(script) as server:
        data = without_models(tmp_path, models=[model(server)], operators={"rewrite": {}}, budget={"evaluations": 6})
        made = campaign(data)
        assert made.execute() == "finished"
    assert [n for n in made.reporter.notes if "model answers" in n][1] == "a model answers again"
    assert "rewrite" in {r.candidate.operator for r in full(made)}
    assert "evaluations" in made.stopping


def test_a_campaign_of_models_alone_ends_when_none_can_come_back(tmp_path):
    with serving(lambda body: Answer(fault="401")) as server:
        data = without_models(tmp_path, models=[model(server)], operators={"rewrite": {}}, budget={"evaluations": 6})
        made = campaign(data)
        assert made.execute() == "finished"
    assert "every genome" in made.stopping


def test_what_a_conversation_cost_that_led_nowhere_is_kept_and_binds_the_next_sitting(tmp_path):
    only_talk = lambda body: Answer("I am thinking about it. " * 20)  # noqa: E731
    with serving(only_talk) as server:
        data = without_models(
            tmp_path,
            models=[model(server)],
            operators={"rewrite": {"repairs": 0}},
            budget={"evaluations": 9, "tokens": 200_000},
        )
        made = thoughtful(data)
        made.execute()
        assert len(server.requests) >= 1
        assert made.store.spent(made.run.id).tokens == server.tokens > 0
        again = campaign(data)
        assert again.desk.ledger.tokens == server.tokens


def test_a_campaign_that_ends_leaves_a_slow_model_behind_and_counts_its_worst_case(tmp_path, monkeypatch):
    monkeypatch.setattr("evokernel.desk.GRACE_S", 0.05)
    with serving(lambda body: Answer("late", slow_s=20)) as server:
        data = without_models(
            tmp_path, models=[model(server, timeout=30)], budget={"evaluations": 12, "tokens": 500_000}
        )
        made = thoughtful(data, moment_s=0.05)
        assert made.execute() == "finished"
        assert len(server.requests) == 1
        assert made.store.spent(made.run.id).tokens == made.desk.ledger.tokens >= server.tokens


def driver(folder, data, *arguments):
    """Start a real driver of a campaign in a folder."""
    (folder / "campaign.yaml").write_text(json.dumps(data))
    return subprocess.Popen(
        [sys.executable, "-m", "evokernel", "run", "-c", "campaign.yaml", *arguments],
        cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def test_a_driver_killed_while_a_model_thinks_leaves_what_that_may_cost(tmp_path):
    """A real kill of a real driver: the next sitting starts from no less than the server gave out."""
    with serving(lambda body: Answer("late", slow_s=20)) as server:
        data = settings(tmp_path, RIGHT, evaluator={"type": "tests.paced:Paced"}, models=[model(server, timeout=60)])
        started = driver(tmp_path, data, "--name", "killed")
        try:
            wait_for(lambda: bool(server.requests), 60)
        finally:
            started.kill()
            started.communicate()
        store = Store.open(data["store"])
        assert store.spent(store.run("killed").id).tokens > server.requests[0]["max_tokens"]


def test_a_key_that_the_server_repeats_is_in_no_output_log_or_database(tmp_path):
    with serving(lambda body: Answer(fault="401")) as server:
        data = settings(
            tmp_path, RIGHT, evaluator={"type": "tests.paced:Paced", "pace_s": 0.1}, models=[model(server)]
        )  # fmt: skip
        output, _ = driver(tmp_path, data, "--name", "leaky").communicate(timeout=60)
        assert f"Bearer {KEY}" in server.keys
    assert b"no model answers" in output and b"[key]" in output
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "log.jsonl" for path in written)
    for text in (output, *(path.read_bytes() for path in written)):
        assert KEY.encode() not in text


def test_the_key_reaches_no_child_of_the_evaluator():
    """A candidate that would answer wrongly with the key in its environment is right, on the real worker."""
    looking = RIGHT.replace("import numpy as np\n", "import os\nimport numpy as np\n").replace(
        "    return torch.tensor(out", "    out = out + 9 * ('TEST_KEY' in os.environ)\n    return torch.tensor(out"
    )
    worker = CpuWorker(devices.cpu(), "fp32", ("sdpa",), guarded=False)
    try:
        assert "TEST_KEY" in os.environ
        found = worker.measure(looking, "numba", PROBLEM, Fidelity.SCREEN)
    finally:
        worker.close()
    assert (found.outcome, found.message) == (Outcome.PASSED, "")


def test_a_stored_run_replays_its_conversations_without_a_server_or_a_token(tmp_path):
    made_up = {"evaluator": {"type": "null"}, "budget": {"evaluations": 20}}
    with serving(inventor) as server:
        first = thoughtful(settings(tmp_path, **made_up, models=[model(server)]))
        first.execute()
    again = thoughtful(settings(tmp_path, **made_up, models=[{"name": "again", "replay": "run"}]), "second")
    again.execute()
    assert again.desk.ledger.tokens == 0
    said = [c for c in again.store.conversations(again.run.id) if c.messages]
    assert said
    assert said[0].messages[2]["content"] == "Let me look."
    results = [m["content"] for m in said[0].messages if m["role"] == "tool"]
    assert len(results) > 2 and not any("has no candidate" in r for r in results)


def test_an_unknown_run_to_replay_is_one_line(tmp_path):
    from evokernel.errors import ConfigError

    with pytest.raises(ConfigError, match=r"models\.0\.replay: .*no run named 'gone'"):
        campaign(without_models(tmp_path, models=[{"name": "x", "replay": "gone"}]))


@pytest.mark.parametrize(
    "section, words",
    [
        ({"name": "m", "api_key": "sk-x"}, ["models.0.api_key", "key_env"]),
        ({"name": "m", "base_url": "https://user:pass@host/v1"}, ["models.0.base_url"]),
        ({"name": "m", "base_url": "ftp://host"}, ["models.0.base_url"]),
        ({"name": "m", "key_env": "sk-not-a-name"}, ["models.0.key_env"]),
        ({"base_url": "http://host/v1"}, ["models.0.name", "missing"]),
        ({"name": "m", "extra": {"API_key": "sk-x"}}, ["extra names api_key", "environment"]),
    ],
)
def test_a_model_that_cannot_be_meant_is_refused_in_one_line(tmp_path, section, words):
    from evokernel.errors import ConfigError

    with pytest.raises(ConfigError) as error:
        validate(without_models(tmp_path, models=[section]), "test")
    for word in words:
        assert word in str(error.value)
