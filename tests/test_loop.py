"""A campaign ends within its budget, survives being killed at any moment, and never measures twice."""

import random
import subprocess
import sys
import time

import pytest
import yaml

from evokernel import assemble, devices
from evokernel.config import validate
from evokernel.errors import StoreError
from evokernel.evaluators.null import Null
from evokernel.measurement import Fidelity
from evokernel.reporters import Silent
from evokernel.store import Store, queries
from tests.commands import environment
from tests.toys import RIGHT


@pytest.fixture
def toy(tmp_path):
    path = tmp_path / "toy.py"
    path.write_text(RIGHT)
    return path


@pytest.fixture
def settings(tmp_path, toy):
    return {
        "problem": {
            "dtype": "fp32",
            "workloads": {"grid": {"head_dim": 16, "seq": [64, 96], "batch": 1, "heads": 2}},
            "held_out": {"rows": [{"heads": 2, "seq": 50, "head_dim": 16}]},
        },
        "spaces": [str(toy)],
        "operators": {"tune": {"sampler": "random"}, "mutate": {}, "cross": {}},
        "archive": {"type": "elites", "axes": ["block"]},
        "evaluator": {"type": "null"},
        "budget": {"evaluations": 30},
        "store": f"sqlite:///{tmp_path}/evokernel.db",
    }


def campaign(settings, name="run"):
    config = validate(settings, "test")
    store = Store.open(config.store)
    known = [r for r in store.runs() if r.name == name]
    run = known[0] if known else store.create_run(name, settings, config.problem.problem(), devices.cpu(), config.seed)
    return assemble.campaign(config, store, run, devices.cpu(), Silent())


def genomes(made):
    return [r.candidate.genome.key + r.candidate.shape_class for r in made.store.records(made.run.id)]


def test_a_campaign_spends_its_evaluations_and_verifies_its_champions(settings):
    made = campaign(settings)
    assert made.execute() == "finished"
    records = list(made.store.records(made.run.id))
    assert sum(r.measurement.fidelity is not Fidelity.VERIFY for r in records) == 30
    verified = {r.candidate.shape_class for r in records if r.measurement.fidelity is Fidelity.VERIFY}
    assert verified == {"d16_full_fp32_short", "d16_causal_fp32_short"}
    assert any(t.held_out for r in records for t in r.measurement.timings)


def test_no_genome_is_proposed_twice_in_a_class(settings):
    made = campaign(settings)
    made.execute()
    keys = [c.genome.key + c.shape_class for c in made.store._candidates()]
    assert len(keys) == len(set(keys))


def test_a_wall_budget_ends_a_campaign_on_time(settings):
    made = campaign({**settings, "budget": {"wall": 20, "verify_share": 0.2}})
    made.execute()
    assert made.spent.wall_s <= 20 + 1


def test_a_small_space_is_searched_to_its_end(settings):
    made = campaign({**settings, "budget": {"evaluations": 10_000}})
    assert made.execute() == "finished"
    assert "every genome" in made.stopping


def test_the_same_seed_gives_the_same_lineage(settings, tmp_path):
    lineages = []
    for number in range(2):
        made = campaign({**settings, "store": f"sqlite:///{tmp_path}/{number}.db"})
        made.execute()
        lineages.append([(c.genome.key, c.parents, c.operator) for c in made.store._candidates()])
    assert lineages[0] == lineages[1]


def test_another_seed_gives_another_lineage(settings, tmp_path):
    first, second = (campaign({**settings, "seed": s, "store": f"sqlite:///{tmp_path}/{s}.db"}) for s in (0, 1))
    first.execute()
    second.execute()
    assert genomes(first) != genomes(second)


class Interrupting(Null):
    """Stops the campaign after a number of measurements, as Ctrl-C would."""

    def __init__(self, after, made):
        super().__init__()
        self.after, self.made = after, made

    def wait(self, timeout_s):
        self.after -= 1
        if self.after == 0:
            self.made.stop("interrupted")
        return super().wait(timeout_s)


def test_a_stopped_campaign_goes_on_as_if_it_had_not_been_stopped(settings, tmp_path):
    whole = campaign({**settings, "store": f"sqlite:///{tmp_path}/whole.db"})
    whole.execute()
    made = campaign(settings)
    made.evaluator = Interrupting(12, made)
    assert made.execute() == "stopped"
    again = campaign(settings)
    assert again.execute() == "finished"
    assert len(set(genomes(again))) == len(set(genomes(whole)))
    assert len(genomes(again)) == len(genomes(whole))
    assert made.store.run("run").status == "finished"


def test_a_request_from_another_process_drains_the_run(settings):
    made = campaign(settings)
    made.store.request_stop(made.run.id)
    assert made.execute() == "stopped"
    assert made.store.pending(made.run.id) == []


def test_a_run_that_fails_says_so_and_keeps_what_it_measured(settings):
    made = campaign(settings)

    class Broken(Null):
        def wait(self, timeout_s):
            if self.clock > 3:
                raise OSError("the disk is gone")
            return super().wait(timeout_s)

    made.evaluator = Broken()
    with pytest.raises(OSError, match="disk"):
        made.execute()
    assert made.store.run("run").status == "failed"
    assert len(genomes(made)) > 0


def test_sigkill_at_ten_random_moments_loses_and_repeats_no_measurement(settings, tmp_path):
    """Real kernels in real processes: kill the driver, resume, and count."""
    real = {**settings, "evaluator": {"type": "local", "device": "cpu"}, "budget": {"evaluations": 24}}
    config = tmp_path / "campaign.yaml"
    config.write_text(yaml.safe_dump(real))
    command = [sys.executable, "-m", "evokernel"]
    ours = environment(EVOKERNEL_DB=real["store"])
    rng = random.Random(5)

    def start(*arguments):
        return subprocess.Popen(
            [*command, *arguments], cwd=tmp_path, env=ours, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    driver = start("run", "--config", str(config), "--name", "killed")
    kills = 0
    while kills < 10:
        time.sleep(rng.uniform(1.0, 2.5))
        if driver.poll() is not None:
            break
        driver.kill()
        driver.wait()
        kills += 1
        driver = start("resume", "killed") if (tmp_path / "evokernel.db").exists() and named(real) else start(
            "run", "--config", str(config), "--name", "killed"
        )  # fmt: skip
    output, _ = driver.communicate(timeout=120)
    assert driver.returncode == 0, output.decode()
    _, rows, _ = queries.query(
        real["store"],
        "SELECT candidate_id, fidelity, COUNT(*) FROM measurement WHERE fidelity = 'full' "
        "GROUP BY candidate_id, fidelity",
    )
    assert sum(count for _, _, count in rows) == 24
    # A leader may be measured twice on purpose; nothing more often.
    assert max(count for _, _, count in rows) <= 2
    assert kills == 10
    outcomes = queries.query(real["store"], "SELECT DISTINCT outcome FROM measurement")[1]
    assert outcomes == [["PASSED"]]


def named(real):
    try:
        return Store.open(real["store"], create=False).run("killed")
    except StoreError:
        return None
