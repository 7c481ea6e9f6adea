"""Runs are compared at equal budgets, repeats by their quantiles, and only with runs of the same problem."""

from dataclasses import replace

import pytest

from evokernel import comparison, devices
from evokernel.comparison import ALL, compare, trace
from evokernel.errors import EvokernelError
from evokernel.measurement import Fidelity, Measurement, Outcome
from evokernel.problem import Problem
from evokernel.store import Store
from tests.toys import CLASS, PROBLEM, TWO, WORKLOAD, candidate, passed, timing

FULL = next(c for c in TWO.shape_classes() if not c.causal)


@pytest.fixture
def store(tmp_path):
    return Store.open(f"sqlite:///{tmp_path}/evokernel.db")


def run(store, name, speedups, problem=PROBLEM, device=None):
    """Store a run whose candidates scored so, one after the other; None is a failure."""
    made = store.create_run(name, {}, problem, device or devices.cpu(), 0)
    for speedup in speedups:
        stored = store.add_candidate(made.id, candidate())
        store.add_measurement(made.id, stored, passed(speedup) if speedup else Measurement(Outcome.TIMEOUT, "late"))
    return made


def test_a_trace_is_the_best_so_far_and_nothing_before_anything_passed(store):
    made = run(store, "a", [None, 1.0, 0.5, 2.0])
    found = trace(PROBLEM, store.records(made.id), "evaluations", "a")
    assert found.spent == [1, 2, 3, 4]
    assert found.best[CLASS.name] == pytest.approx([0, 1.0, 1.0, 2.0])
    assert found.at(CLASS.name, 0.5) == 0
    assert found.at(CLASS.name, 3.9) == pytest.approx(1.0)


def test_a_leader_that_falls_when_measured_again_falls_in_the_trace(store):
    made = run(store, "a", [1.0])
    lucky = store.add_candidate(made.id, candidate(rows=1))
    for speedup in (3.0, 1.2):
        store.add_measurement(made.id, lucky, passed(speedup))
    assert trace(PROBLEM, store.records(made.id), "evaluations", "a").best[CLASS.name] == pytest.approx([1.0, 3.0, 2.1])
    store.add_measurement(made.id, lucky, Measurement(Outcome.INCORRECT, "wrong after all"))
    assert trace(PROBLEM, store.records(made.id), "evaluations", "a").best[CLASS.name][-1] == pytest.approx(1.0)


def test_verification_costs_no_budget_and_stands_apart(store):
    made = run(store, "a", [2.0])
    (champion,) = (r.candidate for r in store.records(made.id))
    store.add_measurement(made.id, champion, passed(1.0, fidelity=Fidelity.VERIFY))
    found = trace(PROBLEM, store.records(made.id), "evaluations", "a")
    assert (found.spent, found.best[CLASS.name]) == ([1], [2.0])
    assert found.verified == {CLASS.name: pytest.approx(1.5), ALL: pytest.approx(1.5)}


def test_the_budget_is_what_the_shortest_run_spent(store):
    run(store, "long", [1.0, 1.5, 2.0, 9.0])
    run(store, "short", [1.0, 1.2])
    found = compare(store, ["long", "short"], "evaluations")
    assert found.budget == 2
    assert {row.label: row.medians[-1] for row in found.rows()} == pytest.approx({"long": 1.5, "short": 1.2})


def test_a_budget_may_be_counted_in_seconds(store):
    run(store, "a", [1.0, 1.5])  # a second each
    assert compare(store, ["a"], "seconds").budget == pytest.approx(2.0)


def test_repeats_are_one_label_with_quartiles(store):
    for number, speedup in enumerate((1.0, 2.0, 3.0, 4.0, 5.0), 1):
        run(store, f"tuned-{number}", [speedup])
    run(store, "tuned-up", [9.0])
    (row,) = compare(store, ["tuned"], "evaluations").rows()
    assert (row.repeats, row.label) == (5, "tuned")
    assert (row.medians[-1], row.low, row.high, row.worst, row.best) == pytest.approx((3.0, 2.0, 4.0, 1.0, 5.0))


def test_several_classes_are_shown_each_and_by_their_geometric_mean(store):
    made = run(store, "a", [4.0], TWO)
    other = store.add_candidate(made.id, candidate(shape_class=FULL.name))
    (workload,) = TWO.in_class(FULL).workloads
    store.add_measurement(made.id, other, replace(passed(1.0), timings=(timing(1.0, workload.name),)))
    found = {row.shape_class: row.medians[-1] for row in compare(store, ["a"], "evaluations").rows()}
    assert found == pytest.approx({CLASS.name: 4.0, FULL.name: 1.0, ALL: 2.0})


def test_other_problems_and_devices_are_not_compared(store):
    run(store, "a", [1.0])
    run(store, "b", [1.0], Problem("forward", "fp32", (replace(WORKLOAD, heads=4, kv_heads=4),)))
    run(store, "c", [1.0], device=replace(devices.cpu(), model="another"))
    run(store, "empty", [])
    for names, words in ((["a", "b"], "run b"), (["a", "c"], "run c"), (["empty"], "nothing yet"), (["d"], "no run")):
        with pytest.raises(EvokernelError, match=words):
            compare(store, names, "evaluations")
    with pytest.raises(EvokernelError, match="choose one of evaluations, seconds"):
        compare(store, ["a"], "usd")


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_a_figure_is_drawn_in_the_format_of_its_name(store, tmp_path, suffix, start):
    run(store, "a", [None, 1.0, 2.0])
    run(store, "b", [1.0, None, 1.5])
    path = tmp_path / "deep" / f"curves{suffix}"
    compare(store, ["a", "b"], "evaluations").draw(path)
    assert path.read_bytes().startswith(start)


def test_another_format_is_refused_with_the_choices(tmp_path):
    with pytest.raises(EvokernelError, match=r"curves\.gif.*\.png or \.svg"):
        comparison.check_format(tmp_path / "curves.gif")
