"""Slow operators think in threads of their own, ask for measurements, and fail without ending the campaign."""

import threading

import pytest

from evokernel.llm.tools import Draft, Judged, ToolError
from evokernel.measurement import Fidelity
from evokernel.operators import Operator, Proposal, ProposalError
from evokernel.proposers import Proposers
from tests.contracts.operator_contract import PARENTS, plan
from tests.llm.server import wait_for
from tests.toys import CLASS, genome, passed


class Thinks(Operator):
    name = "thinks"
    slow = True

    def __init__(self, thought):
        self.thought = thought

    def propose(self, given):
        return self.thought()


def collected(proposers, count=1):
    found = []
    wait_for(lambda: found.extend(proposers.thoughts()) or len(found) >= count)
    return found


def test_a_thought_comes_back_with_its_plan_and_operator():
    proposers, operator, given = Proposers(), Thinks(lambda: Proposal(genome())), plan(1, PARENTS)
    proposers.start(operator, given)
    assert proposers.busy == 1
    (thought,) = collected(proposers)
    assert (thought.operator, thought.plan, thought.outcome.genome.key) == (operator, given, genome().key)
    assert proposers.busy == 0


def test_a_failure_of_ours_is_a_thought_too_and_keeps_its_cause(caplog):
    proposers = Proposers()
    proposers.start(Thinks(lambda: {}["missing"]), plan())
    (thought,) = collected(proposers)
    assert isinstance(thought.outcome, ProposalError)
    assert "thinks failed: KeyError: 'missing'" in str(thought.outcome)
    assert isinstance(thought.outcome.__cause__, KeyError)
    assert "an operator failed" in caplog.text


def test_a_request_waits_for_the_driver_and_gets_its_answer_or_its_refusal():
    proposers, draft = Proposers(2), Draft(genome(), CLASS.name)
    got = []

    def thought():
        got.append(proposers.request(draft, Fidelity.SCREEN))
        with pytest.raises(ToolError, match="budget"):
            proposers.request(draft, Fidelity.FULL)
        raise ProposalError("nothing")

    proposers.start(Thinks(thought), plan())
    proposers.wait(10)
    (first,) = proposers.requests()
    first.answer.set_result(Judged(7, passed(1.0)))
    second = []
    wait_for(lambda: second.extend(proposers.requests()) or bool(second))
    second[0].refuse("the budget is reached")
    assert str(collected(proposers)[0].outcome) == "nothing"
    assert (got[0].candidate, first.fidelity, second[0].fidelity) == (7, Fidelity.SCREEN, Fidelity.FULL)


def test_closing_leaves_behind_whoever_does_not_end():
    proposers, release = Proposers(), threading.Event()
    proposers.start(Thinks(lambda: release.wait(30) and Proposal(genome())), plan())
    served = []
    proposers.close(0.01, lambda: served.append(1))
    assert proposers.busy == 1
    assert served
    release.set()


def test_waiting_with_nobody_thinking_takes_no_time():
    Proposers().wait(1e6)
