"""The search asks fairly, believes what was measured twice, forgets what was disproved, and resumes by being told."""

import random
from dataclasses import replace

import pytest

from evokernel.archives.elites import Elites
from evokernel.candidate import Genome
from evokernel.evaluators import Job
from evokernel.evaluators.null import Null
from evokernel.measurement import Fidelity, Measurement, Outcome, Record
from evokernel.operators import Operator, Proposal, ProposalError
from evokernel.operators.cross import Cross
from evokernel.operators.mutate import Mutate
from evokernel.operators.random import Random
from evokernel.operators.seed import Seed
from evokernel.operators.tune import Tune
from evokernel.problem import Problem, Workload
from evokernel.search import BELIEF, FIRST, SETTLED, TRIAL, Search, SpaceExhausted
from tests.toys import CLASS, PROBLEM, RIGHT, TWO, body, genome, passed

DEVICE = {"arch": 0, "shared_bytes": 1 << 40, "num_sms": 2}


def search(problem=PROBLEM, operators=None, seed=0, archive=None):
    operators = operators or [(Seed([genome()]), FIRST), (Tune("tpe"), 1.0), (Mutate(), 1.0), (Cross(), 1.0)]
    return Search(problem, [genome()], operators, archive or (lambda: Elites(["block"])), DEVICE, seed)


class Bench:
    """Numbers, announces and measures candidates as the loop does."""

    def __init__(self, made):
        self.search, self.null, self.records, self.started = made, Null(), [], []

    def start(self):
        candidate = replace(self.search.propose(), id=len(self.started) + 1)
        self.started.append(candidate)
        self.search.announce(candidate)
        return candidate

    def finish(self, candidate, measurement=None):
        problem = self.search.states[candidate.shape_class].problem
        measurement = measurement or self.null.measure(Job(candidate, problem))
        found = Record(candidate, measurement, len(self.records) + 1)
        self.records.append(found)
        self.search.tell(found)
        return found

    def step(self, measurement=None):
        return self.finish(self.start(), measurement)


def test_the_seeds_come_first_in_every_class():
    bench = Bench(search(TWO, [(Seed([genome(), genome(block=128)]), FIRST), (Random(), 1.0)]))
    made = [bench.step().candidate for _ in range(6)]
    assert [c.operator for c in made] == ["seed"] * 4 + ["random"] * 2


def test_shape_classes_take_turns():
    bench = Bench(search(TWO))
    names = [bench.step().candidate.shape_class for _ in range(10)]
    assert names.count(names[0]) == 5
    assert {bench.search.evaluations(c) for c in TWO.shape_classes()} == {5}


def test_a_class_whose_workloads_weigh_more_is_asked_more_often():
    light, heavy = Workload(1, 2, 2, 96, 96, 16, True), Workload(1, 2, 2, 64, 64, 16, False, weight=3.0)
    bench = Bench(search(Problem("forward", "fp32", (light, heavy))))
    names = [bench.step().candidate.shape_class for _ in range(12)]
    assert names.count(heavy.shape_class("fp32").name) == 9


def test_operators_are_drawn_by_weight():
    bench = Bench(search(operators=[(Random(), 1.0), (Mutate(), 0.0)]))
    assert {bench.step().candidate.operator for _ in range(10)} == {"random"}


def test_no_genome_is_proposed_twice_though_many_are_in_flight():
    bench = Bench(search())
    flight = [bench.start() for _ in range(12)]
    assert len({c.genome.key for c in flight}) == 12


def test_plans_made_before_the_first_is_answered_differ():
    made = search(operators=[(Random(), 1.0)])
    asks = [made.ask(CLASS) for _ in range(4)]
    assert len({ask.answer()[1].genome.key for ask in asks}) > 1


def test_a_finite_space_is_proposed_to_its_last_genome_and_then_said_to_be_exhausted():
    space = body().space
    everything = sum(1 for _ in space.enumerate(PROBLEM.context(CLASS, DEVICE)))
    for operators in (
        [(Random(), 1.0)],
        [(Tune("random"), 1.0)],
        [(Mutate(), 1.0)],
        [(Cross(), 9.0), (Mutate(), 0.01)],
    ):
        bench = Bench(search(operators=operators))
        for _ in range(everything):
            bench.step()
        with pytest.raises(SpaceExhausted):
            bench.search.propose()


def test_an_operator_that_never_finds_anything_leaves_its_turn_to_the_others():
    class Silent(Operator):
        name = "silent"

        def propose(self, plan):
            raise ProposalError("nothing")

    bench = Bench(search(operators=[(Silent(), 100.0), (Random(), 0.01)]))
    assert [bench.step().candidate.operator for _ in range(5)] == ["random"] * 5


def test_an_operator_that_repeats_itself_is_not_taken_at_its_word():
    class Parrot(Operator):
        name = "parrot"

        def propose(self, plan):
            return Proposal(genome())

    bench = Bench(search(operators=[(Parrot(), 100.0), (Random(), 0.01)]))
    assert [bench.step().candidate.operator for _ in range(3)] == ["parrot", "random", "random"]


def test_a_child_is_one_generation_younger_than_its_youngest_parent():
    bench = Bench(search())
    made = {}
    for _ in range(25):
        candidate = bench.step().candidate
        made[candidate.id] = candidate
        assert candidate.generation == 1 + max((made[p].generation for p in candidate.parents), default=-1)
    assert max(c.generation for c in made.values()) > 1


def test_the_same_seed_gives_the_same_lineage_and_another_seed_another():
    def lineage(seed):
        bench = Bench(search(seed=seed))
        return [(c.genome.key, c.parents, c.operator) for c in (bench.step().candidate for _ in range(24))]

    assert lineage(0) == lineage(0)
    assert lineage(0) != lineage(1)


@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "random"])
def test_a_resumed_search_goes_on_as_the_uninterrupted_one_would_have(sampler):
    def operators():
        return [(Seed([genome()]), FIRST), (Tune(sampler), 2.0), (Mutate(), 1.0), (Cross(), 1.0)]

    whole = Bench(search(TWO, operators()))
    flight, order = [], random.Random(3)
    for _ in range(40):
        flight.append(whole.start())
        if len(flight) == 3:  # any of those in flight may finish first
            whole.finish(flight.pop(order.randrange(3)))
    resumed = Bench(search(TWO, operators()))
    for record in whole.records:
        resumed.search.tell(record)
    for candidate in sorted(flight, key=lambda c: c.id):
        resumed.search.announce(candidate)
    resumed.started = list(whole.started)
    for _ in range(6):
        assert resumed.step().candidate == whole.step().candidate


def test_telling_many_records_leaves_the_best_of_them_in_the_lead():
    bench = Bench(search())
    for _ in range(24):
        bench.step()
    scores = {r.candidate.id: r.score(PROBLEM) for r in bench.records if r.measurement.passed}
    assert bench.search.best(CLASS).score == max(scores.values())
    assert [e.score for e in bench.search.leaders(CLASS, 3)] == sorted(scores.values(), reverse=True)[:3]


def test_a_leader_that_falls_when_measured_again_loses_its_place():
    bench = Bench(search())
    lucky, steady = bench.step(passed(2.0)), bench.step(passed(1.5))
    assert bench.search.best(CLASS).record.candidate.id == lucky.candidate.id
    bench.finish(lucky.candidate, passed(0.8))  # median of 2.0 and 0.8
    assert bench.search.best(CLASS).record.candidate.id == steady.candidate.id


def test_a_leader_that_is_disproved_is_forgotten_by_the_search_and_its_archive():
    bench = Bench(search())
    wrong, right = bench.step(passed(2.0)), bench.step(passed(1.5))
    bench.finish(wrong.candidate, Measurement(Outcome.INCORRECT, "a longer sequence is wrong", Fidelity.VERIFY))
    assert bench.search.best(CLASS).record.candidate.id == right.candidate.id
    kept = bench.search.states[CLASS.name].archive.entries()
    assert wrong.candidate.id not in {e.record.candidate.id for e in kept}
    assert [e.record.candidate.id for e in bench.search.leaders(CLASS, 5)] == [right.candidate.id]


def test_a_new_leader_is_measured_again_once_the_class_has_settled():
    bench = Bench(search())
    for number in range(SETTLED):
        assert bench.search.remeasure() is None
        bench.step(passed(1.0 + number / 10))
    again = bench.search.remeasure()
    assert again.id == SETTLED
    assert bench.search.remeasure() is None  # it is on its way
    for _ in range(BELIEF - 1):
        bench.finish(again, passed(1.5))
    assert bench.search.remeasure() is None


class Listening(Operator):
    name = "listening"

    def __init__(self):
        self.heard, self.expected = [], []

    def propose(self, plan):
        for knobs in genome().body.space.enumerate(plan.context):
            if not plan.known(found := Genome(genome().body, knobs)):
                return Proposal(found)
        raise ProposalError("none left")

    def expect(self, candidate):
        self.expected.append(candidate.id)

    def learn(self, record, score):
        self.heard.append((record.candidate.id, score))


def test_operators_hear_of_each_candidate_once_when_it_starts_and_once_when_it_is_measured():
    listener = Listening()
    bench = Bench(search(operators=[(listener, 1.0)]))
    first = bench.step(passed(2.0))
    bench.step(Measurement(Outcome.TIMEOUT, "too long"))
    bench.finish(first.candidate, passed(1.0))
    assert listener.expected == [1, 2]
    assert listener.heard == [(1, pytest.approx(2.0)), (2, None)]


def test_a_candidate_that_was_given_up_teaches_its_partial_score_and_never_leads():
    listener = Listening()
    bench = Bench(search(operators=[(listener, 1.0)]))
    bench.step(passed(2.0, fidelity=Fidelity.SCREEN, resources={"stopped_early": "w: 2.000"}))
    assert listener.heard == [(1, pytest.approx(2.0))]
    assert bench.search.best(CLASS) is None


def test_a_check_teaches_nothing_and_the_times_that_follow_do():
    listener = Listening()
    bench = Bench(search(operators=[(listener, 1.0)]))
    checked = bench.step(passed(9.0, fidelity=Fidelity.SCREEN))
    assert listener.heard == []
    bench.finish(checked.candidate, passed(2.0))
    assert listener.heard == [(1, pytest.approx(2.0))]


def test_an_edited_body_need_not_come_near_the_leader_until_it_has_been_tuned():
    bench = Bench(search(operators=[(Seed([genome()]), FIRST), (Tune("random"), 1.0)]))
    leader = bench.step(passed(2.0)).candidate
    edited = edited_by_hand(bench, leader)
    assert bench.search.bar(edited) == {}
    bench.finish(edited, passed(0.1))
    other = edited_by_hand(bench, leader, lanes=8)
    assert bench.search.bar(other) == {}
    while bench.search.states[CLASS.name].trials[EDITED.digest].open:
        bench.step(passed(0.1))
    assert bench.search.bar(other) != {}


def test_a_new_candidate_must_come_near_the_leader_and_the_leader_near_nobody():
    bench = Bench(search())
    leader = bench.step(passed(2.0)).candidate
    other = bench.step(passed(1.0)).candidate
    assert bench.search.bar(leader) == {}
    bar = bench.search.bar(replace(other, id=77))
    assert list(bar.values()) == [pytest.approx(2.0)]


def test_nothing_leads_before_anything_has_passed():
    bench = Bench(search())
    bench.step(Measurement(Outcome.COMPILE_ERROR, "no"))
    assert bench.search.best(CLASS) is None
    assert bench.search.leaders(CLASS, 3) == []


# ---- edited bodies ----

EDITED = body(
    RIGHT.replace('"rows": [1, 2, 4]', '"rows": [1, 2, 4], "lanes": [1, 2, 4, 8, 16, 32]').replace(
        '"rows": 2', '"rows": 2, "lanes": 1'
    )
)


def edited_by_hand(bench, parent, **knobs):
    """Announce a candidate of an edited body, as the desk does."""
    made = bench.search.candidate(
        CLASS.name, "agent", Proposal(Genome(EDITED, {**EDITED.defaults, **knobs}), (parent.id,))
    )
    candidate = replace(made, id=len(bench.started) + 1)
    bench.started.append(candidate)
    bench.search.announce(candidate)
    return candidate


def test_an_edited_body_that_starts_slowly_is_tuned_before_it_is_left_to_its_rank():
    bench = Bench(
        search(
            operators=[(Seed([genome()]), FIRST), (Tune("random"), 1.0), (Mutate(), 1.0)], archive=lambda: Elites([])
        )
    )
    parent = bench.step(passed(2.0)).candidate
    bench.finish(edited_by_hand(bench, parent), passed(0.1))
    following = [bench.step(passed(0.1)).candidate for _ in range(2 * TRIAL)]
    ours = [c for c in following if c.genome.body.digest == EDITED.digest]
    assert len(ours) >= TRIAL
    assert sum(c.operator == "tune" for c in ours) > TRIAL / 2
    assert any(c.genome.body.digest != EDITED.digest for c in following)
    later = [bench.step(passed(0.1)).candidate for _ in range(TRIAL)]
    assert sum(c.genome.body.digest == EDITED.digest for c in later) < TRIAL / 2 + 2


def test_an_edited_body_that_fails_gets_no_trial():
    bench = Bench(search(operators=[(Seed([genome()]), FIRST), (Tune("random"), 1.0)]))
    parent = bench.step(passed(2.0)).candidate
    bench.finish(edited_by_hand(bench, parent), Measurement(Outcome.INCORRECT, "wrong"))
    following = [bench.step(passed(0.1)).candidate for _ in range(6)]
    assert all(c.genome.body.digest != EDITED.digest for c in following)


def test_templates_get_no_trial():
    bench = Bench(search())
    for _ in range(10):
        bench.step()
    assert all(not state.trials for state in bench.search.states.values())


def test_a_slow_operator_is_planned_for_where_something_passed_and_asked_by_nobody_else():
    class Slow(Operator):
        name = "slow"
        slow = True

        def propose(self, plan):
            raise AssertionError("asked in the driver's thread")

    bench = Bench(search(TWO, [(Seed([genome()]), FIRST), (Slow(), 99.0), (Random(), 0.01)]))
    assert bench.search.plan_for_slow() is None
    first = bench.step()
    assert first.measurement.passed
    plan = bench.search.plan_for_slow()
    assert plan.shape_class.name == first.candidate.shape_class
    assert [p.candidate.id for p in plan.parents] == [first.candidate.id]
    assert {bench.step().candidate.operator for _ in range(6)} <= {"seed", "random"}
