"""A warm start proposes another run's best first and teaches the operators what it measured."""

import pytest

from evokernel import assemble, devices
from evokernel.config import validate
from evokernel.errors import StoreError
from evokernel.operators.tune import Tune
from evokernel.reporters import Silent
from evokernel.store import Store
from evokernel.warm_start import BEST, experience
from tests.test_sweep import Dying, sweep
from tests.toys import RIGHT


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "toy.py").write_text(RIGHT)
    return {
        "problem": {"dtype": "fp32", "workloads": {"grid": {"head_dim": 16, "seq": 64, "batch": 1, "heads": 2}}},
        "spaces": [str(tmp_path / "toy.py")],
        "operators": {"tune": {"sampler": "tpe"}},
        "evaluator": {"type": "null"},
        "budget": {"evaluations": 30, "verify_share": 0},
        "store": f"sqlite:///{tmp_path}/evokernel.db",
    }


def campaign(settings, name, **changes):
    config = validate({**settings, **changes}, "test")
    store = Store.open(config.store)
    known = [r for r in store.runs() if r.name == name]
    problem = config.problem.problem()
    run = known[0] if known else store.create_run(name, {}, problem, devices.cpu(), config.seed)
    return assemble.campaign(config, store, run, devices.cpu(), Silent())


@pytest.fixture
def earlier(settings):
    made = campaign(settings, "earlier")
    made.execute()
    return made


def test_the_best_of_the_earlier_run_are_measured_first(settings, earlier):
    found = campaign(settings, "warm", warm_start="earlier", budget={"evaluations": 2 * BEST})
    found.execute()
    for name, shape_class in found.classes.items():
        best = [e.record.candidate.genome.key for e in earlier.search.leaders(shape_class, BEST)]
        scores = [e.score for e in earlier.search.leaders(shape_class, BEST)]
        first = [r.candidate for r in found.store.records(found.run.id) if r.candidate.shape_class == name]
        assert {c.operator for c in first[:BEST]} == {"seed"}
        if len(set(scores)) == BEST:  # equals may change places
            assert [c.genome.key for c in first[:BEST]] == best
        assert found.search.best(shape_class).score == pytest.approx(scores[0])


def test_the_tuner_begins_with_the_earlier_runs_records_failures_included(settings, earlier):
    found = campaign(settings, "warm", warm_start="earlier")
    (tune,) = (o for o, _ in found.search.operators if isinstance(o, Tune))
    (before,) = (o for o, _ in earlier.search.operators if isinstance(o, Tune))
    assert {key: len(study.told) for key, study in tune.studies.items()} == {
        key: len(study.told) for key, study in before.studies.items()
    }
    assert 0.0 in {value for study in tune.studies.values() for _, value in study.told}


def test_a_resumed_warm_start_goes_on_as_it_would_have(settings, earlier):
    def keys(made):
        return [r.candidate.genome.key for r in made.store.records(made.run.id)]

    settings["evaluator"]["slots"] = 1  # whose order of completion does not depend on when it was interrupted
    whole = campaign(settings, "whole", warm_start="earlier")
    whole.execute()
    interrupted = campaign(settings, "parts", warm_start="earlier")
    interrupted.evaluator = Dying(13, slots=1)
    with pytest.raises(KeyboardInterrupt):
        interrupted.execute()
    resumed = campaign(settings, "parts", warm_start="earlier")
    resumed.execute()
    assert keys(resumed) == keys(whole)


def test_a_sweep_of_a_part_of_the_space_warms_a_search_of_the_whole(settings):
    grid = {"block": [16, 32, 64], "rows": [1, 2], "form": ["a", "b"]}
    swept = sweep({**settings, "sweep": {"space": settings["spaces"][0], "knobs": grid}})
    swept.execute()
    found = campaign(settings, "warm", warm_start="sweep", budget={"evaluations": 4 * BEST})
    found.execute()
    (body,) = {r.candidate.genome.body.digest for r in found.store.records(found.run.id)}
    assert body != swept.grid[0][1].body.digest
    for name, (best, _) in swept.best.items():
        first = next(r.candidate for r in found.store.records(found.run.id) if r.candidate.shape_class == name)
        assert first.genome.knobs == swept.store.candidate(best).genome.knobs


def test_a_run_that_knows_nothing_of_these_classes_is_refused(settings, earlier):
    other = {"dtype": "fp32", "workloads": {"grid": {"head_dim": 32, "seq": 64, "batch": 1, "heads": 2}}}
    problem = validate({**settings, "problem": other}, "test").problem.problem()
    with pytest.raises(StoreError, match=r"warm_start is 'earlier'.*d32_full.*d16_full"):
        experience(earlier.store, "earlier", problem)
    with pytest.raises(StoreError, match="no run named 'late'; runs: earlier"):
        experience(earlier.store, "late", problem)
