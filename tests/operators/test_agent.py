"""An agent reads, edits, checks and submits; everything it does is bounded, charged, and told in words."""

import itertools
from dataclasses import replace

import pytest

from evokernel.llm import Reply, ToolCall, Unavailable
from evokernel.llm.scripted import Scripted, called
from evokernel.llm.tools import SCHEMAS, Alone, Judged, ToolError
from evokernel.measurement import Fidelity, Measurement, Outcome
from evokernel.operators import ProposalError
from evokernel.operators.agent import Agent
from tests.contracts.operator_contract import CONTEXT, PARENTS, OperatorContract, plan
from tests.operators.test_rewrite import edit
from tests.toys import body, passed

NUMBERED = {r.candidate.id: r.candidate for r in PARENTS}


class Bench(Alone):
    """Knows the three parents; answers measurements in turn."""

    measures = True

    def __init__(self, *answers):
        self.answers, self.drafts = list(answers), []

    def candidate(self, number):
        if number not in NUMBERED:
            raise ToolError(f"no candidate {number}")
        return NUMBERED[number]

    def leaders(self, shape_class):
        return f"candidate 1 leads {shape_class}"

    def measure(self, draft, fidelity):
        self.drafts.append((draft, fidelity))
        return Judged(40 + len(self.drafts), self.answers.pop(0) if self.answers else passed(1.0))


class Reader(Bench):
    measures = False


def submit(edits=None, number=0, **more):
    return called("submit", number, parent=1, edits=edits or edit(), note="a try", prediction="faster", **more)


def worked(*lines, tools=None, **settings):
    model = Scripted(lines)
    tools = tools or Bench()
    return Agent([model], **settings).propose(replace(plan(1, PARENTS), tools=tools)), model, tools


def every_genome():
    for number, knobs in enumerate(itertools.cycle(body().space.enumerate(CONTEXT))):
        yield submit(f"```python\n{body().render(knobs)}```", number)


class TestAgent(OperatorContract):
    @pytest.fixture
    def operator(self):
        return self.again(None)

    def again(self, operator):
        made = Agent([Scripted(every_genome())])
        propose = made.propose
        made.propose = lambda given: propose(replace(given, tools=Reader()))
        return made

    @pytest.mark.parametrize(
        "settings", [{"turns": 0}, {"checks": -1}, {"times": -1}, {"repairs": -1}, {"max_tokens": 1}]
    )
    def test_settings_without_meaning_are_refused(self, settings):
        with pytest.raises(ValueError, match=next(iter(settings))):
            Agent(**settings)


def heard(model, turn=-1):
    return [m["content"] for m in model.heard[turn] if m["role"] == "tool"]


def test_an_agent_reads_checks_and_submits():
    found, model, tools = worked(
        called("leaders"),
        called("source", candidate=1),
        called("knowledge", query="causal load balance"),
        called("check", parent=1, edits=edit(), note="a try"),
        submit(),
    )
    assert (found.note, found.prediction, found.parents) == ("a try", "faster", (1,))
    assert [f for _, f in tools.drafts] == [Fidelity.SCREEN, Fidelity.SCREEN]
    results = heard(model)
    assert results[0].startswith("candidate 1 leads d16_causal")
    assert results[1] == NUMBERED[1].genome.source
    assert "Causal load balance" in results[2]
    assert results[3].startswith("candidate 41: PASSED")
    assert [m["role"] for m in found.said.messages][-2:] == ["assistant", "tool"]


def test_a_failed_check_comes_back_in_the_checkers_words_and_is_repaired():
    wrong = Measurement(Outcome.COMPILE_ERROR, "name 'tile' is not defined")
    found, model, _ = worked(
        submit(), submit(edit(replace="    s = 2 * scores_of(q_, k_, scale / 2, causal)")), tools=Bench(wrong)
    )
    assert "name 'tile' is not defined" in heard(model)[0]
    assert "scale / 2" in found.genome.source


def test_times_are_told_beside_the_baselines():
    _, model, tools = worked(called("time", parent=1, edits=edit(), prediction="slower"), submit())
    assert "sdpa 100.0 us" in heard(model)[0]
    assert tools.drafts[0][0].prediction == "slower"


BAD = {
    "an unknown tool": (called("shell", command="ls"), "there is no tool 'shell'; choose one of leaders"),
    "arguments that are no JSON": (Reply(calls=(ToolCall("c", "check", "{oops", None),)), "no JSON object"),
    "an unknown candidate": (called("source", candidate=99), "no candidate 99"),
    "a candidate that is no number": (called("source", candidate="best"), "must be a candidate's number"),
    "no candidate": (called("lineage"), "must be a candidate's number"),
    "edits that are no text": (called("check", parent=1, edits=[1]), "must be text"),
    "an edit that fits nowhere": (called("check", parent=1, edits=edit("    nowhere = 1")), "quoted exactly"),
    "a no-op": (called("check", parent=1, edits=edit(replace="    s = scores_of(q_, k_, scale, causal)")), "change nothing"),
    "a submission without edits": (called("submit", parent=1), "no edit and no module"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_bad_call_is_answered_with_what_to_mend_and_costs_no_measurement(what):
    call, words = BAD[what]
    _, model, tools = worked(call, submit())
    assert words in heard(model)[0]
    assert len(tools.drafts) == 1  # the submission's own check


def test_numbers_may_come_as_text():
    _, model, _ = worked(called("source", candidate="1"), submit())
    assert heard(model)[0] == NUMBERED[1].genome.source


def test_measurements_in_one_conversation_are_bounded():
    checks = [
        called(
            "check", n, parent=1, edits=edit(replace=f"    s = {n + 2} * scores_of(q_, k_, scale / {n + 2}, causal)")
        )
        for n in range(3)
    ]
    _, model, tools = worked(*checks, submit(), checks=2)
    assert "no check is left" in heard(model)[2]
    assert len(tools.drafts) == 3


def test_a_conversation_is_bounded_in_turns_and_keeps_what_was_said():
    with pytest.raises(ProposalError, match="without a candidate") as error:
        worked(*[called("leaders", n) for n in range(50)], turns=5)
    assert len([m for m in error.value.said.messages if m["role"] == "assistant"]) == 5


def test_an_agent_that_only_talks_is_reminded_and_then_dropped():
    with pytest.raises(ProposalError, match="without a candidate") as error:
        worked(*["I think..."] * 50, repairs=2)
    assert len([m for m in error.value.said.messages if m["role"] == "assistant"]) == 3


def test_failed_submissions_are_bounded_and_then_a_dearer_model_takes_over():
    cheap = Scripted([submit(edit("    nowhere = 1"), n) for n in range(9)])
    dear = Scripted([submit(number=77)])
    assert Agent([cheap, dear], repairs=1).propose(replace(plan(1, PARENTS), tools=Bench())).genome
    assert (len(cheap.heard), len(dear.heard)) == (2, 1)


def test_what_was_proposed_before_is_not_submitted_again():
    known = {NUMBERED[2].genome.key}
    module = f"```python\n{NUMBERED[2].genome.source}```"
    model = Scripted([submit(module), submit(number=1)])
    Agent([model]).propose(replace(plan(1, PARENTS, known), tools=Bench()))
    assert "proposed before" in heard(model)[0]


def test_a_model_that_goes_away_ends_the_conversation_and_keeps_it():
    with pytest.raises(ProposalError, match="gone") as error:
        worked(called("leaders"), Unavailable("gone"))
    assert not error.value.no_model
    assert len(error.value.said.messages) == 4
    with pytest.raises(ProposalError, match="gone") as error:
        worked(Unavailable("gone"))
    assert error.value.no_model


def test_every_tool_has_a_description_and_every_argument_a_type():
    for schema in SCHEMAS:
        function = schema["function"]
        assert function["description"]
        assert set(function["parameters"]["required"]) <= set(function["parameters"]["properties"])
        assert all("type" in p for p in function["parameters"]["properties"].values())


def test_what_is_known_may_be_looked_at_but_not_submitted():
    known = {NUMBERED[2].genome.key}
    module = f"```python\n{NUMBERED[2].genome.source}```"
    model = Scripted([called("check", parent=1, edits=module), submit(module), submit(number=1)])
    Agent([model]).propose(replace(plan(1, PARENTS, known), tools=Bench()))
    assert "PASSED" in heard(model)[0]
    assert "proposed before" in heard(model)[1]
