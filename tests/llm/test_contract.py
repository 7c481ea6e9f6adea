"""Every model keeps the contract; one that is real and local does, if this machine has one."""

import os

import pytest

from evokernel.llm.ledger import Ledger
from evokernel.llm.model import Endpoint
from evokernel.llm.scripted import Replay, Scripted
from tests.contracts.model_contract import TALK, ModelContract
from tests.llm.server import Answer, in_turn, serving

LOCAL = os.environ.get("EVOKERNEL_TEST_MODEL_URL")  # such as http://127.0.0.1:8000/v1 of a llama.cpp server


class TestScripted(ModelContract):
    @pytest.fixture
    def model(self):
        return Scripted(["one", "two"] + ["more"] * 18)


class TestReplay(ModelContract):
    @pytest.fixture
    def model(self):
        return Replay([[*TALK, {"role": "assistant", "content": f"answer {i}"}] * 2 for i in range(20)])


class TestEndpoint(ModelContract):
    @pytest.fixture
    def model(self):
        with serving(in_turn([], Answer("Hello."))) as server:
            yield Endpoint("test", Ledger(), server.url, "NO_KEY_AT_ALL")


@pytest.mark.skipif(not LOCAL, reason="EVOKERNEL_TEST_MODEL_URL names no local model")
class TestLocalModel(ModelContract):
    @pytest.fixture
    def model(self):
        return Endpoint(
            os.environ.get("EVOKERNEL_TEST_MODEL", "local"), Ledger(500_000), LOCAL, extra={"max_tokens": 64}
        )
