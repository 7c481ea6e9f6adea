"""What every backend keeps to. Inherit BackendContract, give the fixtures it names and say how compiles are counted.

Fixtures: `backend`, `device`, `problem`, and `source`, the text of a right candidate for the problem.
"""

from contextlib import AbstractContextManager
from dataclasses import replace

import pytest
import torch

from evokernel.backends import CompileError
from evokernel.problem import ENTRY_BY_OP, TORCH_NAMES

ENTRY = ENTRY_BY_OP["forward"]
BROKEN = {
    "no Python": ("def attention(:\n", "SyntaxError"),
    "a missing module": ("import no_such_module_anywhere\n", "no_such_module_anywhere"),
    "an import that raises": ("raise RuntimeError('on import')\n", "on import"),
    "another entry": ("def another(): pass\n", "no entry function 'attention'"),
    "an entry that is no function": ("attention = 3\n", "no entry function 'attention'"),
}


class BackendContract:
    tensor_device = "cpu"

    def counted(self, device) -> AbstractContextManager[list]:
        """Return a context that yields a list, to which each compile inside it adds an element."""
        raise NotImplementedError

    def loaded(self, backend, tmp_path, text):
        path = tmp_path / "candidate.py"
        path.write_text(text)
        return backend.load(path, ENTRY)

    def call(self, entry, workload, dtype, device, heads_inside):
        def tensor(heads, length):
            shape = (workload.batch, length, heads, workload.head_dim)
            made = torch.zeros(
                shape if heads_inside else (shape[0], heads, length, shape[3]),
                dtype=getattr(torch, TORCH_NAMES[dtype]), device=self.tensor_device,
            )  # fmt: skip
            return made.transpose(1, 2) if heads_inside else made

        q = tensor(workload.heads, workload.seq_q)
        k, v = (tensor(workload.kv_heads, workload.seq_kv) for _ in range(2))
        return entry(q, k, v, num_sms=device.num_sms, **workload.arguments())

    @pytest.mark.parametrize("what", BROKEN)
    def test_what_does_not_load_is_a_compile_error_in_its_own_words(self, backend, tmp_path, what):
        text, words = BROKEN[what]
        with pytest.raises(CompileError, match=words):
            self.loaded(backend, tmp_path, text)

    def test_host_code_that_raises_is_a_compile_error(self, backend, tmp_path, device, problem):
        entry = self.loaded(backend, tmp_path, "def attention(*_, **__):\n    raise ValueError('not this head_dim')\n")
        with pytest.raises(CompileError, match="not this head_dim"):
            backend.compile(entry, problem, device)

    def test_facts_are_present(self, backend, tmp_path, device, problem, source):
        facts = backend.compile(self.loaded(backend, tmp_path, source), problem, device)
        assert facts["compile_s"] > 0

    def test_another_length_or_stride_compiles_nothing_more(self, backend, tmp_path, device, problem, source):
        entry = self.loaded(backend, tmp_path, source)
        with self.counted(device) as compiles:
            backend.compile(entry, problem, device)
            before = len(compiles)
            assert before > 0
            for workload in problem.workloads:
                longer = replace(workload, seq_q=workload.seq_q + 33, seq_kv=workload.seq_kv + 71, batch=3)
                self.call(entry, longer, problem.dtype, device, heads_inside=False)
                self.call(entry, longer, problem.dtype, device, heads_inside=True)
        assert len(compiles) == before

    def test_the_backend_says_what_it_is(self, backend):
        assert backend.name == type(backend).__module__.rsplit(".", 1)[-1]
        assert backend.device_kind in ("cpu", "cuda")
        assert "torch" in backend.imports
