"""The tools tell what a run knows, in words, and compile without a device."""

from dataclasses import replace

import pytest

from evokernel import devices, run_folder
from evokernel.candidate import find_module, load_genome
from evokernel.llm.tools import Draft, ToolError
from evokernel.measurement import Fidelity, Measurement, Outcome
from evokernel.problem import Problem, Workload
from evokernel.store import Lesson, Store
from evokernel.toolbox import Outside, Reading, compiled, driven, enough
from tests.toys import CLASS, PROBLEM, candidate, genome, passed


@pytest.fixture
def store(tmp_path):
    return Store.open(f"sqlite:///{tmp_path}/evokernel.db")


@pytest.fixture
def run(store):
    return store.create_run("first", {}, PROBLEM, devices.cpu(), 0)


def test_a_lineage_tells_scores_and_notes_the_latest_first(store, run):
    first = store.add_candidate(run.id, candidate())
    child = store.add_candidate(run.id, replace(candidate(rows=4), parents=(first.id,), note="fewer rows"))
    store.add_measurement(run.id, first, passed(1.5))
    store.add_measurement(run.id, child, Measurement(Outcome.TIMEOUT, "slow"))
    assert Reading(store, run).lineage(child.id).split("\n") == [
        f"{child.id} by mutate of {first.id}: no score fewer rows",
        f"{first.id} by mutate: 1.5000",
    ]


def test_lessons_tell_what_was_expected_and_what_came_out(store, run):
    store.add_lesson(run.id, Lesson("tiles", "faster", "slower"))
    store.add_lesson(run.id, Lesson("order", "", ""))
    assert Reading(store, run).lessons() == [
        "tiles; expected: faster; came out: slower",
        "order; expected: nothing said; came out: not known yet",
    ]


def test_another_runs_candidates_are_not_seen(store, run):
    other = store.create_run("other", {}, PROBLEM, devices.cpu(), 0)
    stranger = store.add_candidate(other.id, candidate())
    for number in (stranger.id, 999, -1):
        with pytest.raises(ToolError, match=f"run first has no candidate {number}"):
            Reading(store, run).candidate(number)


def test_without_a_driver_nothing_is_measured_and_nothing_waits(store, run):
    with pytest.raises(ToolError, match="run first is created: so nothing is measured"):
        Outside(store, run, "mcp").measure(Draft(genome(), CLASS.name), Fidelity.FULL)
    assert store.claim_submissions(run.id) == []


def test_a_run_whose_driver_died_is_not_waited_for(store, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store.set_status(run.id, "running")
    with run_folder.driving("first"):
        assert driven(store, run) == "running"
    with pytest.raises(ToolError, match="run first is without a driver, which died: so nothing is measured"):
        Outside(store, run, "mcp").measure(Draft(genome(), CLASS.name), Fidelity.FULL)


def test_a_driver_that_never_answers_is_not_waited_for_for_ever(store, run):
    store.set_status(run.id, "running")
    with pytest.raises(ToolError, match=r"submission 1 has no answer after 0\.1 s"):
        Outside(store, run, "mcp", patience_s=0.1).measure(Draft(genome(), CLASS.name), Fidelity.FULL)


def test_a_failure_answers_any_question_and_a_check_none_that_asks_for_times():
    checked, timed = passed(1.0, fidelity=Fidelity.SCREEN), passed(1.0)
    wrong = Measurement(Outcome.INCORRECT, "row 3", fidelity=Fidelity.SCREEN)
    assert enough([], Fidelity.SCREEN) is None
    assert enough([checked], Fidelity.SCREEN) is checked
    assert enough([checked], Fidelity.FULL) is None
    assert enough([checked, timed], Fidelity.FULL) is timed
    assert enough([wrong], Fidelity.FULL) is wrong
    given_up = passed(0.5, fidelity=Fidelity.SCREEN, resources={"stopped_early": "w: 0.500"})
    assert enough([checked, given_up], Fidelity.FULL) is given_up


def test_a_gpu_kernel_is_compiled_with_its_facts_and_a_forbidden_one_is_not():
    pytest.importorskip("triton")
    problem = Problem("forward", "bf16", (Workload(2, 8, 8, 1024, 1024, 64, False),))
    kernel = load_genome(find_module("flash_forward_triton", "search_spaces"))
    told = compiled(kernel, problem)
    assert told.startswith("PASSED") and "cuda:90, bf16, head_dim 64, full" in told
    assert "registers" in told and "spill_bytes" in told
    body = replace(kernel.body, source=kernel.body.source + "\nimport os\n")
    assert "import" in compiled(replace(kernel, body=body), problem)
