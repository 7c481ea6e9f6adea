"""A sweep measures every genome of its grid once and the best again, whenever it is killed; its landscape replays."""

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from evokernel import assemble, config, devices
from evokernel.candidate import load_genome
from evokernel.cli import app
from evokernel.errors import ConfigError, EvokernelError, SpaceError
from evokernel.evaluators.null import Null
from evokernel.landscape import Landscape
from evokernel.reporters import Silent
from evokernel.store import Store, queries
from evokernel.sweep import AGAIN, write_landscape
from tests.commands import environment
from tests.toys import RIGHT

ROOT = Path(__file__).parents[1]
GRID = {"block": [16, 32, 64], "rows": [1, 2, 4], "form": ["a", "b"], "only_a": [1, 2]}
# block >= 16 rows leaves 6 of 9; form "a" has two genomes of each, "b" one: 18, in each of two shape classes.
GENOMES = 36
KEYS = ("problem", "sweep", "evaluator", "store")
BEST = 1  # a twentieth of 18, rounded up


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "toy.py").write_text(RIGHT)
    return {
        "problem": {"dtype": "fp32", "workloads": {"grid": {"head_dim": 16, "seq": 64, "batch": 1, "heads": 2}}},
        "sweep": {"space": str(tmp_path / "toy.py"), "knobs": GRID},
        "evaluator": {"type": "null"},
        "store": f"sqlite:///{tmp_path}/evokernel.db",
    }


def load(settings):
    path = Path(settings["store"].removeprefix("sqlite:///")).parent / "sweep.yaml"
    path.write_text(yaml.safe_dump({key: settings[key] for key in KEYS}))
    return config.load_as(config.SweepConfig, path)


def sweep(settings):
    loaded = load(settings)
    problem = loaded.problem.problem()
    store = Store.open(loaded.store)
    known = store.runs()
    run = known[0] if known else store.create_run("sweep", settings, problem, devices.cpu(), 0)
    return assemble.sweep(loaded, assemble.sweep_body(loaded, problem), store, run, devices.cpu(), Silent())


def counts(made):
    return Counter((r.candidate.shape_class, r.candidate.genome.key) for r in made.store.records(made.run.id))


def test_every_genome_is_measured_and_the_best_twentieth_of_each_class_again(settings):
    made = sweep(settings)
    assert made.execute() == "finished"
    found = counts(made)
    assert len(found) == GENOMES
    assert sorted(found.values())[-3:] == [1, 1 + AGAIN, 1 + AGAIN]
    for name, number in (key for key, count in found.items() if count > 1):
        firsts = [ms[0].timings[0].speedup for k, ms in made.measured.items() if k[0] == name and ms[0].passed]
        assert made.measured[name, number][0].timings[0].speedup == max(firsts)


def test_failures_are_measurements_too(settings):
    made = sweep(settings)
    made.execute()
    assert made.outcomes["INCORRECT"] > 0
    assert sum(made.outcomes.values()) == GENOMES + 2 * BEST * AGAIN


class Dying(Null):
    """An evaluator whose driver is interrupted after some answers, as by a signal."""

    def __init__(self, answers, slots=2):
        super().__init__(slots=slots)
        self.answers = answers

    def wait(self, timeout_s):
        if self.answers == 0:
            raise KeyboardInterrupt
        self.answers -= 1
        return super().wait(timeout_s)


@pytest.mark.parametrize("answers", [0, 1, 20, GENOMES, GENOMES + 2])
def test_an_interrupted_sweep_ends_with_the_measurements_of_an_uninterrupted_one(settings, tmp_path, answers):
    interrupted = sweep(settings)
    interrupted.evaluator = Dying(answers)
    with pytest.raises(KeyboardInterrupt):
        interrupted.execute()
    assert sum(counts(interrupted).values()) == answers
    resumed = sweep(settings)
    assert resumed.execute() == "finished"
    whole = sweep({**settings, "store": f"sqlite:///{tmp_path}/whole.db"})
    whole.execute()
    assert counts(resumed) == counts(whole)


def test_a_stop_request_leaves_the_rest_for_later(settings):
    made = sweep(settings)
    made.evaluator.seconds = 10.0
    made.store.request_stop(made.run.id)
    assert made.execute() == "stopped"
    assert 0 < sum(counts(made).values()) < GENOMES
    made.store.clear_stop(made.run.id)
    assert sweep(settings).execute() == "finished"


def test_a_campaign_replays_the_landscape_on_the_space_that_lies_beside_it(settings, tmp_path):
    made = sweep(settings)
    made.execute()
    body = assemble.sweep_body(load(settings), made.problem)
    landscape = write_landscape(made.store, made.run, body, tmp_path / "grid.parquet")
    assert len(Landscape.load(tmp_path / "grid.parquet")) == len(landscape) == GENOMES + 2 * BEST * AGAIN
    assert load_genome(tmp_path / "grid.py").body == body
    data = {
        "problem": settings["problem"],
        "spaces": [str(tmp_path / "grid.py")],
        "operators": {"tune": {"sampler": "random"}, "mutate": {}},
        "evaluator": {"type": "replay", "landscape": str(tmp_path / "grid.parquet"), "workers": 2},
        "budget": {"evaluations": GENOMES, "verify_share": 0},
        "store": f"sqlite:///{tmp_path}/replay.db",
    }
    replayed = config.validate(data, "replay")
    store = Store.open(replayed.store)
    run = store.create_run("replay", data, made.problem, devices.cpu(), 0)
    campaign = assemble.campaign(replayed, store, run, devices.cpu(), Silent())
    campaign.execute()
    assert campaign.outcomes["REJECTED"] == 0
    assert campaign.outcomes["PASSED"] > 0


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"knobs": {"blok": [16]}}, ["sweep.knobs", "blok", "block, rows, form, only_a"]),
        ({"knobs": {"block": [17]}}, ["sweep.knobs", "block", "17", "16, 32, 64, 128"]),
        ({"knobs": {"rows": [True]}}, ["sweep.knobs", "rows", "True", "1, 2, 4"]),
        ({"knobs": {"block": [16, 16]}}, ["sweep.knobs", "block", "twice"]),
        ({"knobs": {"block": []}}, ["sweep.knobs.block", "[]"]),
        ({"knobs": {"block": 16, "rows": 4}}, ["sweep.knobs", "a block holds its rows"]),
        ({"space": "nope"}, ["sweep.space", "nope", "flash_forward_numba"]),
        ({"grid": {}}, ["sweep.grid", "space, knobs"]),
    ],
)
def test_a_grid_that_cannot_be_measured_is_refused_in_one_line(settings, section, words):
    with pytest.raises((ConfigError, SpaceError)) as error:
        sweep({**settings, "sweep": {**settings["sweep"], **section}})
    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)


def test_a_killed_sweep_of_real_kernels_goes_on_by_the_same_command(settings, tmp_path):
    (tmp_path / "real.yaml").write_text(
        yaml.safe_dump(
            {
                **settings,
                "problem": {"dtype": "fp32", "workloads": {"rows": [{"heads": 2, "seq": 64, "head_dim": 16}]}},
                "sweep": {**settings["sweep"], "knobs": {"block": [32, 64], "rows": [1, 2], "form": ["a", "b"]}},
                "evaluator": {"type": "local", "device": "cpu"},
            }
        )
    )

    def start():
        return subprocess.Popen(
            [sys.executable, "-m", "evokernel", "sweep", "--config", "real.yaml"],
            cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def measured():
        try:
            return queries.query(settings["store"], "SELECT candidate_id FROM measurement")[1]
        except EvokernelError:
            return []  # no database yet, or no table

    driver = start()
    while len(measured()) < 2 and driver.poll() is None:
        time.sleep(0.05)
    driver.kill()
    driver.wait()
    assert 2 <= len(measured()) < 8 + AGAIN
    driver = start()
    output, _ = driver.communicate(timeout=120)
    assert driver.returncode == 0, output.decode()
    assert sorted(Counter(number for (number,) in measured()).values()) == [1] * 7 + [1 + AGAIN]
    assert len(Landscape.load(tmp_path / "runs/real/landscape.parquet")) == 8 + AGAIN
    events = [json.loads(line)["event"] for line in (tmp_path / "runs/real/log.jsonl").read_text().splitlines()]
    assert (events.count("started"), events[-1]) == (2, "ended")


def test_the_command_refuses_what_would_mix_two_sweeps(settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    load(settings)
    runner = CliRunner()

    def run(*arguments):
        return runner.invoke(app, ["sweep", "--config", "sweep.yaml", *arguments])

    assert "wrote runs/sweep/landscape.parquet" in run().output
    for arguments, words in (
        (["-o", "sweep.knobs.block=[16]"], ["run sweep exists", "another sweep", "--name"]),
        (["--output", "here.csv"], ["--output", "here.csv", ".parquet"]),
        (["--name", "../x"], ["--name", "../x"]),
    ):
        error = run(*arguments).exception
        assert isinstance(error, EvokernelError)
        assert all(word in str(error) for word in words)
    (tmp_path / "toy.py").write_text(RIGHT + "\n# changed\n")
    assert "another template" in str(run().exception)
    resumed = runner.invoke(app, ["resume", "sweep", "--db", settings["store"]]).exception
    assert "evokernel sweep" in str(resumed)


def test_the_shipped_sweep_has_a_thousand_genomes_or_more():
    loaded = config.load_as(config.SweepConfig, ROOT / "benchmarks/landscapes/cpu_sweep.yaml")
    problem = loaded.problem.problem()
    body = assemble.sweep_body(loaded, problem)
    context = problem.context(problem.shape_classes()[0], devices.cpu().context())
    assert sum(1 for _ in body.space.enumerate(context)) >= 1000
