"""Archives keep what may become a parent."""

import itertools
import random

import pytest

from evokernel.archives import Admission
from evokernel.archives.elites import Elites
from evokernel.archives.portfolio import Portfolio, best_subset
from evokernel.measurement import Measurement, Outcome, Record
from tests.contracts.archive_contract import ArchiveContract
from tests.toys import TWO, candidate, genome, record, timing


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
        return Elites(axes=["block"], islands=3, migrate_every=100)

    def test_islands_develop_apart_until_their_best_migrates(self):
        archive = Elites(axes=[], islands=2, migrate_every=3)
        archive.add(record(1, 1.0), 1.0)
        archive.add(record(2, 0.5), 0.5)
        assert len(archive.entries()) == 2
        archive.add(record(3, 2.0), 2.0)
        assert {e.score for e in archive.entries()} == {2.0}

    def test_a_copy_that_migrated_takes_the_new_score_too(self):
        archive = Elites(axes=[], islands=2, migrate_every=1)
        archive.add(record(1, 2.0), 2.0)
        archive.add(record(1, 1.0), 1.0)
        assert [e.score for cells in archive.islands for e in cells.values()] == [1.0, 1.0]

    def test_a_child_lives_on_its_parents_island(self):
        archive = Elites(axes=["block"], islands=3, migrate_every=100)
        for number in range(1, 4):
            archive.add(record(number, 1.0), 1.0)
        archive.add(record(4, 1.0, parents=(2,), block=128), 1.0)
        assert archive.home[4] == archive.home[2]

    @pytest.mark.parametrize("arguments", [{"islands": 0}, {"migrate_every": 0}])
    def test_settings_without_meaning_are_refused(self, arguments):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            Elites(**arguments)


class TestPortfolio(ArchiveContract):
    @pytest.fixture
    def archive(self):
        return Portfolio(size=4)

    def test_one_candidate_per_workload_may_be_kept(self, archive):
        archive.add(two(1, 1.0, 1.0), 1.0)
        assert archive.add(two(2, 0.4, 1.6), 0.8) is Admission.NEW
        assert archive.add(two(3, 0.9, 0.9), 0.9) is Admission.REFUSED
        assert {e.record.candidate.id for e in archive.entries()} == {1, 2}

    def test_a_full_portfolio_takes_what_raises_its_sum_and_lets_another_go(self):
        archive = Portfolio(size=1)
        archive.add(two(1, 1.0, 1.0), 1.0)
        assert archive.add(two(2, 0.5, 1.4), 0.8) is Admission.REFUSED
        assert archive.add(two(3, 0.9, 1.5), 1.2) is Admission.IMPROVED
        assert [e.record.candidate.id for e in archive.entries()] == [3]

    def test_what_was_refused_may_join_when_a_member_is_disproved(self):
        archive = Portfolio(size=1)
        archive.add(two(1, 1.0, 1.0), 1.0)
        archive.add(two(2, 0.5, 1.4), 0.8)
        archive.add(record(1, None), None)
        assert [e.record.candidate.id for e in archive.entries()] == [2]

    def test_adding_one_by_one_chooses_as_well_as_knowing_all_at_once(self):
        rng, archive, speedups = random.Random(7), Portfolio(size=2), {}
        for number in range(1, 60):
            speedups[number] = {w.name: rng.random() for w in TWO.workloads}
            archive.add(two(number, *speedups[number].values()), 1.0)
        assert archive.chosen == best_subset(speedups, 2)

    def test_a_size_without_meaning_is_refused(self):
        with pytest.raises(ValueError, match="size is 0"):
            Portfolio(size=0)


def two(number, first, second):
    timings = tuple(timing(s, w.name) for s, w in zip((first, second), TWO.workloads, strict=True))
    return Record(candidate(number), Measurement(Outcome.PASSED, timings=timings), number)


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


def test_a_heavy_workload_counts_for_more():
    speedups = {1: {"a": 2.0, "b": 1.0}, 2: {"a": 1.0, "b": 1.9}}
    assert best_subset(speedups, 1) == [1]
    assert best_subset(speedups, 1, {"b": 10.0}) == [2]
