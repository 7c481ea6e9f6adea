"""Run campaigns against a server that fails in every way: `llm_lost_evaluations` and `llm_overspend_tokens`."""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

from benchmarks.record import Figure, write
from evokernel import assemble, devices
from evokernel.config import validate
from evokernel.evaluators import Job
from evokernel.evaluators.null import Null
from evokernel.loop import Campaign
from evokernel.measurement import Fidelity, Measurement
from evokernel.reporters import Silent
from evokernel.store import Store
from tests.llm.server import FAILURES, Answer, Body, Script, serving
from tests.toys import RIGHT

EVALUATIONS = 16
CAP_TOKENS = 40_000  # a few conversations, so that the cap is met in most cases
MOMENT_S = 0.25  # for those who think, before each made-up measurement
CALL = "    s = scores_of(q_, k_, scale, causal)"

FAULTS: dict[str, Answer] = {
    **{str(name): Answer("x", fault=name) for name in FAILURES},
    "cut stream": Answer("x" * 200, fault="cut"),
    "garbage": Answer("x", fault="garbage"),
    "html": Answer("x", fault="html"),
    "other json": Answer("x", fault="other json"),
    "hang up": Answer("x", fault="hang up"),
    "stall": Answer("x" * 200, fault="stall"),
    "drip": Answer("x", fault="drip"),
    "slow": Answer("Let me think.", slow_s=0.5),
    "no limit": Answer("x", fault="no limit"),
    "empty": Answer(""),
    "refusal": Answer(refusal="I would rather not."),
    "filter": Answer("Well", finish="content_filter"),
    "no usage": Answer("Let me think. " * 20, usage=False),
    "malformed call": Answer(calls=(("check", '{"parent": 1, "edits": '),)),
    "unknown tool": Answer(calls=(("shell", '{"command": "ls"}'),)),
    "nonsense": Answer("<<<<<<< SEARCH\nnowhere\n=======\nx\n>>>>>>> REPLACE\n"),
    "flood": Answer("y" * 400_000),
}


class Waiting(Null):
    """Makes measurements up, and gives those who think a moment before each."""

    campaign: Campaign

    def wait(self, timeout_s: float) -> list[tuple[Job, Measurement]]:
        self.campaign.desk.wait(MOMENT_S)
        return super().wait(timeout_s)


def good(number: int) -> Answer:
    """Edit the toy in a way of its own."""
    edit = f"    s = {number} * scores_of(q_, k_, scale / {number}, causal)"
    return Answer(f"IDEA: factor {number}\n<<<<<<< SEARCH\n{CALL}\n=======\n{edit}\n>>>>>>> REPLACE\n")


def script(fault: Answer, every: int) -> Script:
    """Fail in every, every second, ... answer."""
    turns, lock = itertools.count(), threading.Lock()

    def answered(body: Body) -> Answer:
        with lock:
            turn = next(turns)
        return fault if turn % every == 0 else good(turn + 2)

    return answered


def measured(fault: Answer, every: int) -> tuple[int, int, int]:
    """Run one campaign; returns evaluations lost, tokens over the cap by the server's own count, and its tokens."""
    with tempfile.TemporaryDirectory() as name, serving(script(fault, every)) as server:
        folder = Path(name)
        (folder / "toy.py").write_text(RIGHT)
        model = {"name": "test", "base_url": server.url, "retries": 1, "backoff": 0.001, "timeout": 0.6}
        data: dict[str, Any] = {
            "problem": {"dtype": "fp32", "workloads": {"grid": {"head_dim": 16, "seq": 64, "batch": 1, "heads": 2}}},
            "spaces": [str(folder / "toy.py")],
            "operators": {"mutate": {}, "rewrite": {"repairs": 1}, "agent": {"turns": 4, "repairs": 1}},
            "models": [model],
            "evaluator": {"type": "null"},
            "budget": {"evaluations": EVALUATIONS, "tokens": CAP_TOKENS},
            "store": f"sqlite:///{folder}/evokernel.db",
        }
        config = validate(data, "llm_faults")
        store = Store.open(config.store)
        run = store.create_run("faults", data, config.problem.problem(), devices.cpu(), 0)
        made = assemble.campaign(config, store, run, devices.cpu(), Silent())
        waiting = Waiting()
        waiting.campaign = made
        made.evaluator = waiting
        made.desk.open(made.begin, made.in_flight, lambda: made.stopping)
        status = made.execute()
        found = [r for r in store.records(run.id) if r.measurement.fidelity is not Fidelity.VERIFY]
        lost = EVALUATIONS - len(found) + len(store.pending(run.id)) + (status != "finished")
        # What the store says was spent must cover what the server gave out, or the next sitting would overspend.
        kept = store.spent(run.id).tokens
        return lost, max(0, server.tokens - CAP_TOKENS, server.tokens - kept), server.tokens


def main() -> None:
    os.environ.pop("OPENAI_API_KEY", None)
    lost, over, given = {}, {}, {}
    for (name, fault), every in itertools.product(FAULTS.items(), (1, 2)):
        case = f"{name}, {'always' if every == 1 else 'every second time'}"
        lost[case], over[case], given[case] = measured(fault, every)
        print(f"{case:32} lost {lost[case]}  overspent {over[case]}  tokens given {given[case]}", flush=True)
    note = f"{len(lost)} campaigns of {EVALUATIONS} evaluations, at most {CAP_TOKENS} tokens each; tokens by the server"
    write(
        "llm_faults.json",
        [
            Figure("llm_lost_evaluations", "evaluations", "= 0", "total", lost, note),
            Figure("llm_overspend_tokens", "tokens", "= 0", "total", over, note),
        ],
    )


if __name__ == "__main__":
    main()
