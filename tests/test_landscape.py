"""A landscape keeps measurements as they were, through a file and back."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evokernel.candidate import Body, Candidate, Genome
from evokernel.landscape import Landscape, LandscapeError
from evokernel.measurement import Fidelity, Measurement, Outcome, Record
from tests.toys import CLASS, RIGHT, candidate, genome, passed, record, timing

FULL = Measurement(
    Outcome.PASSED,
    fidelity=Fidelity.VERIFY,
    timings=(timing(1.5), timing(1.2, "unseen", held_out=True)),
    errors={"w/random": 0.25},
    resources={"registers": 128},
    environment={"device": "a device", "versions": {"torch": "2.13.0"}},
    seconds=3.5,
    device_seconds=1.25,
)


def test_what_was_recorded_is_found_by_genome_and_shape_class():
    landscape = Landscape()
    landscape.append(record(1, 1.5, block=32))
    key = genome(block=32).key
    assert [m.passed for m in landscape.lookup(key, CLASS.name)] == [True]
    assert landscape.lookup(key, "another_class") == []
    assert landscape.lookup(genome(block=128).key, CLASS.name) == []


def test_a_measurement_survives_the_file(tmp_path):
    landscape = Landscape()
    landscape.append(Record(candidate(1), FULL))
    landscape.save(tmp_path / "deep" / "toy.parquet")
    (found,) = Landscape.load(tmp_path / "deep" / "toy.parquet").lookup(genome().key, CLASS.name)
    assert found == FULL


def test_failures_are_kept_with_their_message(tmp_path):
    landscape = Landscape()
    landscape.append(Record(candidate(1), Measurement(Outcome.COMPILE_ERROR, "line 3: no", seconds=2.0)))
    landscape.save(tmp_path / "toy.parquet")
    (found,) = Landscape.load(tmp_path / "toy.parquet").lookup(genome().key, CLASS.name)
    assert (found.outcome, found.message, found.seconds, found.timings) == (
        Outcome.COMPILE_ERROR,
        "line 3: no",
        2.0,
        (),
    )


def test_measurements_of_one_genome_keep_their_order(tmp_path):
    landscape = Landscape()
    for speedup in (1.5, 1.1, 1.3):
        landscape.append(Record(candidate(1), passed(speedup)))
    landscape.save(tmp_path / "toy.parquet")
    found = Landscape.load(tmp_path / "toy.parquet").lookup(genome().key, CLASS.name)
    assert [m.timings[0].speedup for m in found] == pytest.approx([1.5, 1.1, 1.3])


def test_a_loaded_landscape_may_be_added_to_and_saved_again(tmp_path):
    path = tmp_path / "toy.parquet"
    for number, block in enumerate((16, 32, 64), 1):
        landscape = Landscape.load(path) if path.exists() else Landscape()
        landscape.append(record(number, 1.0, block=block, rows=1))
        landscape.save(path)
    assert len(Landscape.load(path)) == 3


def test_rows_are_there_for_people_one_per_workload_with_a_column_per_knob(tmp_path):
    landscape = Landscape()
    landscape.append(Record(candidate(1, block=128), FULL))
    landscape.append(record(2, None, block=16, rows=1))
    landscape.save(tmp_path / "toy.parquet")
    table = pq.read_table(tmp_path / "toy.parquet")
    assert table["knob_block"].to_pylist() == [128, 128, 16]
    assert table["workload"].to_pylist()[1:] == ["unseen", None]
    assert table["template"].to_pylist() == ["toy"] * 3
    assert table["latency_us"].to_pylist()[0] == 100.0


def test_templates_whose_knobs_differ_share_a_file(tmp_path):
    other = Body(RIGHT.replace('"form": ["a", "b"]', '"form": [1, 2]').replace('"form": "a"', '"form": 1'), "other")
    landscape = Landscape()
    landscape.append(record(1, 1.0))
    landscape.append(Record(Candidate(Genome(other, other.defaults), CLASS.name, "seed", id=2), passed(2.0)))
    landscape.save(tmp_path / "toy.parquet")
    assert pq.read_table(tmp_path / "toy.parquet")["knob_form"].to_pylist() == ["a", "1"]
    assert len(Landscape.load(tmp_path / "toy.parquet")) == 2


def test_a_file_that_is_no_landscape_is_said_in_one_line(tmp_path):
    text, table = tmp_path / "a.parquet", tmp_path / "b.parquet"
    text.write_text("nothing")
    pq.write_table(pa.table({"a": [1]}), table)
    for path in (text, table, tmp_path / "absent.parquet"):
        with pytest.raises(LandscapeError) as error:
            Landscape.load(path)
        assert path.name in str(error.value)
        assert "\n" not in str(error.value)
