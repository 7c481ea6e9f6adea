"""Small candidates in the candidate form, and the problems they are measured on."""

from evokernel.candidate import Body, Candidate, Genome
from evokernel.measurement import Measurement, Outcome, Record, Timing
from evokernel.problem import Problem, Workload

WORKLOAD = Workload(1, 2, 2, 96, 96, 16, True)
PROBLEM = Problem("forward", "fp32", (WORKLOAD,))
TWO = Problem("forward", "fp32", (WORKLOAD, Workload(1, 2, 2, 64, 64, 16, False)))
CLASS = PROBLEM.shape_classes()[0]

HEAD = '''"""A toy."""

SPACE = {
    "op": "forward",
    "backend": "numba",
    "knobs": {"block": [16, 32, 64, 128], "rows": [1, 2, 4], "form": ["a", "b"], "only_a": [1, 2]},
    "conditions": {"only_a": "form == 'a'"},
    "constraints": {"rows * 16 <= block": "a block holds its rows"},
}

KNOBS = {"block": 64, "rows": 2, "form": "a", "only_a": 1}

# ---- kernel ----
import numpy as np
import torch

'''

# Exact attention in numpy: slow, right, and easy to make wrong.
RIGHT = (
    HEAD
    + """
def scores_of(q, k, scale, causal):
    s = (q[:, :, :, None, :] * k[:, :, None, :, :]).sum(-1) * scale
    if causal:
        rows = np.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
        s = np.where(np.arange(k.shape[2])[None, :] <= rows, s, -np.inf)
    return s


def attention(q, k, v, *, scale, causal=False, num_sms=1):
    group = q.shape[1] // k.shape[1]
    q_, k_, v_ = (x.numpy().astype(np.float64) for x in (q, k, v))
    k_, v_ = (np.repeat(x, group, axis=1) for x in (k_, v_))
    s = scores_of(q_, k_, scale, causal)
    top = np.max(s, -1, keepdims=True)
    top = np.where(np.isinf(top), 0.0, top)
    p = np.exp(s - top)
    total = p.sum(-1, keepdims=True)
    out = (p[..., None] * v_[:, :, None, :, :]).sum(-2) / np.where(total == 0, 1.0, total)
    lse = np.where(total == 0, -np.inf, top + np.log(np.where(total == 0, 1.0, total)))[..., 0]
    return torch.tensor(out.astype(np.float32)), torch.tensor(lse.astype(np.float32))
"""
)


def body(source: str = RIGHT) -> Body:
    return Body(source, "toy")


def genome(**knobs) -> Genome:
    toy = body()
    return Genome(toy, {**toy.defaults, **knobs})


def candidate(number: int = 1, shape_class: str = CLASS.name, parents: tuple[int, ...] = (), **knobs) -> Candidate:
    return Candidate(genome(**knobs), shape_class, "mutate", parents, id=number)


def timing(speedup: float, workload: str = WORKLOAD.name, held_out: bool = False) -> Timing:
    return Timing(workload, (100.0, 100.0, 100.0, 100.0), "sdpa", (100.0 * speedup,) * 4, held_out)


def passed(speedup: float, **facts) -> Measurement:
    return Measurement(Outcome.PASSED, timings=(timing(speedup),), seconds=1.0, **facts)


def record(number: int = 1, speedup: float | None = 1.0, **knobs) -> Record:
    measurement = passed(speedup) if speedup else Measurement(Outcome.INCORRECT, "wrong")
    return Record(candidate(number, **knobs), measurement, number)
