"""Replay answers as recorded, with a clock of its own."""

import pytest

from evokernel.archives.elites import Elites
from evokernel.evaluators import Job
from evokernel.evaluators.null import Null
from evokernel.evaluators.replay import Replay
from evokernel.landscape import Landscape
from evokernel.measurement import Outcome, Record
from evokernel.operators.mutate import Mutate
from evokernel.operators.tune import Tune
from evokernel.search import Search
from tests.contracts.evaluator_contract import EvaluatorContract
from tests.test_search import DEVICE, Bench
from tests.toys import CLASS, PROBLEM, candidate, genome, passed

CONTEXT = PROBLEM.context(CLASS, DEVICE)


@pytest.fixture(scope="module")
def landscape():
    """Every genome of the toy, as the null evaluator judges it; larger blocks take longer."""
    made, null = Landscape(), Null()
    for number, knobs in enumerate(genome().body.space.enumerate(CONTEXT), 1):
        null.seconds = knobs["block"] / 16
        found = candidate(number, **knobs)
        made.append(Record(found, null.measure(Job(found, PROBLEM))))
    return made


class TestReplay(EvaluatorContract):
    @pytest.fixture
    def evaluator(self, landscape):
        return Replay(landscape, workers=2)


class TestReplayFromAFile(EvaluatorContract):
    @pytest.fixture
    def evaluator(self, landscape, tmp_path):
        landscape.save(tmp_path / "toy.parquet")
        return Replay(str(tmp_path / "toy.parquet"), workers=2)


def submit(replay, *blocks):
    for number, block in enumerate(blocks, 1):
        replay.submit(Job(candidate(number, block=block, rows=1), PROBLEM))


def finish(replay):
    ((job, _),) = replay.wait(0.0)
    return job.candidate.id, replay.now()


def test_jobs_end_when_they_ended_and_workers_work_side_by_side(landscape):
    replay = Replay(landscape, workers=2)
    submit(replay, 128, 32, 64)  # 8 s on the first worker; 2 s and then 4 s on the second
    assert [finish(replay) for _ in range(3)] == [(2, 2.0), (3, 6.0), (1, 8.0)]


def test_one_worker_takes_them_one_after_the_other(landscape):
    replay = Replay(landscape, workers=1)
    submit(replay, 128, 32)
    assert [finish(replay) for _ in range(2)] == [(1, 8.0), (2, 10.0)]


def test_a_job_starts_when_it_is_submitted_and_no_sooner(landscape):
    replay = Replay(landscape, workers=2)
    submit(replay, 128)
    finish(replay)
    submit(replay, 32)
    assert finish(replay) == (1, 10.0)


def test_a_genome_that_was_not_recorded_is_rejected_and_costs_nothing():
    replay = Replay(Landscape())
    replay.submit(Job(candidate(1), PROBLEM))
    ((_, measurement),) = replay.wait(1.0)
    assert (measurement.outcome, measurement.message) == (Outcome.REJECTED, "not in the landscape")
    assert replay.now() == 0.0


def test_a_genome_measured_several_times_answers_with_each_in_turn():
    landscape = Landscape()
    for speedup in (1.5, 1.1):
        landscape.append(Record(candidate(1), passed(speedup)))
    replay = Replay(landscape)
    speedups = []
    for _ in range(3):
        replay.submit(Job(candidate(1), PROBLEM))
        ((_, measurement),) = replay.wait(1.0)
        speedups.append(measurement.timings[0].speedup)
    assert speedups == pytest.approx([1.5, 1.1, 1.5])


def test_workers_without_meaning_are_refused():
    with pytest.raises(ValueError, match="workers is 0"):
        Replay(Landscape(), workers=0)


def test_the_same_seed_gives_the_same_lineage_under_replay(landscape):
    def lineage(seed):
        made = Search(PROBLEM, [genome()], [(Tune(), 1.0), (Mutate(), 1.0)], lambda: Elites(["block"]), DEVICE, seed)
        bench, replay = Bench(made), Replay(landscape, workers=3)
        trail = []
        for _ in range(25):
            while len(replay.running) < replay.slots:
                replay.submit(Job(bench.start(), PROBLEM))
            for job, measurement in replay.wait(1.0):
                bench.finish(job.candidate, measurement)
                trail.append((job.candidate.genome.key, job.candidate.parents, job.candidate.operator, replay.now()))
        return trail

    assert lineage(0) == lineage(0)
    assert lineage(0) != lineage(1)
