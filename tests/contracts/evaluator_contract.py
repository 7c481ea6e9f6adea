"""What every evaluator keeps to. Inherit EvaluatorContract and give an `evaluator`."""

from evokernel.evaluators import Job
from evokernel.measurement import Fidelity, Outcome
from tests.toys import PROBLEM, candidate


def drain(evaluator, count, patience=60):
    finished = []
    while len(finished) < count and patience:
        finished += evaluator.wait(1.0)
        patience -= 1
    return finished


class EvaluatorContract:
    def test_every_job_comes_back_once_with_its_measurement(self, evaluator):
        jobs = [Job(candidate(number, rows=rows, block=128), PROBLEM) for number, rows in enumerate((1, 2, 4), 1)]
        for job in jobs:
            evaluator.submit(job)
        finished = drain(evaluator, 3)
        assert sorted(job.candidate.id for job, _ in finished) == [1, 2, 3]
        assert all(m.outcome in Outcome for _, m in finished)
        assert evaluator.wait(0.01) == []

    def test_the_fidelity_asked_for_is_the_one_measured(self, evaluator):
        evaluator.submit(Job(candidate(1), PROBLEM, Fidelity.VERIFY))
        ((_, measurement),) = drain(evaluator, 1)
        assert measurement.fidelity is Fidelity.VERIFY

    def test_waiting_for_nothing_returns_nothing(self, evaluator):
        assert evaluator.wait(0.01) == []

    def test_the_clock_does_not_run_backwards(self, evaluator):
        before = evaluator.now()
        evaluator.submit(Job(candidate(1), PROBLEM))
        drain(evaluator, 1)
        assert evaluator.now() >= before

    def test_there_is_room_for_at_least_one_job(self, evaluator):
        assert evaluator.slots >= 1
