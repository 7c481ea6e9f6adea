"""Budgets are hard caps with a share kept back for verification."""

from evokernel.budget import Budget, Spent


def test_the_search_stops_before_the_share_kept_for_verification():
    budget = Budget(wall_s=100, verify_share=0.2)
    assert budget.exhausted(Spent(wall_s=79)) is None
    assert budget.exhausted(Spent(wall_s=80)) == "wall_s"
    assert budget.exhausted(Spent(wall_s=80), verifying=True) is None
    assert budget.exhausted(Spent(wall_s=100), verifying=True) == "wall_s"


def test_the_cap_that_is_reached_is_named():
    budget = Budget(wall_s=100, evaluations=10, gpu_s=50.0)
    assert budget.exhausted(Spent(evaluations=10)) == "evaluations"
    assert budget.exhausted(Spent(gpu_s=50.0)) == "gpu_s"


def test_what_models_may_cost_ends_no_search():
    budget = Budget(wall_s=100, usd=1.0, tokens=0, verify_share=0.0)
    assert budget.exhausted(Spent(usd=1.0, tokens=1)) is None
    assert budget.left_s(Spent(wall_s=50, usd=1.0)) == 50
    assert budget.used(Spent(usd=0.5), verifying=False)["usd"] == 0.5


def test_verification_is_not_bound_by_the_cap_on_evaluations():
    assert Budget(evaluations=10).exhausted(Spent(evaluations=12), verifying=True) is None


def test_a_cap_of_zero_is_reached_at_once():
    assert Budget(gpu_s=0.0).exhausted(Spent()) == "gpu_s"


def test_the_time_left_follows_the_cap_that_is_nearest():
    budget = Budget(wall_s=1000, evaluations=10, verify_share=0.0)
    assert budget.left_s(Spent(wall_s=50, evaluations=5)) == 50
