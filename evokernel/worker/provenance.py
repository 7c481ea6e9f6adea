"""What a measurement must agree on to be comparable or re-used."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from evokernel import devices
from evokernel.candidate import digest
from evokernel.devices import Device
from evokernel.problem import Problem

PACKAGE = Path(__file__).parent.parent


@lru_cache(maxsize=1)
def evaluator_version() -> str:
    """Name the evaluator by its sources: a change in how things are judged makes figures stale."""
    folders = (PACKAGE / "bench", PACKAGE / "worker", PACKAGE / "backends")
    sources = [PACKAGE / "roofline.py", *(path for folder in folders for path in sorted(folder.glob("*.py")))]
    return hashlib.sha256(b"".join(p.read_bytes() for p in sources)).hexdigest()[:16]


def environment(device: Device, problem: Problem, source: str, baselines: tuple[str, ...]) -> Mapping[str, Any]:
    versions = devices.versions()
    evaluator = evaluator_version()
    terms = [digest(source), problem.to_json(), device.model, versions, evaluator, baselines]
    agreed = json.dumps(terms, sort_keys=True)
    return {
        "device": device.model,
        "device_kind": device.kind,
        "device_uuid": device.uuid,
        "versions": versions,
        "evaluator": evaluator,
        "load": round(os.getloadavg()[0], 2),
        "reuse_key": digest(agreed),
    }
