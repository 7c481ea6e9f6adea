"""The desk has drafts measured once, answers whoever waits, and writes down what was expected before it is known."""

from dataclasses import replace

import pytest

from evokernel import devices
from evokernel.archives.elites import Elites
from evokernel.candidate import Genome
from evokernel.desk import Desk
from evokernel.llm.conversation import Said
from evokernel.llm.ledger import Ledger, Price
from evokernel.llm.tools import Draft, ToolError
from evokernel.measurement import Fidelity, Measurement, Outcome
from evokernel.operators import Operator, Proposal, ProposalError
from evokernel.operators.random import Random
from evokernel.proposers import Proposers, Request
from evokernel.reporters import Silent
from evokernel.search import Search
from evokernel.store import Store, exchange
from tests.llm.server import wait_for
from tests.toys import CLASS, PROBLEM, RIGHT, body, genome, passed

EDITED = body(RIGHT.replace("* scale", "* (1 * scale)"))


class Asked(Operator):
    """A slow operator that answers what it is told to, in turn."""

    name = "asked"
    slow = True

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)

    def propose(self, plan):
        outcome = self.outcomes.pop(0) if self.outcomes else ProposalError("nothing more")
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class Notes(Silent):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


class Driver:
    """Measures what the desk begins, when told to."""

    def __init__(self, tmp_path, *operators):
        self.store = Store.open(f"sqlite:///{tmp_path}/evokernel.db")
        self.run = self.store.create_run("run", {}, PROBLEM, devices.cpu(), 0)
        self.search = Search(
            PROBLEM, [genome()], [(Random(), 1.0), *((o, 1.0) for o in operators)], lambda: Elites([]),
            {"arch": 0, "shared_bytes": 1 << 40, "num_sms": 2},
        )  # fmt: skip
        self.ledger, self.reporter, self.clock, self.stopping = Ledger(10_000), Notes(), 0.0, ""
        self.proposers = Proposers()
        self.in_flight = {}
        self.desk = Desk(
            self.store, self.run, self.search, self.ledger, self.reporter, self.proposers, lambda: None
        )  # fmt: skip
        self.desk.open(self.begin, self.in_flight, lambda: self.stopping, lambda: self.clock)

    def begin(self, candidate, fidelity):
        assert candidate.id not in self.in_flight
        self.in_flight[candidate.id] = (candidate, fidelity)

    def measure(self, measurement, number=None):
        candidate, fidelity = self.in_flight.pop(number or next(iter(self.in_flight)))
        record = self.store.add_measurement(self.run.id, candidate, replace(measurement, fidelity=fidelity))
        self.search.tell(record)
        self.desk.told(record, self.search.score_of(candidate))
        return candidate

    def leader(self):
        made = self.search.candidate(CLASS.name, "seed", Proposal(genome()))
        self.begin(self.store.add_candidate(self.run.id, made), Fidelity.FULL)
        return self.measure(passed(1.0))

    def thought(self):
        """Serve until a thought has come in."""
        self.desk.serve()
        wait_for(lambda: not self.proposers._thoughts.empty())
        self.desk.serve()


@pytest.fixture
def driver(tmp_path):
    return Driver(tmp_path)


def draft(found=None, **more):
    return Draft(found or Genome(EDITED, EDITED.defaults), CLASS.name, (1,), "a try", "faster", **more)


def asked(driver, fidelity=Fidelity.SCREEN, found=None):
    request = Request(draft(found), fidelity)
    driver.desk._request(request)
    return request


def test_a_draft_becomes_a_candidate_and_whoever_asked_gets_its_measurement(driver):
    parent = driver.leader()
    request = asked(driver)
    assert not request.answer.done()
    made = driver.measure(passed(1.5))
    assert request.answer.result().candidate == made.id
    assert (made.operator, made.parents, made.generation) == ("agent", (parent.id,), 1)
    assert driver.in_flight == {}


def test_a_draft_that_is_known_is_answered_at_once_and_charged_to_nobody(driver):
    driver.leader()
    found = asked(driver, Fidelity.FULL, genome())
    assert found.answer.result().measurement.passed
    assert driver.in_flight == {}


def test_times_that_are_asked_for_during_a_check_follow_it(driver):
    driver.leader()
    check, times = asked(driver), asked(driver, Fidelity.FULL)
    driver.measure(passed(1.5))
    assert check.answer.done() and not times.answer.done()
    driver.measure(passed(1.5))
    assert times.answer.result().score == pytest.approx(1.5)


def test_a_failed_check_answers_all_and_nothing_is_timed(driver):
    driver.leader()
    check, times = asked(driver), asked(driver, Fidelity.FULL)
    driver.measure(Measurement(Outcome.INCORRECT, "row 3"))
    assert {r.answer.result().measurement.message for r in (check, times)} == {"row 3"}
    assert driver.in_flight == {}


def test_once_the_campaign_ends_a_draft_is_refused_and_what_is_in_flight_still_answers(driver):
    driver.leader()
    first, times = asked(driver), asked(driver, Fidelity.FULL)
    driver.stopping = "budget reached: evaluations"
    late = asked(driver, found=genome(rows=1))
    with pytest.raises(ToolError, match="budget reached: evaluations"):
        late.answer.result(0)
    driver.measure(passed(1.5))
    assert first.answer.done()
    with pytest.raises(ToolError, match="budget reached"):
        times.answer.result(0)


def test_a_prediction_is_written_before_and_the_outcome_after(driver):
    driver.leader()
    asked(driver, Fidelity.FULL)
    (lesson,) = driver.store.lessons(driver.run.id)
    assert (lesson.tried, lesson.prediction, lesson.outcome) == ("a try", "faster", "")
    driver.measure(passed(1.5))
    (lesson,) = driver.store.lessons(driver.run.id)
    assert lesson.outcome == "score 1.5000, its parent 1.0000"


def test_a_lesson_about_a_structure_tells_what_tuning_made_of_it(driver):
    driver.leader()
    asked(driver, Fidelity.FULL)
    driver.measure(passed(0.5))
    better = Genome(EDITED, {**EDITED.defaults, "rows": 4})
    candidate = driver.store.add_candidate(driver.run.id, driver.search.candidate(CLASS.name, "tune", Proposal(better)))
    driver.search.announce(candidate)
    driver.begin(candidate, Fidelity.FULL)
    driver.measure(passed(2.5))
    assert driver.store.lessons(driver.run.id)[0].outcome == f"score 2.5000 once tuned (candidate {candidate.id})"


def test_what_was_given_up_is_a_lesson_too(driver):
    driver.leader()
    asked(driver, Fidelity.FULL)
    candidate, _ = driver.in_flight.popitem()[1]
    given_up = passed(0.1, fidelity=Fidelity.SCREEN, resources={"stopped_early": "w: 0.100"})
    record = driver.store.add_measurement(driver.run.id, candidate, given_up)
    driver.search.tell(record)
    driver.desk.told(record, None)
    assert "given up, far behind the leader (w: 0.100)" in driver.store.lessons(driver.run.id)[0].outcome


def test_a_slow_operator_gets_its_share_and_its_proposal_is_measured_with_its_conversation(tmp_path):
    said = Said("m", ({"role": "user", "content": "hi"},), 30, 0.0)
    proposal = Proposal(Genome(EDITED, EDITED.defaults), (1,), "a try", 0.0, 30, "faster", said)
    driver = Driver(tmp_path, Asked(proposal))
    driver.desk.serve()
    assert driver.proposers.busy == 0  # nothing has been measured yet
    driver.leader()
    driver.ledger.settle(driver.ledger.hold(10, 100, Price()), 30, 0.0)
    driver.thought()
    made = driver.measure(passed(1.5))
    assert made.operator == "asked"
    assert [c.tokens for c in exchange.conversations_about(driver.store, made.id)] == [30]
    assert driver.store.spent(driver.run.id).tokens == driver.ledger.tokens == 30


def test_without_a_model_it_says_so_once_rests_ever_longer_and_says_when_one_answers(tmp_path):
    gone = [ProposalError("no key", no_model=True) for _ in range(2)]
    driver = Driver(tmp_path, Asked(*gone, ProposalError("no usable edit")))
    driver.leader()
    driver.thought()
    assert driver.reporter.notes == ["no model answers (no key); the campaign goes on with the samplers"]
    driver.desk.serve()
    assert driver.proposers.busy == 0
    driver.search.plan_for_slow()  # the others go on, so its share grows
    driver.clock = 0.5
    driver.thought()
    driver.search.plan_for_slow()
    driver.search.plan_for_slow()
    driver.clock = 1.0
    driver.desk.serve()
    assert driver.proposers.busy == 0  # a whole second this time
    driver.clock = 1.5
    driver.thought()
    assert driver.reporter.notes[1:] == ["a model answers again"]


def test_a_fault_of_an_operator_is_said_and_ends_nothing(tmp_path):
    driver = Driver(tmp_path, Asked(KeyError("oops")))
    driver.leader()
    driver.thought()
    assert "asked failed: KeyError: 'oops'; the campaign goes on" in driver.reporter.notes


def test_what_a_request_may_cost_is_stored_while_it_is_under_way_and_corrected_after(driver):
    held = driver.ledger.hold(10, 100, Price())
    assert driver.store.spent(driver.run.id).tokens == 110
    driver.ledger.settle(held, 40, 0.0)
    driver.desk.serve()
    assert driver.store.spent(driver.run.id).tokens == 40
    driver.desk._keep(Said("m", (), 40, 0.0), None)
    assert driver.store.spent(driver.run.id).tokens == 40
    assert [c.model for c in driver.store.conversations(driver.run.id)] == ["m"]
