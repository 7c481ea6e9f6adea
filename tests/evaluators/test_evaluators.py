"""Evaluators keep the contract; a worker that dies costs at most the candidate in flight."""

import os
import signal

import pytest

from evokernel import devices
from evokernel.errors import ConfigError
from evokernel.evaluators import Job
from evokernel.evaluators.local import Local
from evokernel.evaluators.null import Null
from evokernel.measurement import Outcome
from tests.contracts.evaluator_contract import EvaluatorContract, drain
from tests.toys import PROBLEM, candidate


class TestNull(EvaluatorContract):
    @pytest.fixture
    def evaluator(self):
        return Null()


class TestLocal(EvaluatorContract):
    @pytest.fixture(scope="class")
    @classmethod
    def evaluator(cls):
        made = Local(devices.cpu())
        yield made
        made.close()

    def test_a_worker_that_is_killed_loses_no_job(self, evaluator):
        jobs = [Job(candidate(number, rows=1, block=block), PROBLEM) for number, block in enumerate((16, 32, 64), 1)]
        for job in jobs:
            evaluator.submit(job)
        os.kill(evaluator.workers[0].process.pid, signal.SIGKILL)
        finished = drain(evaluator, 3)
        assert sorted(job.candidate.id for job, _ in finished) == [1, 2, 3]
        assert [m.outcome for _, m in finished] == [Outcome.PASSED] * 3

    def test_a_job_whose_workers_keep_dying_is_given_up(self, evaluator, monkeypatch):
        evaluator.submit(Job(candidate(1), PROBLEM))
        for _ in range(2):
            slot = next(slot for slot in evaluator.workers if slot.jobs)
            os.kill(slot.process.pid, signal.SIGKILL)
            slot.process.join()
            finished = evaluator.wait(0.01)
        finished = finished or drain(evaluator, 1)
        assert finished[0][1].outcome is Outcome.CRASHED
        assert len(finished) == 1

    def test_settings_without_meaning_are_refused(self):
        with pytest.raises(ValueError, match="slots"):
            Local(devices.cpu(), slots=0)
        with pytest.raises(ConfigError, match="magic"):
            Local(devices.cpu(), baselines=("magic",))
        with pytest.raises(ConfigError, match=r"fa3.*on GPUs alone"):
            Local(devices.cpu(), baselines=("fa3",))


def test_a_closed_evaluator_leaves_no_folder_and_no_process_behind(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = Local(devices.cpu(), slots=1)
    made.submit(Job(candidate(1), PROBLEM))
    assert drain(made, 1)[0][1].outcome is Outcome.PASSED
    assert [path for path in tmp_path.iterdir() if path.name != f"evokernel-{os.getuid()}"]
    process = made.workers[0].process
    made.close()
    assert not process.is_alive()
    assert [path.name for path in tmp_path.iterdir() if path.name != f"evokernel-{os.getuid()}"] == []


def test_a_job_of_another_dtype_is_refused():
    made = Local(devices.cpu(), slots=1)
    made.dtype = "bf16"
    with pytest.raises(ValueError, match="bf16"):
        made.submit(Job(candidate(1), PROBLEM))
