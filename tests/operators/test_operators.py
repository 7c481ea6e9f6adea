"""Each operator keeps the contract, and does what it is for."""

import random

import pytest

from evokernel.operators import ProposalError
from evokernel.operators.cross import Cross
from evokernel.operators.mutate import Mutate
from evokernel.operators.random import Random
from evokernel.operators.seed import Seed
from evokernel.operators.tune import BEST_KEPT, LAST_KEPT, REBUILD_AT, Tune
from tests.contracts.operator_contract import CONTEXT, PARENTS, OperatorContract, plan
from tests.toys import PROBLEM, genome, record

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
        for number in range(REBUILD_AT + 1):
            tune.learn(record(number, 0.5 + (number == 3), block=32, rows=1), 0.5 + (number == 3))
        (study,) = tune.studies.values()
        assert len(study.told) == BEST_KEPT + LAST_KEPT
        assert max(value for _, value in study.told) == 1.5


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
