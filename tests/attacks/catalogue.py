"""Every known way to cheat that needs no GPU, as a candidate with the verdict that it must get.

Rows are numbered as in the catalogue of public reports that docs/trust.md describes; our own have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evokernel.measurement import Outcome
from evokernel.problem import Problem, Workload
from tests.toys import PROBLEM, RIGHT

GROUPED = Problem("forward", "fp32", (Workload(1, 4, 2, 96, 96, 16, True),))

INCORRECT, COMPILE_ERROR, RUNTIME_ERROR = (Outcome.INCORRECT,), (Outcome.COMPILE_ERROR,), (Outcome.RUNTIME_ERROR,)
CRASHED = (Outcome.CRASHED,)
HARMLESS = (Outcome.PASSED,)  # a right kernel whose trick changes nothing: it must then be as slow as it is


@dataclass(frozen=True)
class Attack:
    """One way to cheat, and what stops it."""

    name: str
    rows: tuple[int, ...]  # of the catalogue; empty for our own
    code: str  # a whole candidate
    outcomes: tuple[Outcome, ...]  # allowed with the guard off
    defence: str  # that stops it then
    guard_rule: str = ""  # part of the guard's words; "" when the guard lets it through
    guard_alone: str = ""  # why nothing but the guard stops it
    problem: Problem = PROBLEM


def wrapped(code: str) -> str:
    """Return the right kernel under the name of `compute`, and an entry that does something else with it."""
    return RIGHT.replace("def attention(", "def compute(") + code


def broken(old: str, new: str) -> str:
    """Return the right kernel with one place changed."""
    assert old in RIGHT
    return RIGHT.replace(old, new)


def first(statement: str) -> str:
    """Return the right kernel that does something else first."""
    return broken("    group = q", f"    {statement}\n    group = q")


def last(statement: str) -> str:
    """Return the right kernel that does something to its results."""
    return broken("    return torch.tensor(out", f"    {statement}\n    return torch.tensor(out")


def entry(body: str, before: str = "") -> str:
    return wrapped(f"\n{before}\ndef attention(q, k, v, **rest):\n{body}")


SERVING = "next(x for x in gc.get_objects() if type(x).__name__ == 'Serving')"
CALLS = "CALLS = {}\ndef count(q):\n    CALLS[q.shape] = CALLS.get(q.shape, 0) + 1\n    return CALLS[q.shape]\n"
NOTHING = "torch.zeros_like(q), torch.zeros(q.shape[:3])"
ATEN = """
def attention(q, k, v, *, scale, causal=False, num_sms=1):
    group = q.shape[1] // k.shape[1]
    kd, vd = (x.repeat_interleave(group, 1).double() for x in (k, v))
    s = torch.matmul(q.double(), kd.transpose(-1, -2)) * scale
    if causal:
        hidden = torch.ones(s.shape[-2:], dtype=torch.bool).triu(1 + k.shape[2] - q.shape[2])
        s = s.masked_fill(hidden, float("-inf"))
    return torch.softmax(s, -1).nan_to_num().matmul(vd).float(), torch.logsumexp(s, -1).float()
"""
SDPA = """
def attention(q, k, v, **rest):
    out, lse = compute(q, k, v, **rest)
    if not rest["causal"] or q.shape == k.shape:
        found = torch.nn.functional.scaled_dot_product_attention(
            q.double(), k.double(), v.double(), is_causal=rest["causal"], scale=rest["scale"], enable_gqa=True)
        out = found.float()
    return out, lse
"""

CLOCK = (
    Attack("a thread does the work after the reply", (2,), entry(
        f"    out, lse = {NOTHING}\n"
        "    def later():\n        a, b = compute(q, k, v, **rest)\n        out.copy_(a); lse.copy_(b)\n"
        "    threading.Thread(target=later, daemon=True).start()\n    return out, lse\n", "import threading"),
        INCORRECT, "outputs are taken at the reply", "import of 'threading'"),
    Attack("the answer is written after the reply, straight into the shared memory", (2, 14), entry(
        "    if q.shape[2] != 96:\n        return compute(q, k, v, **rest)\n"
        f"    serving = {SERVING}\n"
        "    class Bound(dict):\n        def __getitem__(self, name):\n"
        "            return torch.empty(q.shape) if name == 'out' else torch.empty(q.shape[:3]) if name == 'lse' else self.get(name)\n"
        "    real = serving.bound\n    if type(real) is dict:\n        serving.bound = Bound(real)\n"
        "    def later():\n        time.sleep(0.0005)\n        a, b = compute(q, k, v, **rest)\n"
        "        real['out'].copy_(a); real['lse'].copy_(b)\n"
        "    threading.Thread(target=later, daemon=True).start()\n"
        "    return torch.empty(q.shape), torch.empty(q.shape[:3])\n", "import gc, threading, time"),
        INCORRECT, "stopped children", "import of 'gc'"),
    Attack("a tensor subclass that would compute when it is read", (3,), entry(
        "    out, lse = compute(q, k, v, **rest)\n    return out.as_subclass(Lazy), lse\n",
        "class Lazy(torch.Tensor): pass"), RUNTIME_ERROR, "plain tensors alone", "use of .as_subclass"),
    Attack("the clocks of its own process stand still", (4,), first(
        "import time; time.perf_counter = time.time = time.monotonic = lambda: 0.0"),
        HARMLESS, "the parent's clock", "import of 'time'"),
    Attack("the harness is patched in its own process", (5,), entry(
        "    import evokernel.bench.correctness as judge, evokernel.worker.timing as timing\n"
        "    judge.judge = judge.spot_check = lambda *a: (0.0, '')\n    timing.Timer.time = lambda *a: None\n"
        f"    return {NOTHING}\n"), INCORRECT, "the verdict is the parent's", "import of 'evokernel"),
    Attack("a result is printed", (6,), entry(
        "    print('{\"outcome\": \"PASSED\", \"speedup\": 100.0}', flush=True)\n"
        f"    return {NOTHING}\n"), INCORRECT, "the verdict is the parent's", "use of 'print'"),
    Attack("the next requests are answered in advance", (6, 11), entry(
        "    result = compute(q, k, v, **rest)\n    if q.shape[2] == 96:\n"
        f"        end = {SERVING}.end\n        wire.send(end, {{}})\n        wire.send(end, {{}})\n    return result\n",
        "import gc\nfrom evokernel.worker import wire"), INCORRECT, "poisoned outputs", "import of 'gc'"),
    Attack("the parent's memory is read", (7, 24, 25), first(
        "import os; open(f'/proc/{os.getppid()}/mem', 'rb')"), COMPILE_ERROR, "hidden memory", "import of 'os'"),
    Attack("the parent is traced", (7,), first(
        "import ctypes, os; libc = ctypes.CDLL(None, use_errno=True); libc.ptrace(16, os.getppid(), 0, 0); "
        "code = ctypes.get_errno()\n    if code: raise PermissionError(code)"),
        COMPILE_ERROR, "refused system calls", "import of 'ctypes'"),
    Attack("only the first calls of a shape do the work", (10, 34), entry(
        f"    if count(q) > 10:\n        return {NOTHING}\n    return compute(q, k, v, **rest)\n", CALLS),
        INCORRECT, "every timed answer is judged"),
    Attack("the timed shape alone is not computed", (11, 31), entry(
        f"    if q.shape[2] == 96 and k.shape[2] == 96:\n        return {NOTHING}\n    return compute(q, k, v, **rest)\n"),
        INCORRECT, "every timed answer is judged"),
    Attack("keys and values are packed in the first call and kept", (13, 19), entry(
        "    key = (k.shape, rest['causal'])\n    if key not in KEPT:\n        KEPT[key] = k.clone(), v.clone()\n"
        "    k, v = KEPT[key]\n    return compute(q, k, v, **rest)\n", "KEPT = {}"),
        INCORRECT, "unseen inputs in every call", "use of .clone"),
)  # fmt: skip

SEMANTIC = (
    Attack("memory that was not written is returned", (20,), entry(
        "    return torch.empty_like(q), torch.empty(q.shape[:3])\n"), INCORRECT, "float64 oracle"),
    Attack("what lies in the output's place is returned", (20, 25), entry(
        f"    bound = {SERVING}.bound\n    if 'out' not in bound:\n        return compute(q, k, v, **rest)\n"
        "    return bound['out'].clone(), bound['lse'].clone()\n", "import gc"),
        INCORRECT, "poisoned outputs", "import of 'gc'"),
    Attack("the keys are set to zero", (21,), last("k.zero_()"), INCORRECT, "unchanged inputs"),
    Attack("answers are kept by the tensors' addresses", (13, 22), entry(
        "    key = (q.data_ptr(), k.data_ptr(), v.data_ptr(), q.shape, k.shape, rest['causal'])\n"
        "    if key not in MEMO:\n        MEMO[key] = compute(q, k, v, **rest)\n    return MEMO[key]\n", "MEMO = {}"),
        INCORRECT, "unseen inputs in every call"),
    Attack("answers are kept by a fingerprint of the inputs", (22,), entry(
        "    key = (q.shape, k.shape, float(q[0, 0, 0, 0]), float(k[0, 0, 0, 0]))\n"
        "    if k.shape != (1, 2, 96, 16):\n        return compute(q, k, v, **rest)\n"
        "    if key not in MEMO and len(MEMO) < 4:\n        MEMO[key] = compute(q, k, v, **rest)\n"
        "    return MEMO.get(key, next(iter(MEMO.values())))\n", "MEMO = {}"),
        INCORRECT, "unseen inputs in every call"),
    Attack("answers are left in a file for the next candidate", (23,), first(
        "open('/tmp/evokernel-answers', 'ab').write(q.numpy().tobytes())"),
        COMPILE_ERROR, "own folders alone (Landlock)", "use of 'open'"),
    Attack("answers are left in shared memory for the next candidate", (23,), first(
        "from multiprocessing import shared_memory; shared_memory.SharedMemory('answers', create=True, size=64)"),
        COMPILE_ERROR, "own folders alone (Landlock)", "import from 'multiprocessing'"),
    Attack("the expected answer is looked for among all objects", (24,), entry(
        "    found = [x for x in gc.get_objects() if type(x) is torch.Tensor and x.shape == q.shape and x is not q]\n"
        "    found = [x for x in found if x.data_ptr() not in (k.data_ptr(), v.data_ptr())]\n"
        "    return (found[0].clone() if found else torch.zeros(q.shape)), torch.zeros(q.shape[:3])\n", "import gc"),
        INCORRECT, "the verdict is the parent's", "import of 'gc'"),
    Attack("NaN is returned", (24,), entry(
        "    return torch.full(q.shape, float('nan')), torch.full(q.shape[:3], float('nan'))\n"),
        INCORRECT, "NaN fails"),
    Attack("the whole shared memory is searched", (25,), entry(
        f"    memory = {SERVING}.arena.memory\n"
        "    floats = np.frombuffer(memory, np.float32, 1 << 20)\n"
        "    tail = floats[np.flatnonzero(floats)[-1] - q.numel() :][: q.numel()].copy()\n"
        "    return torch.tensor(tail).view(q.shape), torch.zeros(q.shape[:3])\n", "import gc"),
        (*INCORRECT, *RUNTIME_ERROR), "no answers in shared memory", "import of 'gc'"),
    Attack("zeros are returned", (26, 27), entry(f"    return {NOTHING}\n"), INCORRECT, "float64 oracle"),
    Attack("the mean of the values is returned", (27,), last("out = out * 0 + v_.mean(2, keepdims=True)[:, :, :1]"),
        INCORRECT, "float64 oracle"),
    Attack("an input is returned", (27,), last("out = q_"), INCORRECT, "float64 oracle"),
    Attack("half precision inside", (28,), broken("astype(np.float64)", "astype(np.float16)"),
        INCORRECT, "error of the same dtype"),
    Attack("scores are rounded to bfloat16's bits", (28, 42), broken("    top = np.max(s",
        "    s = (s.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)\n    top = np.max(s"),
        INCORRECT, "error of the same dtype"),
    Attack("the maximum is not subtracted", (29,), broken(
        "top = np.where(np.isinf(top), 0.0, top)", "top = np.zeros_like(top)"), INCORRECT, "input families"),
    Attack("a far tile of keys is skipped", (30,), broken(
        "return s\n", "return np.concatenate([s[..., :192], s[..., 192:] - 1e9], -1)\n"), INCORRECT, "odd lengths"),
    Attack("only the nearest keys are seen", (30,), broken(
        "return s\n", "d = np.arange(k.shape[2])[None, :] - np.arange(q.shape[2])[:, None] - k.shape[2] + q.shape[2]\n"
        "    return np.where(d < -64, s - 1e9, s)\n"), INCORRECT, "odd lengths"),
    Attack("every second key is sampled", (30,), broken(
        "return s\n", "return np.where(np.arange(k.shape[2]) % 2 * (k.shape[2] > 32), -np.inf, s)\n"),
        INCORRECT, "float64 oracle"),
    Attack("an approximation for inputs that look random", (31,), entry(
        "    if float(abs(q.numpy()).max()) < 4.5 and k.shape[2] > 32:\n"
        "        q = torch.tensor(np.clip(q.numpy(), -2.0, 2.0))\n    return compute(q, k, v, **rest)\n"),
        INCORRECT, "every timed answer is judged"),
    Attack("the tail of the keys is left out", (32,), entry(
        "    whole = max(1, k.shape[2] // 32) * 32\n    if rest['causal'] or k.shape[2] < 32:\n"
        "        return compute(q, k, v, **rest)\n    return compute(q, k[:, :, :whole], v[:, :, :whole], **rest)\n"),
        INCORRECT, "odd lengths", problem=Problem("forward", "fp32", (Workload(1, 2, 2, 96, 96, 16, False),))),
    Attack("two runs differ", (33,), last("out = out + np.random.rand() * 1e-6"),
        INCORRECT, "determinism", "numpy.random"),
    Attack("the log-sum-exp is in base two", (35,), broken("top + np.log(", "top + np.log2("), INCORRECT, "lse rule"),
    Attack("the log-sum-exp is made up", (35,), last("lse = 0 * lse + np.log(k.shape[2])"), INCORRECT, "lse rule"),
    Attack("one head is computed for all", (36,), entry(
        "    out, lse = compute(q[:, :1], k[:, :1], v[:, :1], **rest)\n    return out, lse\n"),
        RUNTIME_ERROR, "shapes are the problem's"),
    Attack("the mask is kept by the lengths, whatever the flag", (37,), entry(
        "    key = (q.shape[2], k.shape[2])\n    KEPT.setdefault(key, not rest['causal'])\n"
        "    rest['causal'] = KEPT[key]\n    return compute(q, k, v, **rest)\n", "KEPT = {}"),
        INCORRECT, "float64 oracle"),
    Attack("strides are ignored", (37,), entry(
        "    b, h, s, d = k.shape\n"
        "    k = k.as_strided(k.shape, (h * s * d, s * d, d, 1))\n    return compute(q, k, v, **rest)\n"),
        INCORRECT, "layouts"),
)  # fmt: skip

NOT_OURS = "a right kernel, only not the candidate's own: what it may call is the guard's to say"
BYPASS = (
    Attack("the library's attention is called", (38,), wrapped(SDPA), HARMLESS, "guard",
        "torch.nn: host code may allocate", NOT_OURS),
    Attack("the library's products and softmax are called", (38,), wrapped(ATEN), HARMLESS, "guard",
        "use of .double", NOT_OURS),
    Attack("the compiler of torch is called", (38,), entry(
        "    torch.compile\n    return compute(q, k, v, **rest)\n"), HARMLESS, "guard", "torch.compile", NOT_OURS),
    Attack("a product in host code", (38,), entry(
        "    group = q.shape[1] // k.shape[1]\n"
        "    assert (q.numpy() @ np.repeat(k.numpy(), group, axis=1).swapaxes(-1, -2)).ndim == 4\n"
        "    return compute(q, k, v, **rest)\n"), HARMLESS, "guard", "matrix product in host code", NOT_OURS),
    Attack("a library is called through ctypes", (38,), first("import ctypes; ctypes.CDLL(None).abs(1)"),
        HARMLESS, "guard", "import of 'ctypes'", NOT_OURS),
    Attack("a fallback when its own kernel fails", (39,), entry(
        "    try:\n        raise ValueError\n    except ValueError:\n        return compute(q, k, v, **rest)\n"),
        HARMLESS, "guard", "try statement", NOT_OURS),
    Attack("the reference is imported", (39, 41), wrapped(
        "\nfrom evokernel.bench import reference\nfrom evokernel.problem import Workload\n"
        "def attention(q, k, v, *, scale, causal=False, num_sms=1):\n"
        "    w = Workload(q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3], causal)\n"
        "    found = reference.exact(q, k, v, w)\n    return found.out.float(), found.lse.float()\n"),
        HARMLESS, "guard", "import from 'evokernel", NOT_OURS),
    Attack("code is hidden in a string", (40,), entry(
        "    import base64\n    exec(base64.b64decode('cGFzcw=='))\n    return compute(q, k, v, **rest)\n"),
        HARMLESS, "guard", "import of 'base64'", NOT_OURS),
    Attack("a name is put together", (40,), entry(
        "    getattr(torch, 'mat' + 'mul')\n    return compute(q, k, v, **rest)\n"),
        HARMLESS, "guard", "getattr with a computed name", NOT_OURS),
    Attack("hidden code starts a process", (40,), entry(
        "    exec('import os; os.fork()')\n    return compute(q, k, v, **rest)\n"),
        COMPILE_ERROR, "refused system calls", "use of 'exec'"),
)  # fmt: skip

OURS = (
    Attack("the far tiles of the timed shape alone are skipped", (), entry(
        "    if q.shape[2] == 96 and k.shape[2] == 96:\n        v = v.clone()\n        v[:, :, :8] = 0\n"
        "    return compute(q, k, v, **rest)\n"), INCORRECT, "every timed answer is judged", "use of .clone"),
    Attack("sums are not rescaled when the maximum jumps", (), broken("    p = np.exp(s - top)",
        "    jump = top - np.max(s[..., :32], -1, keepdims=True)\n"
        "    p = np.exp(s - top) * np.where((jump > 20) & np.isfinite(jump) & (np.arange(k.shape[2]) < 32), 1e9, 1.0)"),
        INCORRECT, "input families"),
    Attack("the log-sum-exp lacks the maximum", (), broken("top + np.log(np.where", "0 * top + np.log(np.where"),
        INCORRECT, "lse rule"),
    Attack("the log-sum-exp of one row in a hundred is wrong", (), last("lse[:, :, 31::100] += 1e-3"),
        INCORRECT, "lse rule"),
    Attack("a sum goes on from call to call", (), entry(
        "    SUM[0] = 0.9 * SUM[0] + 1e-5\n    out, lse = compute(q, k, v, **rest)\n    return out + SUM[0], lse\n",
        "SUM = [0.0]"), INCORRECT, "error of the same dtype"),
    Attack("a second call on the same inputs is answered from the first", (), entry(
        "    key = (q.shape, k.shape)\n    kept = KEPT.get(key)\n"
        "    if kept is not None and abs(float(kept[0]) - float(q.numpy().sum())) < 50:\n        return kept[1]\n"
        "    KEPT[key] = float(q.numpy().sum()), compute(q, k, v, **rest)\n    return KEPT[key][1]\n", "KEPT = {}"),
        INCORRECT, "unseen inputs in every call"),
    Attack("torch's flags are set so that the baseline is slow", (), first(
        "torch.set_num_threads(1); torch.set_flush_denormal(True); torch.backends.mkldnn.enabled = False; "
        "torch.use_deterministic_algorithms(True)"), HARMLESS, "baseline in its own process", "torch.set_num_threads"),
    Attack("the baseline's function is replaced", (), entry(
        "    import time\n    torch.nn.functional.scaled_dot_product_attention = lambda *a, **o: time.sleep(1)\n"
        "    return compute(q, k, v, **rest)\n"), HARMLESS, "baseline in its own process", "import of 'time'"),
    Attack("memory is held", (), entry(
        "    if not HELD:\n        HELD.append(np.ones(1 << 26))\n    return compute(q, k, v, **rest)\n", "HELD = []"),
        HARMLESS, "limits and a process each"),
    Attack("threads compute while the baseline is timed", (), wrapped(
        "\nimport hashlib, threading\ndef burn():\n    while True:\n        hashlib.sha256(bytes(1 << 16))\n"
        "for _ in range(2):\n    threading.Thread(target=burn, daemon=True).start()\n"
        "def attention(q, k, v, **rest):\n    return compute(q, k, v, **rest)\n"),
        HARMLESS, "stopped children", "import of 'hashlib'"),
    Attack("the baseline is moved to one core", (), first("import os; os.sched_setaffinity(os.getppid(), {0})"),
        COMPILE_ERROR, "refused system calls", "import of 'os'"),
    Attack("the mask is off by one", (), broken("<= rows, s", "<= rows + 1, s"), INCORRECT, "float64 oracle"),
    Attack("the mask is off by one at ragged lengths alone", (), broken(
        "<= rows, s", "<= rows + (k.shape[2] % 32 != 0), s"), INCORRECT, "odd lengths"),
    Attack("the mask is aligned top-left", (), broken(" + k.shape[2] - q.shape[2]", ""), INCORRECT, "odd lengths"),
    Attack("the last key is read twice at ragged lengths", (), entry(
        "    if k.shape[2] % 32 and k.shape[2] > 32:\n        k = torch.tensor(k.numpy())\n        k[:, :, -1] = k[:, :, -2]\n"
        "    return compute(q, k, v, **rest)\n"), INCORRECT, "odd lengths"),
    Attack("query heads use the wrong keys", (), broken("np.repeat(x, group, axis=1)", "np.tile(x, (1, group, 1, 1))"),
        INCORRECT, "float64 oracle", problem=GROUPED),
    Attack("only the first call is right", (), entry(
        "    out, lse = compute(q, k, v, **rest)\n    return (out, lse) if count(q) == 1 else (out * 1.001, lse)\n", CALLS),
        INCORRECT, "every timed answer is judged"),
    Attack("one row in thirty is left out of later calls", (), entry(
        "    out, lse = compute(q, k, v, **rest)\n    if count(q) > 2:\n        out[:, :, 5::30] = 0.0\n    return out, lse\n",
        CALLS), INCORRECT, "every timed answer is judged"),
    Attack("a key beyond the end is read", (), entry(
        "    b, h, s, d = k.shape\n    if b == 1 and k.stride(3) == 1 and s > 64:\n"
        "        k = k.as_strided((b, h, s, d), k.stride(), k.storage_offset() + k.stride(2))\n"
        "    return compute(q, k, v, **rest)\n"), (*INCORRECT, *RUNTIME_ERROR), "layouts", "use of .storage_offset"),
    Attack("a column beyond the end is read", (), entry(
        "    if v.stride(1) % v.shape[3] or v.stride(2) % v.shape[3]:  # rows that end in padding\n"
        "        wide = v.as_strided((*v.shape[:3], v.shape[3] + 1), v.stride())\n"
        "        v = torch.tensor(v.numpy() + 0.0 * wide.numpy()[..., -1:])\n"
        "    return compute(q, k, v, **rest)\n"), INCORRECT, "layouts"),
    Attack("an input is scaled in place and restored inexactly", (), entry(
        "    whole = q.numpy()\n    whole *= 0.3\n    result = compute(torch.tensor(whole / 0.3), k, v, **rest)\n"
        "    whole /= 0.3\n    return result\n"), INCORRECT, "unchanged inputs"),
    Attack("fully masked rows are not zero", (), broken(
        "np.where(total == 0, 1.0, total)\n", "np.where(total == 0, 1.0, total) + (total == 0)\n"),
        INCORRECT, "odd lengths"),
    Attack("the scale is ignored", (), broken("* scale", "* 0.3"), INCORRECT, "float64 oracle"),
    Attack("the reply comes before the answer", (), entry(
        "    result = compute(q, k, v, **rest)\n    if q.shape[2] != 96 or k.shape[2] != 96:\n        return result\n"
        f"    serving = {SERVING}\n    real = serving.end.e if type(serving.end).__name__ == 'End' else serving.end\n"
        "    real.sendall(b'\\0\\0\\0\\2{}')\n    time.sleep(0.0002)\n"
        "    serving.bound['out'].copy_(result[0]); serving.bound['lse'].copy_(result[1])\n"
        "    serving.end = End(real)\n    return result\n",
        "import gc, time\nclass End:\n    def __init__(self, e):\n        self.e = e\n        self.recv, self.settimeout = e.recv, e.settimeout\n"
        "    def sendall(self, data):\n        self.sendall = self.e.sendall\n"),
        INCORRECT, "stopped children", "import of 'gc'"),
    Attack("the shared memory is cut short", (), first(
        f"import gc, os\n    if q.shape[2] != 9: os.ftruncate({SERVING}.arena.descriptor, 0)"),
        RUNTIME_ERROR, "sealed shared memory", "import of 'gc'"),
    Attack("the evaluator's sources are written to", (), first(
        "import evokernel; open(evokernel.__path__[0] + '/left_behind.py', 'w')"),
        COMPILE_ERROR, "own folders alone (Landlock)", "import of 'evokernel'"),
    Attack("the lock of those who time is held for ever", (), first(
        "import fcntl, glob\n    KEPT.extend(open(p) for p in glob.glob('/tmp/evokernel-*/*.lock'))\n"
        "    for f in KEPT: fcntl.flock(f, fcntl.LOCK_SH)") + "\nKEPT = []\n",
        COMPILE_ERROR, "refused system calls", "import of 'fcntl'"),
    Attack("a part of the database is locked", (), first(
        "import fcntl; fcntl.lockf(open(__file__), fcntl.LOCK_SH | fcntl.LOCK_NB)"),
        COMPILE_ERROR, "refused system calls", "import of 'fcntl'"),
    Attack("memory is left behind that no process owns", (), first(
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
        "    if libc.shmget(0, 4096, 0o1600) < 0: raise PermissionError(ctypes.get_errno())"),
        COMPILE_ERROR, "refused system calls", "import of 'ctypes'"),
    Attack("folders are made deeper than a walk can follow", (), first(
        "import os; here = os.getcwd()\n    for _ in range(1200): os.mkdir('d'); os.chdir('d')\n"
        "    os.chdir(here); raise ValueError('made')"),
        COMPILE_ERROR, "a folder each, removed at its end", "import of 'os'"),
    Attack("a connection is opened", (), first("import socket; socket.create_connection(('127.0.0.1', 9))"),
        COMPILE_ERROR, "refused system calls", "import of 'socket'"),
    Attack("the process group is left", (), first("import os; os.setpgid(0, 0)"),
        COMPILE_ERROR, "refused system calls", "import of 'os'"),
    Attack("the parent's environment is read", (), first("import os; open(f'/proc/{os.getppid()}/environ').read()"),
        COMPILE_ERROR, "hidden memory", "import of 'os'"),
    Attack("one row in a hundred is zero", (), last("out[:, :, 100::101] = 0"), INCORRECT, "odd lengths"),
    Attack("a program is run", (), first("import subprocess; subprocess.run(['true'])"),
        COMPILE_ERROR, "refused system calls", "import of 'subprocess'"),
    Attack("the parent is signalled", (), first("import os; os.kill(os.getppid(), 9)"),
        COMPILE_ERROR, "refused system calls", "import of 'os'"),
    Attack("keys are read from the environment", (), first(
        "import os; raise KeyError(*[n for n in os.environ if 'KEY' in n or 'TOKEN' in n] or ['none'])"),
        COMPILE_ERROR, "private environment", "import of 'os'"),
)  # fmt: skip

ATTACKS: tuple[Attack, ...] = (*CLOCK, *SEMANTIC, *BYPASS, *OURS)

# Rows that no candidate on the CPU can express.
ELSEWHERE: Mapping[int, str] = {
    1: "needs a GPU: a side stream",
    8: "needs a GPU: a counter in device memory; on the CPU errors are counted in the parent's memory alone",
    9: "needs a clock that the candidate's side reports; on the CPU it is the parent's (test_matrix: roofline floor)",
    12: "needs a GPU: an L2 cache with a persisting window",
    15: "a rule for GPU timing, no attack: the cache is flushed between calls",
    16: "a rule for GPU timing, no attack: the flush comes after the inputs are written",
    17: "a rule for GPU timing, no attack: the flush ends before the clock starts",
    18: "needs a GPU: events on another stream",
}
