"""The Ray evaluator on real Rays: whatever dies, no candidate is lost, no process stays, and no devices are mixed."""

import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from evokernel import devices
from evokernel.candidate import Candidate, Genome
from evokernel.errors import DeviceError
from evokernel.evaluators import Job
from evokernel.evaluators.ray import Ray
from evokernel.measurement import Outcome
from evokernel.problem import Problem
from tests.contracts.evaluator_contract import EvaluatorContract, drain
from tests.processes import alive, descendants
from tests.toys import CLASS, PROBLEM, RIGHT, WORKLOAD, body, candidate

ROOT = Path(__file__).parent.parent.parent
QUICK_DEATH = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}
GPU = "NVIDIA Made Up, GPU-{uuid}, 580.00, 9.0"


# Takes some seconds, so that there is time to kill what measures it.
LONG = Problem("forward", "fp32", tuple(replace(WORKLOAD, heads=heads, kv_heads=heads) for heads in range(1, 7)))


def measures(pid: int) -> bool:
    """Say whether a process is a worker or below one; Ray's own agents hold no device and take a minute to leave."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    return b"evokernel.worker" in command or b"ray::Remote" in command


def all_end(pids: set[int], within_s: float = 20) -> bool:
    deadline = time.monotonic() + within_s
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(alive(pid) for pid in pids)


def until(evaluator, condition, patience_s=60):
    """Let the evaluator work until something holds; returns what finished meanwhile."""
    finished = []
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        finished += evaluator.wait(0.05)
    return finished


def busy(evaluator):
    return next((hand for hand in evaluator.hands if hand.step == "measure"), None)


class TestRay(EvaluatorContract):
    @pytest.fixture(scope="class")
    @classmethod
    def evaluator(cls):
        made = Ray(devices.cpu(), workers=2)
        try:
            yield made
            made.submit(Job(candidate(1, rows=1), LONG))  # not the one that a test has quarantined
            until(made, lambda: busy(made))
            left = {pid for pid in descendants(os.getpid()) if measures(pid)}
        finally:
            made.close()
        assert left
        assert all_end(left), "a closed evaluator leaves nothing that measures"

    def test_it_starts_without_dashboard_and_usage_reports_and_listens_on_loopback_alone(self, evaluator):
        import ray

        evaluator.submit(Job(candidate(1), PROBLEM))
        drain(evaluator, 1)
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
        assert not ray._private.worker.global_worker.node.webui_url
        pids = {os.getpid(), *descendants(os.getpid())}
        assert {address for address in listening(pids)} == {"127.0.0.1"}

    def test_the_drivers_own_handler_of_sigterm_is_kept(self, evaluator):
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    def test_candidates_get_every_core_though_ray_asks_for_one_thread(self, evaluator):
        told = RIGHT.replace("import torch", "import numba\nimport torch").replace(
            "    group = ", "    assert False, f'threads={numba.get_num_threads()}'\n    group = "
        )
        made = body(told)
        evaluator.submit(Job(Candidate(Genome(made, made.defaults), CLASS.name, "mutate", id=1), PROBLEM))
        ((_, measurement),) = drain(evaluator, 1)
        assert f"threads={devices.cpu_count()}" in measurement.message

    def test_a_killed_worker_loses_no_job_and_leaves_no_child(self, evaluator):
        evaluator.submit(Job(candidate(1), LONG))
        evaluator.submit(Job(candidate(2, rows=1), PROBLEM))
        holder = lambda: next((h for h in evaluator.hands if h.task and h.task.job.candidate.id == 1), None)  # noqa: E731
        finished = until(evaluator, lambda: holder() and len(descendants(holder().pid)) >= 3)
        children = descendants(holder().pid)
        os.kill(holder().pid, signal.SIGKILL)
        assert all_end(children)
        finished += drain(evaluator, 2 - len(finished))
        outcomes = {job.candidate.id: m.outcome for job, m in finished}
        assert outcomes == {1: Outcome.PASSED, 2: Outcome.PASSED}

    def test_a_worker_that_can_start_no_more_children_is_replaced_and_its_job_measured_again(self, evaluator):
        evaluator.submit(Job(candidate(1), LONG))
        until(evaluator, lambda: busy(evaluator) and len(descendants(busy(evaluator).pid)) >= 3)
        broken = busy(evaluator).pid
        zygote = next(pid for pid in descendants(broken) if descendants(pid))
        os.kill(zygote, signal.SIGKILL)
        ((_, measurement),) = drain(evaluator, 1)
        assert measurement.outcome is Outcome.PASSED
        assert broken not in {hand.pid for hand in evaluator.hands}

    def test_a_job_that_kills_two_workers_is_quarantined(self, evaluator):
        evaluator.submit(Job(candidate(1), LONG))
        import ray

        pids = set()
        for _ in range(2):
            assert until(evaluator, lambda: busy(evaluator) and busy(evaluator).pid not in pids) == []
            ray.get(busy(evaluator).begun)
            pids.add(busy(evaluator).pid)
            os.kill(busy(evaluator).pid, signal.SIGKILL)
        ((_, first),) = drain(evaluator, 1)
        evaluator.submit(Job(candidate(1), LONG))
        ((_, again),) = evaluator.wait(0)
        assert (first.outcome, again.outcome) == (Outcome.CRASHED, Outcome.CRASHED)
        assert "2 workers died" in first.message
        assert len(pids) == 2


def listening(pids: set[int]) -> set[str]:
    """Return the IPv4 addresses, mapped ones too, that processes accept connections on."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inodes.add(os.readlink(link))
            except OSError:
                continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A" and f"socket:[{columns[9]}]" in inodes:
                word = columns[1].split(":")[0][-8:]
                found.add(".".join(str(byte) for byte in reversed(bytes.fromhex(word))))
    return found


@pytest.fixture(scope="module")
def cluster():
    """A head that offers nothing, to which each test adds nodes."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    made = Cluster(True, head_node_args={"num_cpus": 0, "include_dashboard": False, "_system_config": QUICK_DEATH})
    yield made
    made.shutdown()


@pytest.fixture
def node(cluster):
    """Add nodes, each with the environment given; they are gone at the end of the test."""
    added = []

    def add(num_cpus=1, num_gpus=0, **environment):
        made = cluster.add_node(num_cpus=num_cpus, num_gpus=num_gpus, env_vars=environment, include_dashboard=False)
        added.append(made)
        return made

    yield add
    for made in added:
        if made in cluster.worker_nodes:
            cluster.remove_node(made, allow_graceful=False)


def nvidia_smi(folder: Path, *lines: str) -> dict[str, str]:
    """Put a program of that name first on a node's path; it knows these GPUs."""
    folder.mkdir()
    program = folder / "nvidia-smi"
    program.write_text("#!/bin/sh\ncat <<END\n" + "\n".join(lines) + "\nEND\n")
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_a_dead_node_costs_nothing_but_its_job_is_measured_elsewhere(cluster, node):
    nodes = {made.node_id: made for made in (node(), node())}
    evaluator = Ray(devices.cpu(), address=cluster.address, workers=2)
    try:
        evaluator.submit(Job(candidate(1), LONG))
        evaluator.submit(Job(candidate(2), PROBLEM))
        holder = lambda: next((h for h in evaluator.hands if h.task and h.task.job.candidate.id == 1), None)  # noqa: E731
        finished = until(evaluator, lambda: holder() and len(descendants(holder().pid)) >= 3)
        pid, dead = holder().pid, holder().node.id
        processes = {pid, *descendants(pid)}
        cluster.remove_node(nodes[dead], allow_graceful=False)
        assert all_end(processes)
        finished += until(evaluator, lambda: holder() is not None and holder().pid != pid)
        assert holder().node.id != dead
        finished += drain(evaluator, 2 - len(finished))
        assert {job.candidate.id: m.outcome for job, m in finished} == {1: Outcome.PASSED, 2: Outcome.PASSED}
    finally:
        evaluator.close()


def test_a_node_with_other_software_is_refused_with_the_reason(cluster, node, tmp_path, caplog):
    (tmp_path / "numba-9.9.dist-info").mkdir()
    (tmp_path / "numba-9.9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: numba\nVersion: 9.9\n")
    node(PYTHONPATH=f"{tmp_path}:{ROOT}")
    with pytest.raises(DeviceError, match=r"no node that can measure: .*numba 9\.9, not "):
        Ray(devices.cpu(), address=cluster.address)
    node()
    with caplog.at_level(logging.WARNING):
        made = Ray(devices.cpu(), address=cluster.address)
    made.close()
    assert made.slots == 1
    assert "numba 9.9" in caplog.text
    with pytest.raises(DeviceError, match=r"workers is 5, but .* has 1 CPU slots"):
        Ray(devices.cpu(), address=cluster.address, workers=5)


def test_models_of_gpu_are_never_mixed(cluster, node, tmp_path):
    two = nvidia_smi(tmp_path / "two", GPU.format(uuid="a"), GPU.format(uuid="b"))
    other = nvidia_smi(tmp_path / "other", "NVIDIA Other, GPU-c, 580.00, 8.0")
    node(num_gpus=2, **two)
    node(num_gpus=1, **other)
    with pytest.raises(DeviceError, match="choose among 2 x NVIDIA Made Up, 1 x NVIDIA Other"):
        Ray.find_device("auto", {"address": cluster.address})
    device = Ray.find_device("auto", {"address": cluster.address, "model": "Made Up"})
    assert (device.kind, device.model) == ("cuda", "NVIDIA Made Up")
    made = Ray(device, address=cluster.address)
    made.close()
    assert made.slots == 2
    assert list(made.refused.values()) == [next(r for r in made.refused.values() if "it has NVIDIA Other" in r)]


def test_two_workers_on_one_gpu_are_refused_and_a_lease_is_on_its_uuid(cluster, node, tmp_path, caplog):
    one = nvidia_smi(tmp_path / "one", GPU.format(uuid="a"))
    node(num_gpus=1, **one)
    node(num_gpus=1, **one)  # another node of the same machine, declared with the same GPU
    device = Ray.find_device("cuda", {"address": cluster.address})
    made = Ray(device, address=cluster.address)
    try:
        with caplog.at_level(logging.WARNING):
            made.submit(Job(candidate(1), PROBLEM))
            until(made, lambda: made.slots == 1)
        assert [hand.device.uuid for hand in made.hands if hand.device] == ["GPU-a"]
        assert "GPU-a, which another worker holds" in caplog.text
    finally:
        made.close()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nowhere"])
def test_an_address_where_nobody_listens_is_refused_at_once(address):
    with pytest.raises(DeviceError, match=r"evaluator\.address is .*choose local, auto"):
        Ray(devices.cpu(), address=address)


def test_a_driver_may_be_a_client_of_the_cluster(tmp_path):
    """In a process of its own: Ray is either a client or not for as long as a process lives."""
    pytest.importorskip("grpc", reason="ray:// needs the package grpcio")
    program = """
import socket
import time
from ray.cluster_utils import Cluster
from evokernel.evaluators.ray import Ray
from evokernel.evaluators import Job
from tests.contracts.evaluator_contract import drain
from tests.toys import PROBLEM, candidate
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
cluster = Cluster(True, head_node_args={"num_cpus": 2, "include_dashboard": False, "ray_client_server_port": port})
for _ in range(300):
    with socket.socket() as probe:
        if probe.connect_ex((cluster.address.split(":")[0], port)) == 0:
            break
    time.sleep(0.1)
address = f"ray://{cluster.address.split(':')[0]}:{port}"
made = Ray(Ray.find_device("cpu", {"address": address}), address=address)
made.submit(Job(candidate(1), PROBLEM))
((_, measurement),) = drain(made, 1)
made.close()
cluster.shutdown()
print(measurement.outcome)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout.split()[-1:] == ["PASSED"], done.stdout + done.stderr


def test_settings_without_meaning_are_refused():
    with pytest.raises(ValueError, match="workers"):
        Ray(devices.cpu(), workers=0)


CAMPAIGN = """
problem: {op: forward, dtype: fp32, workloads: {rows: [{heads: 2, seq: 96, head_dim: 16, causal: true}]}}
spaces: [FOLDER/toy.py]
operators: {random: {weight: 1}}
evaluator: {type: ray, device: cpu, address: local, workers: 1}
budget: {evaluations: 20}
store: sqlite:///run.db
"""


@pytest.mark.slow
def test_a_killed_driver_leaves_no_process_and_costs_its_run_at_most_the_candidate_in_flight(tmp_path):
    from evokernel import assemble
    from evokernel.config import validate
    from evokernel.reporters import Silent
    from evokernel.store import Store

    (tmp_path / "toy.py").write_text(RIGHT)
    (tmp_path / "c.yaml").write_text(CAMPAIGN.replace("FOLDER", str(tmp_path)))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "evokernel", "run", "-c", "c.yaml", "--name", "it"]
    driver = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    measured = 0
    while measured < 2 and time.monotonic() < deadline and driver.poll() is None:
        time.sleep(0.05)
        if (tmp_path / "run.db").exists():
            store = Store.open(f"sqlite:///{tmp_path}/run.db", create=False)
            measured = sum(len(list(store.records(run.id))) for run in store.runs())
    processes = {pid for pid in descendants(driver.pid) if measures(pid)}
    driver.kill()
    driver.wait()
    assert 2 <= measured < 20
    assert len(processes) >= 3
    assert all_end(processes)
    run = store.run("it")
    assert len(store.pending(run.id)) <= 1  # the one worker's candidate in flight
    resumed = assemble.campaign(
        validate({**run.config, "evaluator": {"type": "local", "device": "cpu"}}, "resumed"),
        store,
        run,
        devices.cpu(),
        Silent(),
    )
    resumed.restore()
    while resumed.in_flight:
        resumed.collect()
    resumed.evaluator.close()
    assert store.pending(run.id) == []
    assert len(list(store.records(run.id))) >= measured
