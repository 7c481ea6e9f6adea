"""Commands over several runs, and those that look after them: on real runs, with bad input refused in one line."""

import json

import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from evokernel import run_folder
from evokernel.cli import app
from evokernel.errors import EvokernelError
from evokernel.store import Store
from tests.store.test_store import make_first_schema
from tests.toys import RIGHT

SETTINGS = {
    "problem": {"dtype": "fp32", "workloads": {"grid": {"head_dim": 16, "seq": 64, "batch": 1, "heads": 2}}},
    "spaces": ["toy.py"],
    "operators": {"mutate": {}},
    "evaluator": {"type": "null"},
    "budget": {"evaluations": 20},
    "store": "sqlite:///evokernel.db",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two repeats of one configuration and one of another."""
    folder = tmp_path_factory.mktemp("experiments")
    (folder / "toy.py").write_text(RIGHT)
    (folder / "toy.yaml").write_text(yaml.safe_dump(SETTINGS))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for arguments in (
            ["--name", "mutants", "--repeats", "2"],
            ["--name", "randoms", "-o", "operators={random: {}}"],
            ["--name", "warm", "--warm-start", "mutants-1"],
        ):
            done = CliRunner().invoke(app, ["run", "--config", "toy.yaml", *arguments])
            assert done.exit_code == 0, done.output
    return folder


@pytest.fixture
def evokernel(made, monkeypatch):
    monkeypatch.chdir(made)
    monkeypatch.setenv("EVOKERNEL_DB", SETTINGS["store"])

    def run(*arguments):
        done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    return run


def refusal(*arguments):
    error = CliRunner().invoke(app, list(arguments)).exception
    assert isinstance(error, EvokernelError), error
    assert "\n" not in str(error)
    return str(error)


def test_repeats_differ_in_their_seeds_alone(evokernel):
    runs = {run.name: run for run in Store.open(SETTINGS["store"]).runs()}
    assert list(runs) == ["mutants-1", "mutants-2", "randoms", "warm"]
    one, two = runs["mutants-1"], runs["mutants-2"]
    assert (one.seed, two.seed) == (0, 1)
    assert {**one.config, "seed": 1} == two.config
    assert runs["warm"].config["warm_start"] == "mutants-1"


def test_compare_prints_a_table_and_json_and_draws_a_figure(evokernel, made):
    text = evokernel("compare", "mutants", "randoms", "-o", "curves.svg")
    assert "within 20 evaluations" in text
    assert (made / "curves.svg").read_bytes().startswith(b"<?xml")
    rows = json.loads(evokernel("compare", "mutants", "randoms", "--json"))["rows"]
    assert {(row["label"], row["repeats"]) for row in rows} == {("mutants", 2), ("randoms", 1)}


def test_dataset_writes_a_folder_of_tables(evokernel, made):
    assert "data/measurements.parquet" in evokernel("dataset", "randoms", "-o", "data")
    assert set(pq.read_table(made / "data/measurements.parquet")["run"].to_pylist()) == {"randoms"}


def test_status_names_a_dead_driver_and_how_to_go_on(evokernel):
    store = Store.open(SETTINGS["store"])
    store.set_status(store.run("randoms").id, "running")
    try:
        assert "evokernel resume randoms" in evokernel("status")
        with run_folder.driving("randoms"):
            drivers = {row["name"]: row["driver"] for row in json.loads(evokernel("status", "--json"))}
        assert drivers["randoms"].startswith("alive")
        assert drivers["warm"] == "-"
    finally:
        store.set_status(store.run("randoms").id, "finished")


def test_a_run_that_is_driven_is_not_driven_twice(evokernel):
    with run_folder.driving("randoms"):
        assert "being driven by process" in refusal("resume", "randoms")


def test_gc_says_what_it_removed_and_with_dry_run_what_it_would(evokernel, made):
    (made / run_folder.COMPILE_CACHE / "kernel").mkdir(parents=True)
    (made / run_folder.COMPILE_CACHE / "kernel" / "binary").write_bytes(bytes(10_000))
    assert "would remove runs/.cache/compile/kernel" in evokernel("gc", "--cache-cap", "1K", "--dry-run")
    assert (made / run_folder.COMPILE_CACHE / "kernel").exists()
    assert "removed runs/.cache/compile/kernel" in evokernel("gc", "--cache-cap", "1K")
    assert not (made / run_folder.COMPILE_CACHE / "kernel").exists()
    assert (made / "runs/warm/log.jsonl").exists()


def test_db_upgrade_brings_an_old_database_to_the_newest_schema(evokernel, made):
    assert "is the newest" in evokernel("db", "upgrade")
    make_first_schema("sqlite:///old.db").close()
    assert "schema 0001 upgraded to" in evokernel("db", "upgrade", "--db", "sqlite:///old.db")
    assert "is the newest" in evokernel("db", "upgrade", "--db", "sqlite:///old.db")


BAD = {
    "an unknown run to compare": (["compare", "mutant"], ["mutant", "mutants-1"]),
    "an unknown budget": (["compare", "mutants", "--over", "usd"], ["--over", "usd", "seconds"]),
    "an unknown format": (["compare", "mutants", "-o", "x.gif"], ["--output", "x.gif", ".svg"]),
    "an unknown run in a dataset": (["dataset", "nobody"], ["nobody", "mutants-1"]),
    "a file as the dataset's folder": (["dataset", "-o", "toy.py"], ["--output", "toy.py", "folder"]),
    "an unknown run to start from": (["run", "-c", "toy.yaml", "--warm-start", "nobody"], ["nobody", "mutants-1"]),
    "repeats that exist": (["run", "-c", "toy.yaml", "--name", "mutants", "--repeats", "3"], ["mutants-1", "--name"]),
    "a size without meaning": (["gc", "--cache-cap", "much"], ["--cache-cap", "much", "500M"]),
    "a missing database": (["status", "--db", "sqlite:///none.db"], ["none.db", "evokernel run"]),
    "a missing database to upgrade": (["db", "upgrade", "--db", "sqlite:///none.db"], ["none.db"]),
    "a missing sweep": (["sweep", "--config", "none.yaml"], ["none.yaml"]),
    "a campaign as a sweep": (["sweep", "--config", "toy.yaml"], ["toy.yaml", "sweep", "missing"]),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_in_one_line(evokernel, what):
    arguments, words = BAD[what]
    said = refusal(*arguments)
    assert all(word in said for word in words), said
