"""The programs in docs/extending.md do what the page says, taken from the page itself."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from evokernel.store import Store
from tests.contracts.operator_contract import OperatorContract, plan
from tests.toys import record

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text()


def program(name: str) -> str:
    """Return the code block that follows a line with nothing but the file's name."""
    return re.search(rf"^`{re.escape(name)}`:\n\n```\w+\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[1]


@pytest.fixture(scope="module")
def anneal():
    names: dict = {"__name__": "my_lab.anneal"}
    exec(program("my_lab/anneal.py"), names)
    return names["Anneal"]


class TestAnneal(OperatorContract):
    @pytest.fixture
    def operator(self, anneal):
        return anneal()

    def test_it_is_thirty_lines_of_code(self):
        assert len([line for line in program("my_lab/anneal.py").splitlines() if line.strip()]) <= 30

    def test_its_steps_become_fewer_as_it_learns(self, anneal):
        operator = anneal(steps=3, cooling=0.1)
        parent = record(1, 1.5, block=64, rows=2)
        for number in range(2, 5):
            operator.learn(record(number, 1.0), 1.0)
        around = parent.candidate.genome.body.space.neighbours(parent.candidate.genome.knobs, plan().context)
        assert all(operator.propose(plan(seed, (parent,))).genome.knobs in around for seed in range(20))

    def test_a_setting_without_meaning_is_refused(self, anneal):
        with pytest.raises(ValueError, match="cooling is 2"):
            anneal(cooling=2)


@pytest.fixture(scope="module")
def evokernel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mine")
    for name in ("my_lab/anneal.py", "rows.py", "mine.yaml"):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(program(name))
    paths = os.pathsep.join([str(ROOT), str(folder), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths}

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "evokernel", *arguments],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run.folder = folder
    return run


def test_the_template_is_right_in_both_directions(evokernel):
    causal = ["--config", "mine.yaml", "-o", "problem.workloads.grid.causal=true"]
    assert "d16_causal_fp32_short: PASSED" in evokernel("check", "rows.py", *causal)
    defaults = '"kv_direction": "natural", "parallel": True}'
    source = program("rows.py").replace(defaults, '"kv_direction": "reverse", "parallel": False}')
    (evokernel.folder / "reversed.py").write_text(source)
    assert source.count("reverse") > program("rows.py").count("reverse")
    assert "d16_full_fp32_short: PASSED" in evokernel("check", "reversed.py", "--config", "mine.yaml")


def test_a_campaign_searches_the_template_with_the_operator(evokernel):
    budget = yaml.safe_load(program("mine.yaml"))["budget"]["evaluations"]
    evokernel("run", "--config", "mine.yaml", "--name", "mine", "-o", "evaluator={type: 'null'}")
    store = Store.open(f"sqlite:///{evokernel.folder}/runs/evokernel.db", create=False)
    candidates = {r.candidate.id: r.candidate for r in store.records(store.run("mine").id)}
    assert len(candidates) == budget
    assert {"anneal", "mutate"} <= {c.operator for c in candidates.values()}
    assert all(c.parents for c in candidates.values() if c.operator == "anneal")
