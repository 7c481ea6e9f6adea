"""Archives keep what may become a parent."""

import itertools
import random

import pytest

from evokernel.archives import Admission
from evokernel.archives.elites import Elites
from evokernel.archives.portfolio import Portfolio, best_subset
from tests.contracts.archive_contract import ArchiveContract
from tests.toys import genome, record


class TestElites(ArchiveContract):
    @pytest.fixture
    def archive(self):
        return Elites(axes=["block"])

    def test_each_cell_keeps_its_own_best(self, archive):
        archive.add(record(1, 2.0, block=64), 2.0)
        assert archive.add(record(2, 0.5, block=128), 0.5) is Admission.NEW
        assert archive.coverage(genome().body.space) == 0.5

    def test_an_elite_that_falls_when_measured_again_makes_room(self, archive):
        archive.add(record(1, 1.5), 1.5)
        archive.add(record(1, 1.0), 1.0)
        assert archive.add(record(2, 1.2), 1.2) is Admission.IMPROVED


class TestElitesWithIslands(ArchiveContract):
    @pytest.fixture
    def archive(self):
        return Elites(axes=["block"], islands=1, migrate_every=2)

    def test_islands_develop_apart_until_their_best_migrates(self):
        archive = Elites(axes=[], islands=2, migrate_every=3)
        archive.add(record(1, 1.0), 1.0)
        archive.add(record(2, 0.5), 0.5)
        assert len(archive.entries()) == 2
        archive.add(record(3, 2.0), 2.0)
        assert {e.score for e in archive.entries()} == {2.0}

    @pytest.mark.parametrize("arguments", [{"islands": 0}, {"migrate_every": 0}])
    def test_settings_without_meaning_are_refused(self, arguments):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            Elites(**arguments)


class TestPortfolio(ArchiveContract):
    @pytest.fixture
    def archive(self):
        return Portfolio(size=4)

    def test_a_slower_candidate_does_not_replace_the_elite(self, archive):
        super().test_a_slower_candidate_does_not_replace_the_elite(archive)

    def test_a_sample_holds_distinct_candidates_and_no_more_than_there_are(self, archive):
        super().test_a_sample_holds_distinct_candidates_and_no_more_than_there_are(archive)


def test_the_greedy_subset_is_within_its_bound_of_the_best_one():
    rng = random.Random(3)
    for _ in range(20):
        speedups = {i: {w: rng.random() for w in "abcde"} for i in range(8)}

        def reached(chosen, speedups=speedups):
            return sum(max(speedups[i][w] for i in chosen) for w in "abcde")

        best = max(reached(c) for c in itertools.combinations(speedups, 3))
        assert reached(best_subset(speedups, 3)) >= (1 - 1 / 2.718281828) * best


def test_a_specialist_joins_the_portfolio_though_its_mean_is_lower():
    speedups = {1: {"a": 1.0, "b": 1.0}, 2: {"a": 0.9, "b": 0.9}, 3: {"a": 0.1, "b": 1.4}}
    assert best_subset(speedups, 2) == [1, 3]
