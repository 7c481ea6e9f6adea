"""What the pages compute is what the store says, while it grows too."""

import json
import math

import pytest

from evokernel import devices
from evokernel.dashboard.data import asking, compare, landscape, leaderboard, lineage, progress, runs
from evokernel.dashboard.data.details import details
from evokernel.dashboard.data.follow import Follower
from evokernel.dashboard.data.importance import importances
from evokernel.measurement import Measurement, Outcome, score
from evokernel.store import Store
from evokernel.store.queries import query
from tests.dashboard.campaigns import (
    CAUSAL,
    CAUSAL_CLASS,
    FULL,
    FULL_CLASS,
    HELD_OUT,
    PROBLEM,
    create,
    fill,
    passed,
    propose,
)


@pytest.fixture
def follower(campaign, url):
    return Follower(Store.open(url, read_only=True))


@pytest.fixture
def snapshot(follower):
    return follower.snapshot()


def test_scores_are_those_of_the_leaderboard_view_and_of_the_search(campaign, snapshot, url):
    store, _, numbers = campaign
    _, rows, _ = query(url, "SELECT candidate, score, held_out_score FROM leaderboard")
    assert {n: (pytest.approx(s), h and pytest.approx(h)) for n, s, h in rows} == {
        e.id: (e.score, e.held_out) for e in snapshot.entries.values() if e.score is not None
    }
    for number in numbers[:4]:
        found = snapshot.entries[number]
        of_class = next(PROBLEM.in_class(c) for c in PROBLEM.shape_classes() if c.name == found.row.shape_class)
        assert found.score == pytest.approx(score(store.measurements(number), of_class))


def test_a_snapshot_that_followed_a_run_equals_one_that_read_it_whole(url):
    store, run_id = create(url, status="running")
    follower = Follower(Store.open(url, read_only=True))
    assert follower.snapshot().entries == {}
    for speedup in (1.0, 1.4, 1.2):
        found = propose(store, run_id)
        follower.snapshot()
        store.add_measurement(run_id, found, passed(speedup, speedup))
        follower.snapshot()
    whole, grown = Follower(Store.open(url, read_only=True)).snapshot(), follower.snapshot()
    assert [e.score for e in grown.entries.values()] == [e.score for e in whole.entries.values()]
    assert grown.parts[CAUSAL_CLASS].steps == whole.parts[CAUSAL_CLASS].steps
    assert (grown.pending, grown.device_s, grown.usd) == (0, whole.device_s, whole.usd)
    version = grown.version
    assert follower.snapshot().version == version


def test_a_leader_that_is_disproved_gives_its_place_back(campaign, follower):
    store, run_id, (_, child, _, crossed, *_) = campaign
    assert follower.snapshot().leader(CAUSAL_CLASS).id == child
    store.add_measurement(run_id, store.candidate(child), Measurement(Outcome.INCORRECT, "wrong after all"))
    snapshot = follower.snapshot()
    assert snapshot.leader(CAUSAL_CLASS).id == crossed
    assert snapshot.entries[child].score is None
    assert snapshot.entries[child].outcome == "INCORRECT"
    assert progress.curves(snapshot, "evaluations")[CAUSAL_CLASS].candidates[-1] == crossed


def test_the_overview_counts_evaluations_outcomes_and_cost(follower):
    (row,) = runs.overview(follower)
    assert (row["run"], row["status"], row["evaluations"]) == ("first", "finished", 6)
    assert row["outcomes"] == {"PASSED": 5, "INCORRECT": 1}
    assert row["cost_usd"] == pytest.approx(1.5)
    assert row["spark"][-1] == pytest.approx(row["best"])


def test_curves_step_where_the_best_changed_over_every_axis(snapshot):
    curve = progress.curves(snapshot, "evaluations")[CAUSAL_CLASS]
    assert curve.x == [1, 2, 6, 6]
    assert curve.y == sorted(curve.y)
    assert progress.curves(snapshot, "device")[CAUSAL_CLASS].x == [2.0, 4.0, 9.0, 9.0]
    assert progress.curves(snapshot, "usd")[CAUSAL_CLASS].x == [0.25, 0.5, 1.25, 1.25]


def test_pace_counts_every_evaluation_once(snapshot):
    found = progress.pace(snapshot)
    assert sum(sum(counts) for counts in found["outcomes"].values()) == 6
    width = 2 * found["minutes"][0]
    assert sum(found["per_minute"]) * width == pytest.approx(6)
    assert all(0 <= share <= 1 for share in found["busy"])


def test_operators_are_credited_with_leaders_and_budget_with_its_caps(snapshot):
    found = {row["operator"]: row for row in progress.operators(snapshot)}
    assert (found["seed"]["led"], found["mutate"]["led"], found["tune"]["led"]) == (2, 1, 0)
    assert (found["mutate"]["proposed"], found["mutate"]["scored"]) == (2, 1)
    assert progress.budget(snapshot) == [{"cap": "evaluations", "limit": 20, "spent": 6, "share": 0.3}]
    assert progress.queues(snapshot, 2) == {"in flight": 1, "handed in": 2}


def test_a_budget_that_this_version_cannot_read_is_left_out(url):
    store = Store.open(url)
    store.create_run("old", {"budgets": 3}, PROBLEM, devices.cpu(), 0)
    assert progress.budget(Follower(store).snapshot()) == []


def test_the_leaderboard_sorts_filters_and_pages(campaign, snapshot):
    _, _, (seed, child, _, crossed, *_) = campaign

    def numbers(sort=(), filters=None, **window):
        rows, total = leaderboard.window(snapshot, CAUSAL_CLASS, sort, filters, **window)
        return [row["candidate"] for row in rows], total

    assert numbers() == ([child, crossed, seed], 3)
    assert numbers([{"colId": "candidate", "sort": "desc"}])[0] == [crossed, child, seed]
    assert numbers([{"colId": "held_out", "sort": "asc"}])[0] == [child, crossed, seed]  # unknown comes last
    assert numbers(start=1, end=2) == ([crossed], 3)
    field = next(c["field"] for c in leaderboard.columns(snapshot, CAUSAL_CLASS) if c["name"] == "rows")
    assert numbers(filters={field: {"filterType": "text", "type": "equals", "filter": "4"}}) == ([crossed], 1)
    above = {"filterType": "number", "type": "greaterThan", "filter": 1.1}
    assert numbers(filters={"score": above}) == ([child, crossed], 2)
    both = {"operator": "AND", "conditions": [above, {"filterType": "number", "type": "lessThan", "filter": 1.2}]}
    assert numbers(filters={"score": both}) == ([crossed], 1)
    assert numbers([{"colId": "knob99", "sort": "asc"}])[1] == 3


def test_a_row_has_speedups_knobs_and_facts(snapshot):
    names = {c["field"]: c["name"] for c in leaderboard.columns(snapshot, CAUSAL_CLASS)}
    (row, *_), _ = leaderboard.window(snapshot, CAUSAL_CLASS)
    shown = {names[field]: value for field, value in row.items()}
    assert shown[CAUSAL[0].name] == pytest.approx(1.225)
    assert (shown["rows"], shown["registers"], shown["spill bytes"], shown["verified"]) == (2, 128, 0, "yes")


def test_details_hold_all_that_is_known(campaign, follower):
    _, _, (seed, child, *_) = campaign
    found = details(follower, child)
    assert {"knob": "rows", "value": 2, "parent": 1} in found.knobs
    assert any(line.startswith("+KNOBS") for line in found.diff)
    held_out = next(t for t in found.timings if t["held_out"])
    assert (held_out["workload"], held_out["baselines"]) == (HELD_OUT.name, {"flex": pytest.approx(110)})
    beside = next(t for t in found.timings if t["workload"] == CAUSAL[0].name)["baselines"]
    assert set(beside) == {"sdpa", "math"}  # one timed beside it, one slower and known from its record
    assert beside["math"] == pytest.approx(480)
    assert all(0 < t["roofline_us"] < t["latency_us"] for t in found.timings)
    assert found.said.conversations[0]["messages"] == [{"role": "user", "content": "go faster"}]
    assert found.said.lessons[0]["tried"] == "more rows"
    assert [e.id for e in found.ancestry] == [child, seed]
    assert details(follower, seed).errors == [{"workload": CAUSAL[0].name, "random": 0.4, "outlier": 0.7}]
    assert details(follower, 999) is None


def test_a_forest_has_every_node_once_and_marks_the_champions_line(campaign, snapshot):
    _, _, (seed, child, wrong, crossed, _, waiting) = campaign
    found = lineage.forest(snapshot, CAUSAL_CLASS)
    assert [n.entry.id for n in found.nodes] == [seed, child, wrong, crossed, waiting]
    assert {n.entry.id for n in found.nodes if n.champion} == {seed, child}
    assert (seed, child, True) in found.edges
    assert len({(n.x, n.y) for n in found.nodes}) == 5
    depth = {n.entry.id: n.y for n in found.nodes}
    assert depth[seed] < depth[child] < depth[wrong]
    small = lineage.forest(snapshot, CAUSAL_CLASS, limit=2)
    assert ([n.entry.id for n in small.nodes], small.left_out) == ([seed, child], 3)


def test_heat_maps_hold_the_best_of_every_pair_of_values(snapshot):
    assert set(landscape.varied(snapshot, CAUSAL_CLASS)) == {"rows", "block", "form"}
    found = landscape.heat(snapshot, CAUSAL_CLASS, "rows", "block")
    assert (found.x, found.y) == (["1", "2", "4"], ["32", "64", "128"])
    best = found.best[1][1]
    assert best == pytest.approx(snapshot.leader(CAUSAL_CLASS).score)
    assert (found.best[0][1], found.tried[0][1], found.passed[0][1]) == (None, 1, 0)
    covered = landscape.coverage(snapshot, CAUSAL_CLASS)
    assert (covered.axes, covered.filled, covered.tried, covered.possible) == (["block"], 1, 3, 3)


def test_the_knob_that_decides_is_the_most_important(url):
    store, run_id = create(url)
    for i in range(24):
        found = propose(store, run_id, rows=(1, 2, 4)[i % 3], block=(32, 64)[i % 2])
        speedup = 1.0 + (i % 3) * 0.4 + i * 1e-4
        store.add_measurement(run_id, found, passed(speedup, speedup))
    (first, share), *rest = importances(Follower(store).snapshot(), CAUSAL_CLASS)
    assert first == "rows"
    assert all(share > other for _, other in rest)


def test_too_few_candidates_have_no_importance(snapshot):
    assert importances(snapshot, CAUSAL_CLASS) == []


def test_runs_are_compared_at_the_budget_that_all_spent(campaign, url):
    store, run_id = create(url, "second")
    found = propose(store, run_id)
    store.add_measurement(run_id, found, passed(1.1, 1.1))
    follower = Follower(Store.open(url, read_only=True))
    limit, rows = compare.equal_budget([follower.snapshot("first"), follower.snapshot("second")], "evaluations")
    best = {row["run"]: row[CAUSAL_CLASS] for row in rows}
    assert limit == 1
    assert best["second"] == pytest.approx(1.1)
    assert best["first"] == pytest.approx(math.exp((math.log(0.9) + 3 * math.log(1.0)) / 4))
    assert all(row["all"] is None for row in rows)  # neither had led both classes by then
    shapes = [row["workload"] for row in compare.portfolio(follower.snapshot("first"))]
    assert shapes == [FULL.name, *(w.name for w in CAUSAL), HELD_OUT.name]


def test_a_question_is_answered_within_limits_or_refused_in_one_line(campaign, url):
    answer = asking.ask(url, "SELECT id FROM candidate ORDER BY id", rows=2)
    assert (answer.columns, answer.rows, answer.more, answer.error) == (["id"], [[1], [2]], True, "")
    refused = asking.ask(url, "DELETE FROM candidate")
    assert "readonly" in refused.error
    assert "\n" not in refused.error
    slow = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n"
    assert "longer than 0.2 s" in asking.ask(url, slow, seconds=0.2).error


def test_answers_leave_as_csv_without_formulas_and_as_json(url, campaign):
    answer = asking.ask(url, "SELECT '=1+1' AS a, 2 AS b, 'x,y' AS c")
    assert answer.as_csv().splitlines() == ["a,b,c", '\'=1+1,2,"x,y"']
    assert json.loads(answer.as_json()) == [{"a": "=1+1", "b": 2, "c": "x,y"}]


def test_every_saved_query_is_answered_here_and_by_the_command(campaign, url, monkeypatch):
    from typer.testing import CliRunner

    from evokernel.cli import app

    monkeypatch.setenv("EVOKERNEL_DB", url)
    for name, sql in asking.SAVED.items():
        answer = asking.ask(url, sql)
        assert not answer.error
        said = CliRunner().invoke(app, ["query", "--saved", name, "--json"])
        assert json.loads(said.stdout) == json.loads(answer.as_json())


def test_a_database_without_a_run_is_empty_and_no_error(url):
    follower = Follower(Store.open(url))
    assert (runs.overview(follower), follower.snapshot(), details(follower, 1)) == ([], None, None)


def test_other_classes_and_runs_do_not_mix(campaign, url):
    store, run_id = create(url, "second")
    fill(store, run_id)
    snapshot = Follower(Store.open(url, read_only=True)).snapshot("second")
    assert {e.row.shape_class for e in leaderboard.scored(snapshot, FULL_CLASS)} == {FULL_CLASS}
    assert len(snapshot.entries) == 6
    assert min(snapshot.entries) == 7
