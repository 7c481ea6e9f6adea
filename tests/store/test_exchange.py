"""Submissions are answered, lessons settled, and what models cost is known after any end."""

from dataclasses import replace

import pytest

from evokernel import devices
from evokernel.measurement import Fidelity, Measurement, Outcome
from evokernel.store import Conversation, Lesson, Store, exchange
from tests.toys import PROBLEM, candidate, passed


@pytest.fixture
def store(tmp_path):
    return Store.open(f"sqlite:///{tmp_path}/evokernel.db")


@pytest.fixture
def run(store):
    return store.create_run("first", {}, PROBLEM, devices.cpu(), 0)


def test_a_submission_says_what_is_asked_of_it_and_is_answered_once(store, run):
    one = store.add_submission(run.id, "source", None, "c", "note", "mcp", Fidelity.SCREEN, "faster")
    two = store.add_submission(run.id, "source", None, None, "")
    (first, second) = store.claim_submissions(run.id)
    assert (first.operator, first.fidelity, first.prediction) == ("mcp", Fidelity.SCREEN, "faster")
    assert (second.operator, second.fidelity, second.prediction) == ("submit", Fidelity.FULL, "")
    assert exchange.answered(store, one) is None
    made = store.add_candidate(run.id, candidate())
    exchange.answer(store, one, made.id)
    exchange.answer(store, two, refusal="no KNOBS")
    assert exchange.answered(store, one) == exchange.Answer(made.id, "")
    assert exchange.answered(store, two) == exchange.Answer(None, "no KNOBS")
    assert exchange.answered(store, 99) is None


def test_what_a_killed_driver_claimed_and_did_not_answer_is_claimed_again(store, run):
    waiting, done = (store.add_submission(run.id, s, None, None, "") for s in ("a", "b"))
    store.claim_submissions(run.id)
    exchange.answer(store, done, refusal="no")
    exchange.reopen(store, run.id)
    assert [s.id for s in store.claim_submissions(run.id)] == [waiting]


def test_a_lesson_is_settled_by_its_candidate(store, run):
    one = store.add_candidate(run.id, candidate())
    store.add_lesson(run.id, Lesson("tiles", "faster", "", one.id))
    store.add_lesson(run.id, Lesson("other", "", ""))
    exchange.settle(store, one.id, "slower")
    assert [x.outcome for x in store.lessons(run.id)] == ["slower", ""]


def test_what_models_cost_is_counted_once(store, run):
    talked = store.add_candidate(run.id, replace(candidate(), cost_usd=0.5, tokens=100))
    store.add_candidate(run.id, replace(candidate(rows=1), cost_usd=0.25, tokens=10))
    store.add_conversation(run.id, Conversation("m", [], talked.id, 100, 0.5))
    store.add_conversation(run.id, Conversation("m", [], None, 7, 0.125))  # led to nothing, and cost all the same
    spent = store.spent(run.id)
    assert (spent.tokens, spent.usd) == (117, 0.875)
    assert [c.tokens for c in exchange.conversations_about(store, talked.id)] == [100]


def test_what_is_under_way_counts_until_it_is_done(store, run):
    row = exchange.keep_unfinished(store, run.id, None, 40, 0.5)
    assert exchange.keep_unfinished(store, run.id, row, 50, 0.75) == row
    assert (store.spent(run.id).tokens, store.spent(run.id).usd) == (50, 0.75)
    assert exchange.keep_unfinished(store, run.id, row, 0, 0.0) is None
    assert store.spent(run.id).tokens == 0


def test_leaders_and_failures_are_found_by_class_and_by_parent(store, run):
    first, second = (store.add_candidate(run.id, candidate(rows=rows)) for rows in (1, 2))
    child = store.add_candidate(run.id, replace(candidate(rows=4), parents=(first.id,), note="a try"))
    store.add_measurement(run.id, first, passed(1.5))
    store.add_measurement(run.id, second, passed(2.0))
    store.add_measurement(run.id, child, Measurement(Outcome.INCORRECT, "row 3"))
    found = exchange.leading(store, "first", first.shape_class, 5)
    assert [(c, s) for _, c, s, _ in found] == [(second.id, pytest.approx(2.0)), (first.id, pytest.approx(1.5))]
    assert exchange.leading(store, "first", "elsewhere", 5) == []
    assert exchange.failed(store, run.id, first.id, 5) == [(child.id, "INCORRECT", "row 3", "a try")]
    assert exchange.failed(store, run.id, second.id, 5) == []
    assert len(exchange.failed(store, run.id, None, 5)) == 1
