"""What the store keeps to on every database. Inherit StoreContract and give a `url`."""

from dataclasses import replace
from math import inf

import pytest

from evokernel import devices
from evokernel.errors import StoreError
from evokernel.measurement import Fidelity, Measurement, Outcome, Timing, score
from evokernel.problem import Problem
from evokernel.store import Conversation, Lesson, Store, queries
from tests.toys import PROBLEM, TWO, WORKLOAD, candidate, passed, timing

HOSTILE = "'; DROP TABLE run; --\x00 <script>alert(1)</script> \u202e \udcff 100% :name {x}"
WRITES = [
    "DELETE FROM run",
    "CREATE TABLE x (y INTEGER)",
    "SELECT 1; DELETE FROM run",
    "SELECT 1; COMMIT; DELETE FROM run",
]
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT COUNT(*) FROM c"


class StoreContract:
    @pytest.fixture
    def store(self, url):
        return Store.open(url)

    @pytest.fixture
    def run(self, store):
        return store.create_run("first", {"seed": 3}, PROBLEM, devices.cpu(), 3)

    # ---- runs ----

    def test_a_run_comes_back_as_it_was_created(self, store, run):
        assert store.run("first") == run
        assert (run.problem, run.config, run.seed, run.status) == (PROBLEM, {"seed": 3}, 3, "created")

    def test_the_latest_run_is_meant_when_no_name_is_given(self, store):
        assert store.latest_run() is None
        store.create_run("first", {}, PROBLEM, devices.cpu(), 0)
        later = store.create_run("second", {}, PROBLEM, devices.cpu(), 0)
        assert store.run(None) == store.latest_run() == later

    def test_a_taken_name_is_refused_and_the_run_is_kept(self, store, run):
        with pytest.raises(StoreError, match="a run named 'first' exists"):
            store.create_run("first", {}, PROBLEM, devices.cpu(), 0)
        assert store.run("first") == run

    @pytest.mark.parametrize("name", ["", "  ", "nul\x00", "\udcff"])
    def test_a_name_that_no_database_keeps_is_refused(self, store, name):
        with pytest.raises(StoreError, match="cannot be named"):
            store.create_run(name, {}, PROBLEM, devices.cpu(), 0)
        assert store.runs() == []

    def test_an_unknown_run_names_those_that_are_close(self, store, run):
        store.create_run("unlike", {}, PROBLEM, devices.cpu(), 0)
        with pytest.raises(StoreError, match=r"no run named 'frist'; runs: first$"):
            store.run("frist")
        with pytest.raises(StoreError, match=r"runs: first, unlike$"):
            store.run("zzz")

    def test_a_run_has_an_end_when_it_ended(self, store, run):
        store.set_status(run.id, "running")
        assert store.run("first").finished_at is None
        store.set_status(run.id, "finished")
        assert store.run("first").finished_at is not None

    def test_another_connection_can_ask_a_run_to_stop(self, store, run, url):
        Store.open(url).request_stop(run.id)
        assert store.stop_requested(run.id)
        store.clear_stop(run.id)
        assert not store.stop_requested(run.id)

    def test_what_was_spent_is_summed_over_sittings(self, store, run):
        one = store.add_candidate(run.id, replace(candidate(), cost_usd=0.5, tokens=100))
        store.add_measurement(run.id, one, passed(1.0, device_seconds=2.0))
        store.add_elapsed(run.id, 10)
        store.add_elapsed(run.id, 5)
        spent = store.spent(run.id)
        assert (spent.wall_s, spent.evaluations, spent.gpu_s, spent.usd, spent.tokens) == (15, 1, 2.0, 0.5, 100)

    # ---- candidates and measurements ----

    def test_records_come_back_exactly_and_in_completion_order(self, store, run, url):
        first, second = (store.add_candidate(run.id, candidate(rows=rows)) for rows in (1, 2))
        child = store.add_candidate(run.id, replace(candidate(rows=4), parents=(second.id, first.id), note="a hope"))
        written = [
            store.add_measurement(run.id, second, Measurement(Outcome.INCORRECT, "row 3", errors={"a": 2.5, "b": inf})),
            store.add_measurement(
                run.id, child, passed(1.5, resources={"compile_s": 2.0}, environment={"device": "x"})
            ),
            store.add_measurement(run.id, first, passed(1.25)),
        ]
        assert written[1].measurement == passed(1.5, resources={"compile_s": 2.0}, environment={"device": "x"})
        assert list(store.records(run.id)) == written
        assert list(Store.open(url).records(run.id)) == written

    def test_samples_keep_every_digit_and_workloads_their_order(self, store, run):
        one = store.add_candidate(run.id, candidate())
        third = Timing("a", (0.1 + 0.2, 1 / 3), "sdpa", (2 / 3, 1e-9))
        measured = Measurement(Outcome.PASSED, timings=(timing(1.0, "z"), third, timing(1.0, "m")))
        store.add_measurement(run.id, one, measured)
        assert [r.measurement for r in store.records(run.id)] == [measured]
        assert store.measurements(one.id) == [measured]

    def test_a_workload_may_be_searched_and_held_out(self, store, run):
        one = store.add_candidate(run.id, candidate())
        measured = Measurement(Outcome.PASSED, timings=(timing(1.5), timing(1.2, held_out=True)))
        store.add_measurement(run.id, one, measured)
        assert store.measurements(one.id) == [measured]

    def test_a_body_is_stored_once(self, store, run, url):
        for rows in (1, 2, 4):
            store.add_candidate(run.id, candidate(rows=rows))
        assert queries.query(url, "SELECT COUNT(*) FROM body")[1] == [[1]]
        assert len({id(c.genome.body) for c in Store.open(url).pending(run.id)}) == 1

    def test_a_candidate_without_a_measurement_is_pending(self, store, run):
        done, waiting = (store.add_candidate(run.id, candidate(rows=rows)) for rows in (1, 2))
        store.add_measurement(run.id, done, passed(1.0))
        assert store.pending(run.id) == [waiting]

    def test_runs_do_not_see_each_others_records(self, store, run):
        other = store.create_run("other", {}, PROBLEM, devices.cpu(), 0)
        one = store.add_candidate(other.id, candidate())
        store.add_measurement(other.id, one, passed(1.0))
        assert list(store.records(run.id)) == store.pending(run.id) == []
        assert store.run_of(one.id) == other

    @pytest.mark.parametrize("number", [0, -1, 7, 2**31, 10**30])
    def test_an_unknown_candidate_is_said_in_one_line(self, store, run, number):
        with pytest.raises(StoreError, match=f"no candidate {number} in"):
            store.candidate(number)

    def test_ancestors_come_once_each_the_latest_first(self, store, run):
        a, b = (store.add_candidate(run.id, candidate(rows=rows)) for rows in (1, 2))
        c = store.add_candidate(run.id, candidate(parents=(b.id, a.id), block=32))
        d = store.add_candidate(run.id, candidate(parents=(c.id, a.id), block=16))
        store.add_candidate(run.id, candidate(parents=(d.id,), block=128))
        assert store.ancestry(d.id) == [d, c, b, a]

    def test_only_what_would_come_out_again_is_re_used(self, store, run):
        one = store.add_candidate(run.id, candidate())

        def measured(outcome, key, **facts):
            found = Measurement(outcome, environment={"reuse_key": key}, **facts)
            return store.add_measurement(run.id, one, found).measurement

        measured(Outcome.PASSED, "k", seconds=1.0)
        latest = measured(Outcome.INCORRECT, "k", seconds=2.0)
        measured(Outcome.TIMEOUT, "k")
        measured(Outcome.CRASHED, "flaky")
        verified = measured(Outcome.PASSED, "k", fidelity=Fidelity.VERIFY)
        assert store.find_reusable("k") == latest
        assert store.find_reusable("k", Fidelity.VERIFY) == verified
        assert store.find_reusable("flaky") is None
        assert store.find_reusable("unknown") is None

    def test_hostile_text_is_kept_as_text(self, store, run):
        one = store.add_candidate(run.id, replace(candidate(), note=HOSTILE))
        facts = {"resources": {HOSTILE: HOSTILE}, "environment": {"log": [HOSTILE, inf]}, "worker": HOSTILE}
        told = store.add_measurement(run.id, one, Measurement(Outcome.RUNTIME_ERROR, HOSTILE, **facts))
        store.add_lesson(run.id, Lesson(HOSTILE, HOSTILE, HOSTILE))
        store.add_submission(run.id, HOSTILE, None, None, HOSTILE)
        (record,) = store.records(run.id)
        assert record == told
        assert "'; DROP TABLE run; --" in record.measurement.message
        assert "100% :name {x}" in store.candidate(one.id).note
        assert store.runs()

    # ---- submissions, conversations, lessons ----

    def test_a_submission_is_claimed_once_by_whoever_asks(self, store, run, url):
        handed = [store.add_submission(run.id, f"source {i}", None, None, "try this") for i in range(3)]
        other = store.create_run("other", {}, PROBLEM, devices.cpu(), 0)
        assert store.claim_submissions(other.id) == []
        assert [s.id for s in Store.open(url).claim_submissions(run.id)] == handed
        assert store.claim_submissions(run.id) == []

    def test_conversations_and_lessons_come_back_in_order(self, store, run):
        one = store.add_candidate(run.id, candidate())
        said = [Conversation("m", [{"role": "user", "content": "hi"}], one.id, 10, 0.1), Conversation("n", [])]
        learnt = [Lesson("larger tiles", "faster", "slower", one.id), Lesson("b", "", "")]
        for conversation, lesson in zip(said, learnt, strict=True):
            store.add_conversation(run.id, conversation)
            store.add_lesson(run.id, lesson)
        assert store.conversations(run.id) == said
        assert store.lessons(run.id) == learnt

    # ---- views ----

    def test_the_leaderboard_agrees_with_the_score(self, store, url):
        heavy = replace(TWO.workloads[0], weight=3.0)
        problem = Problem("forward", "fp32", (heavy, replace(WORKLOAD, seq_q=100, seq_kv=100)), (WORKLOAD,))
        run = store.create_run("weighted", {}, problem, devices.cpu(), 0)
        one = store.add_candidate(run.id, candidate())
        names = [w.name for w in problem.workloads]
        for pair in ((1.5, 1.1), (9.0, 0.7), (1.4, 1.2)):
            timings = (*map(timing, pair, names), timing(0.9, "elsewhere", held_out=True))
            store.add_measurement(run.id, one, Measurement(Outcome.PASSED, timings=timings))
        columns, rows, more = queries.query(
            url, "SELECT candidate, score, held_out_score, measurements FROM leaderboard"
        )
        assert columns == ["candidate", "score", "held_out_score", "measurements"]
        assert rows == [[one.id, pytest.approx(score(store.measurements(one.id), problem)), pytest.approx(0.9), 3]]
        assert not more

    def test_a_disproved_candidate_is_on_no_leaderboard(self, store, run, url):
        one = store.add_candidate(run.id, candidate())
        store.add_measurement(run.id, one, passed(9.0))
        store.add_measurement(run.id, one, Measurement(Outcome.CHEATED, "skipped unchanged inputs"))
        assert queries.query(url, "SELECT * FROM leaderboard")[1] == []
        assert queries.query(url, "SELECT outcome, score FROM lineage")[1] == [["CHEATED", None]]

    def test_a_screening_is_no_score(self, store, run, url):
        one = store.add_candidate(run.id, candidate())
        store.add_measurement(run.id, one, passed(9.0, fidelity=Fidelity.SCREEN))
        assert queries.query(url, "SELECT * FROM leaderboard")[1] == []
        assert queries.query(url, "SELECT score, best FROM progress")[1] == [[None, None]]

    def test_progress_shows_the_best_so_far(self, store, run, url):
        for speedup in (1.2, None, 1.1, 1.4):
            one = store.add_candidate(run.id, candidate())
            measured = passed(speedup) if speedup else Measurement(Outcome.TIMEOUT, "slow")
            store.add_measurement(run.id, one, measured)
        rows = queries.query(url, "SELECT evaluation, score, best FROM progress ORDER BY evaluation")[1]
        best = [1.2, 1.2, 1.2, 1.4]
        assert [(n, pytest.approx(b)) for n, _, b in rows] == list(enumerate(best, 1))
        assert rows[1][1] is None
        assert queries.query(url, "SELECT outcome, message FROM failures")[1] == [["TIMEOUT", "slow"]]

    # ---- queries ----

    @pytest.mark.parametrize("name", queries.SAVED)
    def test_every_saved_query_answers(self, store, run, url, name):
        one = store.add_candidate(run.id, candidate())
        store.add_measurement(run.id, one, passed(1.5, resources={"compile_s": 2.5}))
        store.add_measurement(run.id, one, Measurement(Outcome.TIMEOUT, "slow"))
        columns, rows, _ = queries.query(url, queries.SAVED[name])
        assert rows
        assert name != "compiles" or rows[0][columns.index("compile_s")] == 2.5

    def test_a_child_of_two_parents_counts_once_for_its_operator(self, store, run, url):
        a, b = (store.add_candidate(run.id, candidate(rows=rows)) for rows in (1, 2))
        store.add_candidate(run.id, replace(candidate(parents=(a.id, b.id)), operator="cross"))
        columns, rows, _ = queries.query(url, queries.SAVED["operators"])
        counts = {row[columns.index("operator")]: row[columns.index("candidates")] for row in rows}
        assert counts == {"mutate": 2, "cross": 1}

    @pytest.mark.parametrize("sql", WRITES)
    def test_a_query_cannot_write(self, store, run, url, sql):
        with pytest.raises(StoreError) as error:
            queries.query(url, sql)
        assert "\n" not in str(error.value)
        assert store.runs() == [run]

    @pytest.mark.parametrize("sql", ["SELEKT 1", "SELECT nope FROM run", "SELECT * FROM nowhere", "", "SELECT '"])
    def test_bad_sql_is_said_in_one_line(self, store, url, sql):
        with pytest.raises(StoreError) as error:
            queries.query(url, sql)
        assert "\n" not in str(error.value)

    def test_a_query_that_takes_too_long_is_ended(self, store, url):
        with pytest.raises(StoreError, match=r"longer than 0\.2 s"):
            queries.query(url, ENDLESS, timeout_s=0.2)

    def test_rows_beyond_the_limit_are_left_and_said_so(self, store, url):
        fifty = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 50) SELECT x FROM c"
        assert queries.query(url, fifty, limit=10)[1:] == ([[i] for i in range(1, 11)], True)
        assert queries.query(url, fifty, limit=50)[2] is False

    # ---- opening ----

    def test_a_read_only_store_answers_and_refuses_to_write(self, store, run, url):
        reader = Store.open(url, read_only=True)
        assert reader.runs() == [run]
        with pytest.raises(Exception, match=r"(?i)read.?only"):
            reader.set_status(run.id, "running")
        assert store.run("first").status == "created"
