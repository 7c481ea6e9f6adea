"""Turn measurements into rows that any database takes, and rows back into the same measurements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from evokernel.measurement import Fidelity, Measurement, Outcome, Timing
from evokernel.store.tables import MeasurementRow, TimingRow


def text(value: str) -> str:
    """Replace what no database keeps: NUL (PostgreSQL) and lone surrogates (neither); candidates write both."""
    return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def plain(value: Any) -> Any:
    """Return a value as strict JSON can hold it: PostgreSQL takes neither NaN nor Infinity."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {text(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    return value


def measurement_row(run_id: int, candidate_id: int, measured: Measurement, created_at: datetime) -> MeasurementRow:
    return MeasurementRow(
        candidate_id=candidate_id,
        run_id=run_id,
        outcome=measured.outcome.value,
        message=text(measured.message),
        fidelity=measured.fidelity.value,
        errors=plain(measured.errors),
        resources=plain(measured.resources),
        environment=plain(measured.environment),
        seconds=measured.seconds,
        device_seconds=measured.device_seconds,
        worker=text(measured.worker),
        created_at=created_at,
        reuse_key=measured.environment.get("reuse_key"),
    )


def timing_row(measurement_id: int, position: int, timing: Timing, weight: float) -> TimingRow:
    return TimingRow(
        measurement_id=measurement_id,
        position=position,
        workload=timing.workload,
        held_out=timing.held_out,
        weight=weight,
        latency_us=timing.latency_us,
        spread=timing.spread,
        baseline=timing.baseline,
        baseline_us=timing.baseline_us,
        speedup=timing.speedup,
        samples_us=list(timing.samples_us),  # unrounded: a resumed search must be told what the first one was
        baseline_samples_us=list(timing.baseline_samples_us),
    )


def timing(row: TimingRow) -> Timing:
    return Timing(row.workload, tuple(row.samples_us), row.baseline, tuple(row.baseline_samples_us), row.held_out)


def measurement(row: MeasurementRow, timings: Sequence[Timing]) -> Measurement:
    return Measurement(
        Outcome(row.outcome),
        row.message,
        Fidelity(row.fidelity),
        tuple(timings),
        {name: float(share) for name, share in row.errors.items()},
        row.resources,
        row.environment,
        row.seconds,
        row.device_seconds,
        row.worker,
    )
