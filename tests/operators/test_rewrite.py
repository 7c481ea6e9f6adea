"""A model's edit becomes a candidate; a near-miss goes back to it, and without a model nothing is proposed."""

import itertools
import random
from dataclasses import replace

import pytest

from evokernel.llm import Refused, Reply, Unavailable
from evokernel.llm.scripted import Scripted
from evokernel.llm.tools import Alone, Judged, ToolError
from evokernel.measurement import Measurement, Outcome
from evokernel.operators import Plan, ProposalError
from evokernel.operators.rewrite import Rewrite
from tests.contracts.operator_contract import CONTEXT, PARENTS, OperatorContract, plan
from tests.toys import body, genome, passed

CALL = "    s = scores_of(q_, k_, scale, causal)"


def edit(search=CALL, replace="    s = 1 * scores_of(q_, k_, scale, causal)"):
    return (
        "IDEA: one multiplication more\nPREDICTION: a little slower\n"
        f"<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n"
    )


def every_genome():
    """Answer with one genome of the toy's space after another."""
    for knobs in itertools.cycle(body().space.enumerate(CONTEXT)):
        yield f"```python\n{body().render(knobs)}```"


class TestRewrite(OperatorContract):
    @pytest.fixture
    def operator(self):
        return Rewrite([Scripted(every_genome())])

    def again(self, operator):
        return Rewrite([Scripted(every_genome())])

    @pytest.mark.parametrize("settings", [{"repairs": -1}, {"max_tokens": 1}, {"inspirations": -1}])
    def test_settings_without_meaning_are_refused(self, settings):
        with pytest.raises(ValueError, match=next(iter(settings))):
            Rewrite(**settings)


class Bench(Alone):
    """Tools that answer each measurement in turn."""

    measures = True

    def __init__(self, *answers):
        self.answers, self.drafts = list(answers), []

    def measure(self, draft, fidelity):
        self.drafts.append((draft, fidelity))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Judged(40 + len(self.drafts), answer)

    def lessons(self):
        return ["larger tiles: expected faster, came out slower"]

    def failures(self, parent):
        return ["COMPILE_ERROR no such name"]


def planned(tools=None) -> Plan:
    return replace(plan(1, PARENTS), tools=tools or Alone(), rng=random.Random(1))


def proposed(*lines, tools=None, **settings):
    model = Scripted(lines)
    return Rewrite([model], **settings).propose(planned(tools)), model


def test_a_structural_edit_comes_with_its_idea_its_prediction_and_its_conversation():
    found, model = proposed(Reply(edit(), model="m", tokens=70, cost_usd=0.5))
    assert found.genome.body.digest != genome().body.digest
    assert (found.note, found.prediction) == ("one multiplication more", "a little slower")
    assert (found.parents, found.tokens, found.cost_usd) == ((1,), 70, 0.5)
    assert [m["role"] for m in found.said.messages] == ["system", "user", "assistant"]
    assert found.said.model == "m"
    assert len(model.heard) == 1


def test_the_prompt_holds_the_parent_its_times_other_candidates_lessons_and_failures():
    _, model = proposed(edit(), tools=Bench(passed(1.0)))
    text = model.heard[0][1]["content"]
    for words in (
        CALL, "score 1.5", "candidate 1", "Another candidate, 2", "came out slower", "no such name", "[numba]",
    ):  # fmt: skip
        assert words in text


def test_held_out_workloads_are_not_told():
    _, model = proposed(edit())
    assert "held" not in model.heard[0][1]["content"]


def test_a_near_miss_goes_back_with_the_reason_and_is_mended():
    found, model = proposed(edit("    s = scores(q, k)"), edit())
    assert "must be quoted exactly" in model.heard[1][-1]["content"]
    assert found.genome


def test_a_new_body_that_fails_its_check_goes_back_in_the_checkers_words():
    tools = Bench(Measurement(Outcome.INCORRECT, "row 3 of head 1 is off"), passed(1.0))
    other = edit(replace="    s = 2 * scores_of(q_, k_, scale / 2, causal)")
    found, model = proposed(edit(), other, tools=tools)
    assert "row 3 of head 1 is off" in model.heard[1][-1]["content"]
    assert "scale / 2" in found.genome.source
    assert [d.prediction for d, _ in tools.drafts] == ["a little slower"] * 2


def test_repairs_are_bounded_and_then_a_dearer_model_is_asked():
    cheap, dear = Scripted(["no idea"] * 10), Scripted([edit()])
    assert Rewrite([cheap, dear], repairs=2).propose(planned()).genome
    assert (len(cheap.heard), len(dear.heard)) == (3, 1)


def test_when_every_model_fails_the_reason_and_the_conversation_are_kept():
    with pytest.raises(ProposalError, match="no usable edit") as error:
        proposed("no idea", "none", "still none")
    assert len(error.value.said.messages) == 7
    assert not error.value.no_model


@pytest.mark.parametrize("line", [Unavailable("no key"), Refused("I may not")])
def test_without_an_answer_there_is_no_model(line):
    with pytest.raises(ProposalError, match=str(line)) as error:
        proposed(line)
    assert error.value.no_model
    with pytest.raises(ProposalError, match="no model is configured") as error:
        Rewrite().propose(planned())
    assert error.value.no_model


def test_an_answer_cut_at_the_limit_is_asked_for_again_more_briefly():
    _, model = proposed(Reply("<<<<<<< SEARCH\nx", finish="length"), edit())
    assert "cut at the limit" in model.heard[1][-1]["content"]


def test_a_reached_budget_ends_the_conversation_and_keeps_it():
    with pytest.raises(ProposalError, match="budget") as error:
        proposed(edit(), tools=Bench(ToolError("the budget is reached")))
    assert error.value.said.messages
