"""What every archive keeps to. Inherit ArchiveContract and give an `archive`."""

import random

from evokernel.archives import Admission
from tests.toys import record


class ArchiveContract:
    def test_the_first_candidate_is_admitted(self, archive):
        assert archive.add(record(1, 1.0), 1.0) is Admission.NEW
        assert [e.record.candidate.id for e in archive.entries()] == [1]

    def test_entries_come_best_first(self, archive):
        for number, (block, speedup) in enumerate([(16, 0.9), (32, 1.4), (64, 1.1), (128, 1.2)], 1):
            archive.add(record(number, speedup, block=block, rows=1), speedup)
        scores = [e.score for e in archive.entries()]
        assert scores == sorted(scores, reverse=True)
        assert scores[0] == 1.4

    def test_a_slower_candidate_does_not_replace_the_elite(self, archive):
        archive.add(record(1, 1.3), 1.3)
        assert archive.add(record(2, 1.2, parents=(1,)), 1.2) is Admission.REFUSED
        assert archive.entries()[0].record.candidate.id == 1

    def test_a_known_candidate_takes_its_new_score(self, archive):
        archive.add(record(1, 1.3), 1.3)
        archive.add(record(1, 1.1), 1.1)
        assert [e.score for e in archive.entries()] == [1.1]

    def test_a_disproved_candidate_is_dropped_and_makes_room(self, archive):
        archive.add(record(1, 9.0), 9.0)
        assert archive.add(record(1, None), None) is Admission.REFUSED
        assert archive.entries() == []
        assert archive.add(record(2, 1.2, parents=(1,)), 1.2) is not Admission.REFUSED

    def test_what_was_never_kept_may_be_disproved_too(self, archive):
        assert archive.add(record(5, None), None) is Admission.REFUSED

    def test_a_sample_prefers_the_better(self, archive):
        for number, block in enumerate((16, 32, 64, 128), 1):
            archive.add(
                record(number, 1.0 + number, parents=(1,) if number > 1 else (), block=block, rows=1), 1.0 + number
            )
        best = archive.entries()[0].record.candidate.id
        first = [archive.sample(random.Random(seed), 1)[0].record.candidate.id for seed in range(100)]
        assert first.count(best) >= 100 // len(archive.entries())

    def test_a_sample_holds_distinct_candidates_and_no_more_than_there_are(self, archive):
        assert archive.sample(random.Random(0), 3) == []
        for number, block in enumerate((16, 32, 64), 1):
            parents = (1,) if number > 1 else ()
            archive.add(record(number, 1.0 + number / 10, parents=parents, block=block, rows=1), 1.0 + number / 10)
        sampled = [e.record.candidate.id for e in archive.sample(random.Random(0), 10)]
        assert len(sampled) == len(set(sampled)) == len(archive.entries())

    def test_the_same_randomness_gives_the_same_sample(self, archive):
        for number, block in enumerate((16, 32, 64, 128), 1):
            archive.add(record(number, 1.0 + number / 10, block=block, rows=1), 1.0 + number / 10)
        assert archive.sample(random.Random(5), 2) == archive.sample(random.Random(5), 2)
