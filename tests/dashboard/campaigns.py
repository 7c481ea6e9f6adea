"""Small databases in every state that the dashboard shows."""

from dataclasses import replace

from evokernel import devices
from evokernel.candidate import Body, Candidate, Genome
from evokernel.measurement import Fidelity, Measurement, Outcome, Timing
from evokernel.problem import Problem, Workload
from evokernel.store import Conversation, Lesson, Store
from tests.toys import RIGHT, body

FULL = Workload(1, 2, 2, 96, 96, 16, False)
CAUSAL = (Workload(1, 2, 2, 64, 64, 16, True), Workload(1, 2, 2, 96, 96, 16, True, weight=3.0))
HELD_OUT = Workload(1, 2, 2, 80, 80, 16, True)
PROBLEM = Problem("forward", "fp32", (*CAUSAL, FULL), (HELD_OUT,))
CAUSAL_CLASS, FULL_CLASS = (w.shape_class("fp32").name for w in (CAUSAL[0], FULL))
CONFIG = {
    "problem": {
        "op": "forward",
        "dtype": "fp32",
        "workloads": {"rows": [{"batch": 1, "heads": 2, "seq": 96, "head_dim": 16}]},
    },
    "spaces": ["flash_forward_numba"],
    "archive": {"type": "elites", "axes": ["block"]},
    "budget": {"evaluations": 20},
}
HOSTILE = "<img src=x onerror=window.pwned=1><script>window.pwned=1</script>"


def timing(workload: Workload, speedup: float, held_out: bool = False, baseline: str = "sdpa") -> Timing:
    return Timing(
        workload.name,
        (100.0, 101.0, 99.0, 100.0),
        baseline,
        tuple(x * speedup for x in (100.0, 101.0, 99.0, 100.0)),
        held_out,
    )


def passed(*speedups: float, **facts) -> Measurement:
    facts = {
        "resources": {"registers": 128, "spill_bytes": 0, "compile_s": 1.5},
        "seconds": 3.0,
        "device_seconds": 2.0,
    } | facts
    return Measurement(
        Outcome.PASSED, timings=tuple(timing(w, s) for w, s in zip(CAUSAL, speedups, strict=True)), **facts
    )


def create(url: str, name: str = "first", status: str = "finished") -> tuple[Store, int]:
    store = Store.open(url)
    run = store.create_run(name, CONFIG, PROBLEM, devices.cpu(), 0)
    store.set_status(run.id, status)
    return store, run.id


def propose(
    store: Store,
    run_id: int,
    operator: str = "mutate",
    parents: tuple[int, ...] = (),
    note: str = "",
    shape_class: str = CAUSAL_CLASS,
    **knobs,
) -> Candidate:
    toy = body()
    genome = Genome(toy, {**toy.defaults, **knobs})
    return store.add_candidate(
        run_id, Candidate(genome, shape_class, operator, parents, note=note, cost_usd=0.25, tokens=100)
    )


def fill(store: Store, run_id: int) -> list[int]:
    """Store a seed, its child that leads, a wrong one, a crossing, one of another class, and one in flight."""
    seed = propose(store, run_id, "seed", rows=1)
    child = propose(store, run_id, "mutate", (seed.id,), "twice the rows", rows=2)
    wrong = propose(store, run_id, "mutate", (child.id,), block=32)
    crossed = propose(store, run_id, "cross", (child.id, seed.id), rows=4, form="b")
    other = propose(store, run_id, "seed", shape_class=FULL_CLASS)
    waiting = propose(store, run_id, "tune", block=128)
    store.add_measurement(
        run_id, seed, passed(0.9, 1.0, errors={f"{CAUSAL[0].name}/random/plain": 0.4, f"{CAUSAL[0].name}/outlier": 0.7})
    )
    slower = {CAUSAL[0].name: {"sdpa": 120.0, "math": 480.0}}
    resources = {"registers": 128, "spill_bytes": 0, "compile_s": 1.5, "baselines_us": slower}
    store.add_measurement(run_id, child, passed(1.2, 1.3, resources=resources))
    store.add_measurement(run_id, wrong, Measurement(Outcome.INCORRECT, "row 3 is off", seconds=1.0))
    store.add_measurement(run_id, crossed, passed(1.1, 1.15))
    store.add_measurement(run_id, other, Measurement(Outcome.PASSED, timings=(timing(FULL, 0.8),), device_seconds=1.0))
    verified = passed(1.25, 1.35)
    held_out = (*verified.timings, timing(HELD_OUT, 1.1, held_out=True, baseline="flex"))
    store.add_measurement(run_id, child, replace(verified, fidelity=Fidelity.VERIFY, timings=held_out))
    store.add_conversation(
        run_id, Conversation("a-model", [{"role": "user", "content": "go faster"}], child.id, 50, 0.1)
    )
    store.add_lesson(run_id, Lesson("more rows", "faster", "it was", child.id))
    return [c.id for c in (seed, child, wrong, crossed, other, waiting)]


def hostile(url: str) -> int:
    """Store a run whose every free text is mark-up; returns its candidate."""
    store, run_id = create(url, f"run {HOSTILE}", "failed")
    source = RIGHT.replace('"""A toy."""', f'"""{HOSTILE}"""').replace(
        '"form": ["a", "b"]', f'"form": ["a", "b", "{HOSTILE}"]'
    )
    toy = Body(source, "toy")
    parent = None
    for form, speedup in (("a", 1.0), (HOSTILE, 1.5)):
        genome = Genome(toy, {**toy.defaults, "form": form})
        found = Candidate(genome, CAUSAL_CLASS, HOSTILE, (parent,) if parent else (), note=HOSTILE)
        parent = store.add_candidate(run_id, found).id
        stored = store.candidate(parent)
        store.add_measurement(run_id, stored, passed(speedup, speedup, environment={"device": HOSTILE}))
        store.add_measurement(run_id, stored, Measurement(Outcome.CRASHED, HOSTILE, worker=HOSTILE))
    store.add_conversation(run_id, Conversation(HOSTILE, [{"role": HOSTILE, "content": HOSTILE}], parent))
    store.add_lesson(run_id, Lesson(HOSTILE, HOSTILE, HOSTILE, parent))
    return parent
