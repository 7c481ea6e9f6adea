"""Each operator keeps the contract, and does what it is for."""

import random
from collections import Counter

import pytest

from evokernel.candidate import Body, Candidate, Genome
from evokernel.measurement import Record
from evokernel.operators import ProposalError
from evokernel.operators.cross import Cross
from evokernel.operators.mutate import Mutate
from evokernel.operators.random import Random
from evokernel.operators.seed import Seed
from evokernel.operators.tune import BEST_KEPT, FAILED_SCORE, LAST_KEPT, STARTUP, TRIMMED_AT, Tune
from tests.contracts.operator_contract import CONTEXT, PARENTS, OperatorContract, plan
from tests.toys import CLASS, PROBLEM, RIGHT, body, candidate, genome, passed, record

SEEDS = [genome(), genome(block=128, rows=4), genome(rows=1)]


class TestSeed(OperatorContract):
    @pytest.fixture
    def operator(self):
        return Seed(SEEDS)

    def again(self, operator):
        return Seed(operator.genomes)

    def test_seeds_come_in_their_order_each_once(self, operator):
        known: set[str] = set()
        for expected in SEEDS:
            found = operator.propose(plan(known=known)).genome
            assert found.key == expected.key
            known.add(found.key)
        with pytest.raises(ProposalError):
            operator.propose(plan(known=known))

    def test_a_seed_that_breaks_a_constraint_is_passed_over(self):
        assert Seed([genome(block=16, rows=4), genome()]).propose(plan()).genome.key == genome().key


class TestMutate(OperatorContract):
    @pytest.fixture
    def operator(self):
        return Mutate()

    def test_a_mutant_differs_in_at_most_three_knobs(self, operator):
        for seed in range(30):
            child = operator.propose(plan(seed, PARENTS)).genome
            assert 1 <= sum(child.knobs[k] != v for k, v in PARENTS[0].candidate.genome.knobs.items()) <= 4

    def test_with_nothing_unseen_around_the_best_parent_the_next_one_is_mutated(self, operator):
        space = genome().body.space
        parent = PARENTS[0].candidate.genome
        around = {
            Genome(parent.body, knobs).key
            for knobs in space.enumerate(CONTEXT)
            if sum(knobs[name] != value for name, value in parent.knobs.items()) <= 2
        }
        proposals = [Mutate(most=1).propose(plan(seed, PARENTS, around)) for seed in range(5)]
        assert any(p.parents == (2,) for p in proposals)
        assert all(p.parents != (1,) for p in proposals)

    @pytest.mark.parametrize("arguments", [{"leap": 2.0}, {"most": 0}])
    def test_settings_without_meaning_are_refused(self, arguments):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            Mutate(**arguments)


class TestCross(OperatorContract):
    @pytest.fixture
    def operator(self):
        return Cross()

    def test_every_knob_comes_from_one_of_the_parents(self, operator):
        proposal = operator.propose(plan(1, PARENTS[:2]))
        pools = [r.candidate.genome.knobs for r in PARENTS[:2]]
        assert all(value in [p[k] for p in pools] for k, value in proposal.genome.knobs.items() if k != "only_a")
        assert proposal.parents == (1, 2)

    def test_parents_of_different_bodies_have_no_children(self, operator):
        other = Candidate(Genome(Body(RIGHT + "\n# other\n"), genome().knobs), CLASS.name, "agent", id=9)
        with pytest.raises(ProposalError):
            operator.propose(plan(1, [PARENTS[0], Record(other, passed(1.0))]))

    def test_one_parent_is_not_enough(self, operator):
        with pytest.raises(ProposalError):
            operator.propose(plan(1, PARENTS[:1]))


class TestRandom(OperatorContract):
    @pytest.fixture
    def operator(self):
        return Random()


class TestTuneTpe(OperatorContract):
    @pytest.fixture
    def operator(self):
        return Tune("tpe")

    def again(self, operator):
        return Tune(operator.sampler)

    def test_an_unknown_sampler_is_refused_with_the_choices(self):
        with pytest.raises(ValueError, match="choose one of tpe, random, cmaes"):
            Tune("annealing")

    def test_failures_are_told_as_the_worst_so_that_the_sampler_leaves_them(self):
        tune, rng, hits = Tune("tpe"), random.Random(1), 0
        known: set[str] = set()
        space = genome().body.space
        for number in range(60):
            knobs = space.sample(rng, CONTEXT)
            told = record(number, None if knobs["form"] == "b" else 1.0 + knobs["block"] / 128, **knobs)
            tune.learn(told, told.score(PROBLEM))
        for seed in range(20):
            found = tune.propose(plan(seed, (), known)).genome
            hits += found.knobs["form"] == "b"
            known.add(found.key)
        assert hits <= 10

    def test_a_study_keeps_a_window_of_the_best_and_the_latest(self):
        tune = Tune("random")
        for number in range(TRIMMED_AT + 1):
            tune.learn(record(number, 0.5 + (number == 3), block=32, rows=1), 0.5 + (number == 3))
        (study,) = tune.studies.values()
        assert len(study.told) == BEST_KEPT + LAST_KEPT
        assert max(value for _, value in study.told) == 1.5

    def test_bodies_and_shape_classes_have_studies_of_their_own(self):
        tune = Tune("tpe")
        tune.learn(record(1, 1.0), 1.0)
        other = Candidate(Genome(Body(RIGHT + "\n# another body\n"), genome().knobs), CLASS.name, "agent", id=2)
        tune.learn(Record(other, passed(1.0)), 1.0)
        tune.learn(record(3, 1.0, shape_class="another"), 1.0)
        assert len(tune.studies) == 3

    def test_it_tunes_the_body_of_the_best_parent(self):
        other = Candidate(Genome(Body(RIGHT + "\n# better\n"), genome().knobs), CLASS.name, "agent", id=9)
        proposal = Tune("tpe").propose(plan(0, [*PARENTS, Record(other, passed(9.0))]))
        assert proposal.genome.body == other.genome.body
        assert proposal.parents == (9,)


class TestTuneAfterRecords:
    """What every sampler does once it has something to go by."""

    @pytest.fixture(params=["tpe", "random", "cmaes"])
    def sampler(self, request):
        return request.param

    @staticmethod
    def told(tune, count, seed=1):
        rng, space = random.Random(seed), genome().body.space
        for number in range(1, count + 1):
            knobs = space.sample(rng, CONTEXT)
            speedup = None if knobs["form"] == "b" else knobs["block"] / 64 + knobs["rows"] / 8
            found = record(number, speedup, **knobs)
            tune.expect(found.candidate)
            tune.learn(found, found.score(PROBLEM))
        return tune

    def test_a_resumed_study_proposes_what_the_uninterrupted_one_would(self, sampler):
        lived = Tune(sampler)
        records = []
        for number in range(1, 3 * STARTUP):
            proposed = Candidate(lived.propose(plan(number)).genome, CLASS.name, "tune", id=number)
            lived.expect(proposed)
            records.append(Record(proposed, passed(1.0 + number % 7)))
            if number > 2:  # two are always in flight, and they finish in the order of their start
                lived.learn(records[number - 3], records[number - 3].score(PROBLEM))
        resumed = Tune(sampler)
        for found in records[:-2]:
            resumed.learn(found, found.score(PROBLEM))
        for found in records[-2:]:
            resumed.expect(found.candidate)
        for seed in range(5):
            assert resumed.propose(plan(seed)).genome.key == lived.propose(plan(seed)).genome.key

    def test_proposals_stay_valid_and_unseen_until_the_space_is_used_up(self, sampler):
        tune, known = self.told(Tune(sampler), 2 * STARTUP), set()
        everything = list(genome().body.space.enumerate(CONTEXT))
        for seed in range(len(everything)):
            found = tune.propose(plan(seed, PARENTS, known)).genome
            assert found.body.space.valid(found.knobs, CONTEXT)
            assert found.key not in known
            known.add(found.key)
        with pytest.raises(ProposalError, match="every genome"):
            tune.propose(plan(0, PARENTS, known))

    def test_asking_leaves_nothing_behind_in_the_study(self, sampler):
        tune = self.told(Tune(sampler), 2 * STARTUP)
        for seed in range(10):
            tune.propose(plan(seed))
        (study,) = tune.studies.values()
        states = [trial.state.name for trial in study.study.get_trials(deepcopy=False)]
        assert states.count("COMPLETE") == (0 if sampler == "random" else 2 * STARTUP)
        assert set(states) <= {"COMPLETE", "FAIL"}

    def test_failures_are_told_as_zero_to_tpe_and_as_the_worst_that_passed_to_cmaes(self, sampler):
        (study,) = self.told(Tune(sampler), 2 * STARTUP).studies.values()
        failures = {value for knobs, value in study.told if knobs["form"] == "b"}
        passed_ones = {value for knobs, value in study.told if knobs["form"] == "a"}
        if sampler == "cmaes":
            assert failures <= passed_ones | {FAILED_SCORE}
        else:
            assert failures == {FAILED_SCORE}

    def test_a_learning_sampler_finds_better_genomes_than_chance(self, sampler):
        tune = self.told(Tune(sampler), 40)
        blocks = [tune.propose(plan(seed)).genome.knobs["block"] for seed in range(30)]
        large = sum(block >= 64 for block in blocks)
        assert large > 0 if sampler == "random" else large >= 20

    def test_numbers_reach_the_sampler_as_ordinals_and_names_as_categories(self, sampler):
        (study,) = self.told(Tune(sampler), 1).studies.values()
        kinds = {name: type(d).__name__ for name, d in study.distributions.items()}
        assert kinds == {
            "block": "IntDistribution",
            "rows": "IntDistribution",
            "form": "CategoricalDistribution",
            "only_a": "IntDistribution",
        }

    def test_what_is_in_flight_is_proposed_less_often(self):
        tune = TestTuneAfterRecords.told(Tune("tpe"), 40)
        (study,) = tune.studies.values()

        def asked():
            return Counter(tuple(study.ask(seed, lambda knobs: True).items()) for seed in range(40))

        ((favourite, before),) = asked().most_common(1)
        for number in range(100, 110):
            tune.expect(candidate(number, **dict(favourite)))
        assert asked()[favourite] < before


class TestTuneRandom(OperatorContract):
    @pytest.fixture
    def operator(self):
        return Tune("random")

    def again(self, operator):
        return Tune(operator.sampler)


class TestTuneCmaes(OperatorContract):
    @pytest.fixture
    def operator(self):
        return Tune("cmaes")

    def again(self, operator):
        return Tune(operator.sampler)


def edited(**knobs):
    """A body with one knob more and one value less than its parent."""
    source = RIGHT.replace('"rows": [1, 2, 4]', '"rows": [1, 2], "lanes": [8, 16]').replace(
        '"rows": 2', '"rows": 2, "lanes": 8'
    )
    made = body(source)
    return Genome(made, {**made.defaults, **knobs})


def test_the_study_of_an_edited_body_starts_from_its_parents_best_knobs():
    tune = Tune("tpe")
    for number, (knobs, speedup) in enumerate([({"rows": 4}, 3.0), ({"block": 128}, 2.0), ({"block": 32}, 1.0)], 1):
        told = record(number, speedup, **knobs)
        tune.expect(told.candidate)
        tune.learn(told, told.score(PROBLEM))
    child = Candidate(edited(lanes=16), CLASS.name, "agent", (1,), id=4)
    tune.expect(child)
    study = tune.studies[(child.genome.body.digest, CLASS.name)]
    # rows=4 is no value of the child's; its new knob is as the edit set it.
    assert study.told == [
        ({"block": 128, "rows": 2, "lanes": 16, "form": "a", "only_a": 1}, 2.0),
        ({"block": 32, "rows": 2, "lanes": 16, "form": "a", "only_a": 1}, 1.0),
    ]
    assert list(study.pending) == [4]


def test_a_candidate_of_the_same_body_inherits_nothing():
    tune = Tune("tpe")
    told = record(1, 3.0)
    tune.expect(told.candidate)
    tune.learn(told, 3.0)
    tune.expect(Candidate(genome(rows=1), CLASS.name, "mutate", (1,), id=2))
    assert len(tune.studies[(genome().body.digest, CLASS.name)].told) == 1
