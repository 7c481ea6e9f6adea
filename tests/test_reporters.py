"""A run's log is one JSON object a line and event; several reporters are told the same."""

import json

from evokernel import devices
from evokernel.budget import Spent
from evokernel.measurement import Measurement, Outcome, Record
from evokernel.reporters import Journal, Progress, Reporter, Several
from evokernel.store import Store
from tests.toys import PROBLEM, candidate, record


def events(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_event_is_a_line_that_can_be_read_at_once(tmp_path):
    journal = Journal(tmp_path / "runs" / "log.jsonl")
    run = Store.open("sqlite://").create_run("mine", {}, PROBLEM, devices.cpu(), 0)
    journal.start(run, 2)
    journal.note("two\nlines")
    journal.evaluated(record(3, 1.5), 1.5, True)
    journal.evaluated(Record(candidate(4), Measurement(Outcome.CRASHED, "x" * 500), 4), None, False)
    journal.finish(Progress(Spent(evaluations=2), {}, None, {Outcome.PASSED: 1}, 0, 0, 0), "finished", "budget reached")
    started, note, good, bad, ended = events(tmp_path / "runs" / "log.jsonl")
    assert (started["event"], started["run"]) == ("started", "mine")
    assert note["text"] == "two\nlines"
    assert (good["candidate"], good["outcome"], good["score"], good["improved"]) == (3, "PASSED", 1.5, True)
    assert (bad["outcome"], len(bad["message"])) == ("CRASHED", 200)
    assert (ended["status"], ended["evaluations"], ended["outcomes"]) == ("finished", 2, {"PASSED": 1})
    assert all(event["time"].endswith("+00:00") for event in (started, note, good, bad, ended))


def test_a_later_sitting_adds_to_the_log(tmp_path):
    for text in ("first", "second"):
        journal = Journal(tmp_path / "log.jsonl")
        journal.note(text)
        journal.close()
    assert [event["text"] for event in events(tmp_path / "log.jsonl")] == ["first", "second"]


class Listening(Reporter):
    def __init__(self):
        self.heard = []

    def note(self, text):
        self.heard.append(("note", text))

    def update(self, progress):
        self.heard.append(("update", progress.in_flight))

    def start(self, run, slots):
        self.heard.append(("start", slots))

    def evaluated(self, record, score, improved):
        self.heard.append(("evaluated", record.id, score, improved))

    def finish(self, progress, status, reason):
        self.heard.append(("finish", status, reason))


def test_several_reporters_hear_all_of_it():
    listeners = [Listening(), Listening()]
    both, progress = Several(*listeners), Progress(Spent(), {}, None, {}, 0, 0, 7)
    both.start(None, 2)
    both.note("hello")
    both.evaluated(record(3, 1.5), 1.5, True)
    both.update(progress)
    both.finish(progress, "stopped", "interrupted")
    said = [
        ("start", 2),
        ("note", "hello"),
        ("evaluated", 3, 1.5, True),
        ("update", 7),
        ("finish", "stopped", "interrupted"),
    ]
    assert [listener.heard for listener in listeners] == [said, said]
