"""Scores compare pair by pair, over every workload of the class, and over all measurements of a candidate."""

import math

import pytest

from evokernel.measurement import Fidelity, Measurement, Outcome, Timing, failed, score, workload_speedups
from evokernel.problem import Problem, Workload
from tests.toys import PROBLEM, TWO, WORKLOAD, passed, record, timing


def measured(*speedups, problem=TWO):
    names = [w.name for w in problem.workloads]
    return Measurement(Outcome.PASSED, timings=tuple(timing(s, n) for s, n in zip(speedups, names, strict=True)))


def test_the_speedup_pairs_samples_so_that_drift_common_to_a_pair_cancels():
    drifting = Timing("w", (10.0, 20.0, 40.0), "sdpa", (20.0, 40.0, 80.0))
    assert drifting.speedup == 2.0
    shuffled = Timing("w", (10.0, 20.0, 40.0), "sdpa", (80.0, 40.0, 20.0))
    assert shuffled.speedup == 2.0
    assert Timing("w", (10.0, 10.0, 30.0), "sdpa", (30.0, 10.0, 10.0)).speedup == 1.0


def test_samples_without_their_pair_are_an_error_of_ours():
    with pytest.raises(ValueError, match="zip"):
        _ = Timing("w", (1.0, 2.0), "sdpa", (1.0,)).speedup


def test_latency_is_the_median_and_spread_half_the_interquartile_range_over_it():
    one = Timing("w", (1.0, 2.0, 3.0, 4.0, 100.0), "sdpa", (1.0,) * 5)
    assert one.latency_us == 3.0
    assert one.spread == pytest.approx((52.0 - 1.5) / 2 / 3.0)
    assert Timing("w", (1.0, 9.0), "sdpa", (1.0, 1.0)).spread == 0.0


def test_the_score_is_the_geometric_mean_of_the_workloads_speedups():
    assert score([measured(4.0, 1.0)], TWO) == pytest.approx(2.0)


def test_weights_count_in_the_score():
    heavy = Problem("forward", "fp32", (WORKLOAD, Workload(1, 2, 2, 64, 64, 16, False, weight=3.0)))
    assert score([measured(16.0, 1.0, problem=heavy)], heavy) == pytest.approx(2.0)


def test_a_workload_that_was_not_timed_leaves_no_score():
    assert score([passed(2.0)], TWO) is None
    assert score([], PROBLEM) is None
    assert score([passed(2.0)], Problem("forward", "fp32", ())) is None


def test_several_measurements_give_their_median_so_that_one_lucky_run_cannot_win():
    assert score([passed(1.0), passed(9.0), passed(1.1)], PROBLEM) == pytest.approx(1.1)


def test_a_screening_never_counts():
    assert score([passed(9.0, fidelity=Fidelity.SCREEN)], PROBLEM) is None
    assert score([passed(9.0, fidelity=Fidelity.SCREEN), passed(1.0)], PROBLEM) == pytest.approx(1.0)


@pytest.mark.parametrize("outcome", [Outcome.INCORRECT, Outcome.CHEATED])
def test_a_candidate_that_was_disproved_once_has_no_score_whatever_else_was_measured(outcome):
    assert score([passed(2.0), failed(outcome, "wrong")], PROBLEM) is None
    assert score([failed(outcome, "wrong"), passed(2.0)], PROBLEM) is None


@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.CRASHED])
def test_a_mishap_does_not_take_back_what_was_measured(outcome):
    assert score([passed(2.0), failed(outcome, "the machine was busy")], PROBLEM) == pytest.approx(2.0)


def test_held_out_workloads_are_reported_apart_and_never_steer():
    both = Measurement(Outcome.PASSED, timings=(timing(2.0), timing(0.5, "unseen", held_out=True)))
    assert workload_speedups([both], held_out=False) == {WORKLOAD.name: 2.0}
    assert workload_speedups([both], held_out=True) == {"unseen": 0.5}
    assert score([both], PROBLEM) == pytest.approx(2.0)


def test_a_record_scores_its_own_measurement():
    assert record(1, 1.5).score(PROBLEM) == pytest.approx(1.5)
    assert record(1, None).score(PROBLEM) is None


def test_a_failures_message_keeps_its_end_where_the_reason_stands():
    message = failed(Outcome.COMPILE_ERROR, "x" * 9000 + "the reason\n").message
    assert len(message) == 4000
    assert message.endswith("the reason")


def test_a_score_is_the_same_whatever_the_order_of_measurements():
    runs = [passed(s) for s in (1.2, 0.9, 1.4, 1.1)]
    assert math.isclose(score(runs, PROBLEM), score(runs[::-1], PROBLEM))
