"""Measure candidates on the devices of a Ray cluster, or of one started here: one actor per GPU or CPU slot."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from evokernel import devices
from evokernel.bench import baselines as known_baselines
from evokernel.devices import Device
from evokernel.errors import DeviceError
from evokernel.evaluators import Evaluator, Job
from evokernel.evaluators._ray_cluster import LOCAL, alive, connected, on, survey_all
from evokernel.measurement import Measurement, Outcome, failed
from evokernel.worker import homes, remote
from evokernel.worker.remote import Machine

log = logging.getLogger(__name__)

CPU_SLOTS = 2  # of a machine: one compiles while the other times
WORKERS_A_JOB_MAY_KILL = 2
START_FAILURES = 3  # in a row, with no worker left, before the evaluator gives up
PATIENCE_S = 120.0  # without any worker, for a node to come back
TEND_S = 1.0  # between looks for a place where a worker is missing
FAREWELL_S = 2.0


@dataclass
class Task:
    """A job on its way, and what became of the workers that had it."""

    job: Job
    killed: int = 0
    avoid: str = ""  # the place where a worker died of it

    @property
    def key(self) -> tuple[str, str]:
        return self.job.candidate.genome.key, self.job.candidate.shape_class


@dataclass
class Node:
    """A node of the cluster and how many workers it may have."""

    id: str
    machine: Machine
    room: int


@dataclass
class Hand:
    """An actor, the step it is at, and the reference that its next answer comes by (None when idle)."""

    actor: Any
    node: Node
    step: str = "describe"  # then start, idle, measure
    ref: Any = None
    device: Device | None = None
    pid: int = 0
    task: Task | None = None
    begun: Any = None  # resolves when the actor has come to the task

    @property
    def place(self) -> str:
        return (self.device.uuid if self.device else "") or self.node.id


class Ray(Evaluator):
    """Actors that each hold a device. A death costs at most the job in flight, which is tried once elsewhere.

    All devices are of one model, `device`'s; nodes with another model or software are refused and the log says why.
    `workers` defaults to every GPU of the model, or two CPU slots a node. A local Ray starts with the first job.
    """

    def __init__(
        self,
        device: Device,
        baselines: tuple[str, ...] = ("sdpa",),
        address: str = LOCAL,  # or auto, HOST:PORT, ray://HOST:PORT
        workers: int | None = None,
        model: str = "",  # of GPU, where the cluster has several; see find_device
    ) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers is {workers}; at least 1")
        known_baselines.check_names(baselines, device.kind)
        self.device = device
        self.baselines = baselines
        self.address = address
        self.workers = workers
        self.dtype = ""  # the first job's: workers keep secrets and references of one
        self.nodes: dict[str, Node] = {}
        self.refused: dict[str, str] = {}  # node -> why
        self.hands: list[Hand] = []
        self.queue: deque[Task] = deque()
        self.finished: list[tuple[Job, Measurement]] = []
        self.quarantined: set[tuple[str, str]] = set()
        self.failures: list[str] = []  # starts that failed since one last succeeded
        self.last_placed = self.last_worker = 0.0
        self.session = contextlib.ExitStack()
        self.opened = False
        if address == LOCAL:
            same = [gpu for gpu in devices.gpus() if gpu.model == device.model] if device.kind == "cuda" else []
            self.slots = workers or len(same) or CPU_SLOTS
        else:
            self._open()

    @classmethod
    def find_device(cls, kind: str, arguments: Mapping[str, Any]) -> Device:
        """Return the device that all workers must equal in model; refuses to choose among several models of GPU."""
        address, wanted = str(arguments.get("address", LOCAL)), str(arguments.get("model", ""))
        here = remote.survey()
        if address == LOCAL:
            gpus, cpus = list(here.gpus), [here.cpu]
        else:
            with connected(address):
                offered = alive()
                found = survey_all(offered)
            fit = {id: m for id, m in found.items() if isinstance(m, Machine) and not m.difference(here)}
            gpus = [gpu for id, m in fit.items() if offered[id]["Resources"].get("GPU") for gpu in m.gpus]
            cpus = [m.cpu for id, m in fit.items() if offered[id]["Resources"].get("CPU")]
        choices = gpus if kind == "cuda" or (kind == "auto" and gpus) else cpus
        if not choices:
            what = "NVIDIA GPU" if kind == "cuda" else "node with this driver's software"
            raise DeviceError(f"evaluator.device is {kind!r}, but evaluator.address {address!r} has no {what}")
        models = Counter(device.model for device in choices)
        named = [d for d in choices if d.model == wanted] or [d for d in choices if wanted in d.model]
        if len({device.model for device in named}) != 1:
            offer = ", ".join(f"{count} x {model}" for model, count in sorted(models.items()))
            raise DeviceError(f"evaluator.model is {wanted!r}; one run measures on one model, choose among {offer}")
        return named[0]

    # ---- the contract

    def submit(self, job: Job) -> None:
        self.dtype = self.dtype or job.problem.dtype
        if job.problem.dtype != self.dtype:
            raise ValueError(f"the job's dtype is {job.problem.dtype}; this evaluator's workers measure {self.dtype}")
        task = Task(job)
        if task.key in self.quarantined:
            self._give_up(task)
            return
        self.queue.append(task)
        self._tend()

    def wait(self, timeout_s: float) -> list[tuple[Job, Measurement]]:
        deadline = time.monotonic() + timeout_s
        heard = True
        while True:
            if self.queue or self.hands:
                self._tend()
            if self.finished or not (self.queue or any(hand.task for hand in self.hands)):
                break
            left_s = deadline - time.monotonic()
            if left_s <= 0 and not heard:
                break
            heard = self._listen(max(0.0, min(left_s, TEND_S)))
        finished, self.finished = self.finished, []
        return finished

    def close(self) -> None:
        if not self.opened:
            return
        import ray

        with contextlib.suppress(Exception):  # whatever the state of the cluster, the rest must be let go
            idle = [hand.actor.close.remote() for hand in self.hands if hand.step == "idle"]
            if idle:
                ray.wait(idle, num_returns=len(idle), timeout=FAREWELL_S)
            for hand in self.hands:
                ray.kill(hand.actor)
        self.hands.clear()
        self.queue.clear()
        self.session.close()
        self.opened = False
        if self.address == LOCAL:
            homes.sweep()

    # ---- nodes

    def _open(self) -> None:
        """Connect, or start a local Ray, and see which nodes can measure."""
        gpus = None if self.device.kind == "cuda" else 0  # None: those that Ray finds
        self.session.enter_context(connected(self.address, self.slots, gpus))
        self.opened = True
        try:
            self._refresh()
            room = sum(node.room for node in self.nodes.values())
            if not room:
                raise DeviceError(f"evaluator.address {self.address!r} has no node that can measure: {self._reasons()}")
            if self.workers is not None and self.workers > room:
                what = "GPUs of this model" if self.device.kind == "cuda" else "CPU slots"
                raise DeviceError(f"evaluator.workers is {self.workers}, but {self.address!r} has {room} {what}")
        except BaseException:
            self.close()
            raise
        self.last_worker = time.monotonic()
        self.slots = self.workers or room

    def _refresh(self) -> None:
        """Forget nodes that are gone; survey and admit new ones."""
        present = alive()
        self.nodes = {id: node for id, node in self.nodes.items() if id in present}
        kind = "GPU" if self.device.kind == "cuda" else "CPU"
        new = {id: n for id, n in present.items() if id not in self.nodes and id not in self.refused}
        new = {id: n for id, n in new.items() if n["Resources"].get(kind, 0) >= 1}
        here = remote.survey()
        for id, machine in survey_all(new).items():
            if isinstance(machine, str):
                self._refuse(id, new[id]["NodeManagerHostname"], machine)
                continue
            found = machine.of_kind(self.device.kind)
            same = [device for device in found if device.model == self.device.model]
            if difference := machine.difference(here):
                self._refuse(id, machine.host, f"it has {difference}")
            elif not same:
                models = ", ".join(sorted({device.model for device in found})) or "no GPU"
                self._refuse(id, machine.host, f"it has {models}; this run measures on {self.device.model}")
            else:
                offered = int(new[id]["Resources"][kind])
                most = len(same) if kind == "GPU" else max(CPU_SLOTS, self.workers or 0)
                self.nodes[id] = Node(id, machine, min(offered, most))

    def _refuse(self, id: str, host: str, reason: str) -> None:
        self.refused[id] = f"node {host} ({id[:8]}) is refused: {reason}"
        log.warning(self.refused[id])

    def _reasons(self) -> str:
        return "; ".join([*self.refused.values(), *self.failures[-1:]]) or "no node has the resources"

    def _tend(self) -> None:
        """Start workers where some are missing, and give the idle ones work."""
        if not self.opened:
            self._open()
        now = time.monotonic()
        if len(self.hands) < self.slots and now - self.last_placed >= TEND_S:
            self._place()
        if any(hand.device for hand in self.hands):
            self.last_worker = now
        elif len(self.failures) >= START_FAILURES or now - self.last_worker > PATIENCE_S:
            raise DeviceError(f"evaluator.address {self.address!r}: no worker can be started: {self._reasons()}")
        for hand in self.hands:
            if hand.step == "idle" and (task := self._task_for(hand)):
                self._give(hand, task)

    def _place(self) -> None:
        import ray

        self.last_placed = time.monotonic()
        self._refresh()
        while len(self.hands) < self.slots:
            held = Counter(hand.node.id for hand in self.hands)
            free = [node for node in self.nodes.values() if node.room > held[node.id]]
            if not free:
                if not self.hands and not any(node.room for node in self.nodes.values()) and self.refused:
                    self.failures.append("every node is refused")
                return
            node = min(free, key=lambda node: held[node.id])
            resources = {"num_gpus": 1, "num_cpus": 0} if self.device.kind == "cuda" else {"num_cpus": 1}
            # A default actor runs on its process's main thread; were it another, the children would die with that.
            options = {**resources, "max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": on(node.id)}
            made = ray.remote(remote.Remote).options(**options).remote(self.device.kind, self.dtype, self.baselines)
            self.hands.append(Hand(made, node, ref=made.describe.remote()))

    # ---- workers

    def _task_for(self, hand: Hand) -> Task | None:
        for task in self.queue:
            elsewhere = any(h.place != task.avoid for h in self.hands if h.device)
            if hand.place != task.avoid or not elsewhere:
                self.queue.remove(task)
                return task
        return None

    def _give(self, hand: Hand, task: Task) -> None:
        genome, job = task.job.candidate.genome, task.job
        hand.step, hand.task = "measure", task
        hand.begun = hand.actor.alive.remote()
        what = genome.source, genome.body.space.backend, job.problem, job.fidelity, job.bar
        hand.ref = hand.actor.measure.remote(*what)

    def _listen(self, timeout_s: float) -> bool:
        """Wait for the next answer of any worker; says whether one came."""
        import ray

        asked = {hand.ref: hand for hand in self.hands if hand.ref is not None}
        if not asked:
            time.sleep(timeout_s)  # no node has room: one may come back
            return False
        ready, _ = ray.wait(list(asked), timeout=timeout_s)
        for ref in ready:
            hand = asked[ref]
            try:
                answer = ray.get(ref)
            except ray.exceptions.RayError as error:
                self._lose(hand, error)
            else:
                self._hear(hand, answer)
        return bool(ready)

    def _hear(self, hand: Hand, answer: Any) -> None:
        hand.ref = None
        if hand.step == "describe":
            device, hand.pid = answer
            self._admit(hand, device)
        elif hand.step == "start":
            hand.step = "idle"
            self.failures.clear()
        else:
            assert hand.task is not None
            worker = f"{hand.node.machine.host}:{hand.pid}"
            self.finished.append((hand.task.job, replace(answer, worker=worker)))
            hand.step, hand.task = "idle", None

    def _admit(self, hand: Hand, device: Device) -> None:
        """Let a worker start, unless its device is of another model or another worker's."""
        others = [other for other in self.hands if other is not hand and other.device]
        reason = ""
        if device.model != self.device.model:
            reason = f"{device.model}; this run measures on {self.device.model}"
        elif device.uuid and any(other.device and other.device.uuid == device.uuid for other in others):
            reason = f"{device.uuid}, which another worker holds: a node is declared with more GPUs than it has"
        if not reason:
            hand.device = device
            hand.step, hand.ref = "start", hand.actor.start.remote()
            return
        hand.node.room -= 1
        self.slots = min(self.slots, max(1, sum(node.room for node in self.nodes.values())))
        self._dismiss(hand)
        log.warning("a worker of node %s is refused: it was given %s", hand.node.machine.host, reason)

    def _lose(self, hand: Hand, error: Exception) -> None:
        """Replace a worker that died or broke; its job is tried once more elsewhere, then given up."""
        import ray

        self._dismiss(hand)
        reason = " ".join(str(error).split())[-300:]
        task = hand.task
        if task is None:
            self.failures.append(f"a worker of node {hand.node.machine.host}: {reason}")
            log.warning("%s", self.failures[-1])
            return
        log.warning("a worker of node %s was lost with candidate %s", hand.node.machine.host, task.job.candidate.id)
        try:
            ray.get(hand.begun, timeout=FAREWELL_S)
        except ray.exceptions.RayError:  # it had died before: none of the candidate's doing
            self.queue.appendleft(task)
            return
        task.killed += 1
        task.avoid = hand.place
        if task.killed < WORKERS_A_JOB_MAY_KILL:
            self.queue.appendleft(task)
            return
        self.quarantined.add(task.key)
        self._give_up(task)

    def _give_up(self, task: Task) -> None:
        message = f"quarantined: {WORKERS_A_JOB_MAY_KILL} workers died while measuring it"
        self.finished.append((task.job, failed(Outcome.CRASHED, message, fidelity=task.job.fidelity)))

    def _dismiss(self, hand: Hand) -> None:
        import ray

        self.hands.remove(hand)
        with contextlib.suppress(Exception):  # it is dead, or its node is
            ray.kill(hand.actor)
