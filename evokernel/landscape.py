"""Recorded landscapes: what devices said about many genomes, one row per genome and workload, in Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from evokernel.errors import EvokernelError
from evokernel.measurement import Fidelity, Measurement, Outcome, Record, Timing

# A failure has one row, without a workload. Beside these, each knob has a column knob_<name>: for people and plots.
COLUMNS = pa.schema(
    [
        ("measurement", pa.int64()),  # rows of one measurement share it
        ("genome", pa.string()),
        ("body", pa.string()),
        ("template", pa.string()),
        ("shape_class", pa.string()),
        ("knobs", pa.string()),  # JSON
        ("outcome", pa.string()),
        ("message", pa.string()),
        ("fidelity", pa.string()),
        ("workload", pa.string()),
        ("held_out", pa.bool_()),
        ("latency_us", pa.float64()),
        ("baseline_us", pa.float64()),
        ("baseline", pa.string()),
        ("samples_us", pa.list_(pa.float64())),
        ("baseline_samples_us", pa.list_(pa.float64())),
        ("errors", pa.string()),  # JSON
        ("resources", pa.string()),  # JSON
        ("seconds", pa.float64()),
        ("device_seconds", pa.float64()),
        ("device", pa.string()),
        ("versions", pa.string()),  # JSON
    ]
)


class LandscapeError(EvokernelError):
    """A file that holds no landscape."""


class Landscape:
    """Measurements by genome and shape class, in the order in which they were recorded."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.found: dict[tuple[str, str], list[Measurement]] = {}
        self.count = 0

    def append(self, record: Record) -> None:
        """Add one measurement of one candidate."""
        candidate, measurement = record.candidate, record.measurement
        genome = candidate.genome
        environment = measurement.environment
        common = {
            "measurement": self.count,
            "genome": genome.key,
            "body": genome.body.digest,
            "template": Path(genome.body.where).stem,
            "shape_class": candidate.shape_class,
            "knobs": json.dumps(dict(genome.knobs)),
            "outcome": measurement.outcome.value,
            "message": measurement.message,
            "fidelity": measurement.fidelity.value,
            "errors": json.dumps(dict(measurement.errors)),
            "resources": json.dumps(dict(measurement.resources)),
            "seconds": measurement.seconds,
            "device_seconds": measurement.device_seconds,
            "device": str(environment.get("device", "")),
            "versions": json.dumps(environment.get("versions", {}), sort_keys=True),
            **{f"knob_{name}": value for name, value in genome.knobs.items()},
        }
        self.rows += [{**common, **_timing_row(timing)} for timing in measurement.timings] or [common]
        self._index(candidate.genome.key, candidate.shape_class, measurement)

    def _index(self, genome: str, shape_class: str, measurement: Measurement) -> None:
        self.found.setdefault((genome, shape_class), []).append(measurement)
        self.count += 1

    def lookup(self, genome: str, shape_class: str) -> list[Measurement]:
        """Return what was recorded of a genome (its key) in a shape class: nothing, once, or several times."""
        return list(self.found.get((genome, shape_class), []))

    def __len__(self) -> int:
        return self.count

    def save(self, path: Path) -> None:
        knobs = sorted({name for row in self.rows for name in row if name.startswith("knob_")})
        fields = [pa.field(name, _type(row.get(name) for row in self.rows)) for name in knobs]
        schema = pa.schema([*COLUMNS, *fields])
        text = [field.name for field in fields if field.type == pa.string()]
        rows = [{**row, **{name: str(row[name]) for name in text if name in row}} for row in self.rows]
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema), path, compression="zstd")

    @classmethod
    def load(cls, path: Path) -> Landscape:
        """Read a landscape, or raise LandscapeError in one line."""
        if not path.is_file():
            raise LandscapeError(f"{path}: no such file")
        try:
            table = pq.read_table(path)
        except (OSError, pa.ArrowException) as error:
            raise LandscapeError(f"{path}: {str(error).splitlines()[0]}") from None
        if missing := [name for name in COLUMNS.names if name not in table.column_names]:
            raise LandscapeError(f"{path}: no column {missing[0]!r}; this is no landscape")
        landscape = cls()
        groups: dict[int, list[dict[str, Any]]] = {}
        for row in table.to_pylist():
            # Columns of other templates' knobs are empty in this row.
            kept = {name: value for name, value in row.items() if value is not None or not name.startswith("knob_")}
            groups.setdefault(row["measurement"], []).append(kept)
        for number, rows in enumerate(groups.values()):
            landscape.rows += [{**row, "measurement": number} for row in rows]
            landscape._index(rows[0]["genome"], rows[0]["shape_class"], _measurement(rows))
        return landscape


def write_parquet(rows: list[dict[str, Any]], path: Path) -> None:
    """Write rows of equal keys as they are; the types are those of the values, and no rows make an empty file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path, compression="zstd")


def _timing_row(timing: Timing) -> dict[str, Any]:
    return {
        "workload": timing.workload,
        "held_out": timing.held_out,
        "latency_us": timing.latency_us,
        "baseline_us": timing.baseline_us,
        "baseline": timing.baseline,
        "samples_us": list(timing.samples_us),
        "baseline_samples_us": list(timing.baseline_samples_us),
    }


def _measurement(rows: list[Mapping[str, Any]] | list[dict[str, Any]]) -> Measurement:
    first = rows[0]
    return Measurement(
        Outcome(first["outcome"]),
        first["message"],
        Fidelity(first["fidelity"]),
        tuple(
            Timing(
                row["workload"],
                tuple(row["samples_us"]),
                row["baseline"],
                tuple(row["baseline_samples_us"]),
                row["held_out"],
            )
            for row in rows
            if row["workload"] is not None
        ),
        json.loads(first["errors"]),
        json.loads(first["resources"]),
        {"device": first["device"], "versions": json.loads(first["versions"])},
        first["seconds"],
        first["device_seconds"],
    )


def _type(values: Iterable[Any]) -> pa.DataType:
    """Return the column type of one knob; templates may give one name values of several kinds: then text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return pa.bool_()
    if kinds == {int}:
        return pa.int64()
    if kinds <= {int, float}:
        return pa.float64()
    return pa.string()
