"""Join a Ray cluster or start one here, and see what its nodes are. For evaluators/ray.py."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from evokernel.errors import DeviceError
from evokernel.worker import remote
from evokernel.worker.remote import Machine

LOCAL = "local"
SURVEY_LIMIT_S = 60.0
DIAL_LIMIT_S = 5.0
OBJECT_STORE_BYTES = 80 << 20  # near the least Ray takes; only sources and measurements travel


@contextlib.contextmanager
def connected(address: str, slots: int = 0, gpus: int | None = 0) -> Iterator[None]:
    """Join a cluster, or start one here with these CPU slots and GPUs.

    One started here listens on loopback alone and has neither dashboard nor usage reports. A connection that this
    process has already is used and kept.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    if ray.is_initialized():
        yield
        return
    _dial(address)
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        with _handlers_kept(), _loopback() if address == LOCAL else contextlib.nullcontext():
            if address == LOCAL:
                ray.init(
                    LOCAL,
                    num_cpus=slots,
                    num_gpus=gpus,
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE_BYTES,
                    _node_ip_address="127.0.0.1",
                    _system_config={"worker_niceness": 0},  # 15 by default: any other program would come before
                    **quiet,
                )
            else:
                ray.init(address, **quiet)
    except (ConnectionError, ImportError, OSError, RuntimeError, ValueError) as error:
        raise DeviceError(_unreachable(address, error)) from None
    try:
        yield
    finally:
        ray.shutdown()


def _dial(address: str) -> None:
    """Refuse an address where nobody listens; Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if address in (LOCAL, "auto"):
        return
    if not colon or not port.isdigit():
        raise DeviceError(_unreachable(address, "not an address"))
    try:
        socket.create_connection((host, int(port)), DIAL_LIMIT_S).close()
    except OSError as error:
        raise DeviceError(_unreachable(address, error)) from None


def _unreachable(address: str, error: object) -> str:
    reason = " ".join(str(error).split())[:300]
    if "grpc" in reason:
        reason = "Ray's client needs the package grpcio"
    return f"evaluator.address is {address!r}: {reason}; choose local, auto, HOST:PORT or ray://HOST:PORT"


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Keep the driver's own SIGTERM handler: ray.init replaces it, and a campaign drains on SIGTERM."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _loopback() -> Iterator[None]:
    """Let ray.init take 127.0.0.1 at its word: on Linux it puts an outward address in its place, and then listens on
    every interface."""
    from ray._private import services

    kept = services.resolve_ip_for_localhost
    services.resolve_ip_for_localhost = lambda host: host
    try:
        yield
    finally:
        services.resolve_ip_for_localhost = kept


def alive() -> dict[str, dict[str, Any]]:
    import ray

    return {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}


def survey_all(nodes: Mapping[str, Any]) -> dict[str, Machine | str]:
    """Ask nodes what they have; a node that cannot say is given with the reason."""
    import ray

    ask = ray.remote(remote.survey)
    how = {"num_cpus": 0, "max_retries": 0}
    asked = {id: ask.options(scheduling_strategy=on(id), **how).remote() for id in nodes}
    found: dict[str, Machine | str] = {}
    for id, ref in asked.items():
        try:
            found[id] = ray.get(ref, timeout=SURVEY_LIMIT_S)
        except ray.exceptions.RayError as error:
            found[id] = "it cannot describe itself: " + " ".join(str(error).split())[-300:]
    return found


def on(id: str) -> Any:
    """Return the strategy that places something on one node, and nowhere when that is gone."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(id, soft=False)
