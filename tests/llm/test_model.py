"""The real client talks to a real server that fails in every way, and the ledger is never passed."""

import threading

import pytest

from evokernel.llm import Overdrawn, Refused, TooLong, Unavailable
from evokernel.llm.conversation import LEFT_OUT, Conversation
from evokernel.llm.ledger import LEAST_ANSWER, Ledger, Price, most_tokens
from evokernel.llm.model import HIDDEN, Endpoint
from evokernel.llm.scripted import Replay, Scripted, called
from tests.llm.server import Answer, in_turn, serving

KEY = "sk-secret-of-the-test"
TALK = [{"role": "system", "content": "You write kernels."}, {"role": "user", "content": "Hello?"}]
TOOLS = [{"type": "function", "function": {"name": "check", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("TEST_KEY", KEY)


def endpoint(server, ledger=None, **settings):
    settings = {"retries": 2, "backoff_s": 0.001, "timeout_s": 5.0} | settings
    return Endpoint("test", ledger or Ledger(), server.url, "TEST_KEY", **settings)


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_comes_with_its_tokens_and_its_price(stream):
    price = Price(1.0, 2.0)
    with serving(in_turn([Answer("Good morning, here is a kernel.")])) as server:
        ledger = Ledger(1_000_000, 10.0)
        reply = endpoint(server, ledger, price=price, stream=stream).chat(TALK)
    assert reply.text == "Good morning, here is a kernel."
    assert (reply.tokens, ledger.tokens) == (server.tokens, server.tokens)
    assert reply.cost_usd == ledger.usd > 0
    assert server.keys == [f"Bearer {KEY}"]


@pytest.mark.parametrize("stream", [True, False])
def test_tool_calls_come_whole_and_malformed_ones_are_told_apart(stream):
    calls = (("check", '{"edits": "a long piece of text, in pieces"}'), ("check", '{"edits": '), ("check", "[1]"))
    with serving(in_turn([Answer("Let me see.", calls)])) as server:
        reply = endpoint(server, stream=stream).chat(TALK, TOOLS)
    assert [c.arguments for c in reply.calls] == [{"edits": "a long piece of text, in pieces"}, None, None]
    assert len({c.id for c in reply.calls}) == 3
    assert reply.message()["tool_calls"][1]["function"]["arguments"] == '{"edits": '
    assert server.requests[0]["tools"] == TOOLS


MENDED = ["429", "500", "503", "cut", "garbage", "html", "other json", "hang up"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("fault", MENDED)
def test_what_another_attempt_mends_is_tried_again(fault, stream):
    if fault in ("cut", "garbage") and not stream:
        pytest.skip("a fault of streams")
    with serving(in_turn([Answer("x" * 100, fault=fault)], Answer("There you are."))) as server:
        ledger = Ledger(1_000_000)
        assert endpoint(server, ledger, stream=stream).chat(TALK).text == "There you are."
    assert len(server.requests) == 2
    assert ledger.tokens >= server.tokens


def test_an_empty_answer_is_none():
    with serving(in_turn([Answer("")], Answer("Now."))) as server:
        assert endpoint(server).chat(TALK).text == "Now."


def test_a_server_that_stalls_is_left_at_the_timeout():
    with serving(in_turn([Answer("x" * 100, fault="stall")], Answer("Quick."))) as server:
        assert endpoint(server, timeout_s=0.2).chat(TALK).text == "Quick."


def test_a_server_that_drips_for_ever_is_left_after_some_timeouts():
    with serving(in_turn([Answer("x", fault="drip")], Answer("Quick."))) as server:
        assert endpoint(server, timeout_s=0.1).chat(TALK).text == "Quick."


def test_a_slow_server_is_waited_for():
    with serving(in_turn([Answer("Slow but sure.", slow_s=0.3)])) as server:
        assert endpoint(server).chat(TALK).text == "Slow but sure."


def test_the_wait_that_a_server_asks_for_is_kept_but_bounded():
    class Waits(threading.Event):
        def __init__(self):
            super().__init__()
            self.asked = []

        def wait(self, timeout=None):
            self.asked.append(timeout)
            return False

    faults = [Answer(fault="429", retry_after="7"), Answer(fault="429", retry_after="99999"), Answer(fault="500")]
    with serving(in_turn(faults, Answer("At last."))) as server:
        model = endpoint(server, retries=3)
        model.cancelled = Waits()
        model.chat(TALK)
    assert [s for s in model.cancelled.asked if s] == [7.0, 60.0, 0.004]


@pytest.mark.parametrize("fault", ["401", "404", "400"])
def test_what_no_attempt_mends_is_said_at_once_and_without_the_key(fault):
    with serving(in_turn([], Answer(fault=fault))) as server, pytest.raises(Unavailable) as error:
        endpoint(server).chat(TALK)
    assert len(server.requests) == 1
    assert f"HTTP {fault}" in str(error.value)
    assert KEY not in str(error.value)
    assert fault != "401" or HIDDEN in str(error.value)


def test_after_every_retry_the_last_cause_is_told():
    with serving(in_turn([], Answer(fault="500"))) as server, pytest.raises(Unavailable, match="HTTP 500"):
        endpoint(server).chat(TALK)
    assert len(server.requests) == 3


def test_nobody_listening_costs_nothing():
    with serving(in_turn([])) as server:
        pass
    ledger = Ledger(1_000_000)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1"):
        endpoint(server, ledger).chat(TALK)
    assert ledger.tokens == 0


def test_without_a_key_nothing_is_sent(monkeypatch):
    monkeypatch.delenv("TEST_KEY")
    with pytest.raises(Unavailable, match=r"no key in \$TEST_KEY"):
        Endpoint("test", Ledger(), None, "TEST_KEY").chat(TALK)


def test_a_key_that_a_server_repeats_is_hidden():
    calls = (("check", f'{{"edits": "{KEY}"}}'),)
    with serving(in_turn([Answer(f"Your key is {KEY}.", calls)])) as server:
        reply = endpoint(server).chat(TALK, TOOLS)
    assert KEY not in str(reply)
    assert reply.text == f"Your key is {HIDDEN}."


def test_a_refusal_and_a_filter_are_no_answer():
    for answer in (Answer(refusal="I would rather not."), Answer("Well", finish="content_filter")):
        with serving(in_turn([answer])) as server, pytest.raises(Refused):
            endpoint(server).chat(TALK)


def test_a_server_that_wants_the_other_name_of_the_limit_gets_it():
    with serving(in_turn([Answer(fault="other limit")], Answer("Fine."))) as server:
        assert endpoint(server).chat(TALK).text == "Fine."
    assert "max_tokens" not in server.requests[1]
    assert server.requests[1]["max_completion_tokens"] == server.requests[0]["max_tokens"]


def test_a_server_that_takes_no_stream_options_is_asked_without_and_charged_at_worst():
    with serving(in_turn([Answer(fault="no options")], Answer("Fine.", usage=False))) as server:
        ledger = Ledger(1_000_000)
        assert endpoint(server, ledger).chat(TALK, max_tokens=100).text == "Fine."
    assert "stream_options" in server.requests[0] and "stream_options" not in server.requests[1]
    assert ledger.tokens == most_tokens(TALK) + 100


def test_an_answer_cut_at_the_limit_says_so():
    with serving(in_turn([Answer("x" * 10_000)])) as server:
        reply = endpoint(server).chat(TALK, max_tokens=100)
    assert (reply.finish, len(reply.text)) == ("length", 400)


def test_a_server_that_ignores_the_limit_is_hung_up_on():
    with serving(in_turn([Answer("more", fault="no limit")])) as server:
        reply = endpoint(server).chat(TALK, max_tokens=100)
    assert reply.finish == "length"
    assert len(reply.text) <= 4 * 100 + 16


def test_no_answer_is_asked_for_that_the_ledger_cannot_pay():
    bound = most_tokens(TALK)
    ledger = Ledger(bound + 200)
    with serving(in_turn([], Answer("y" * 10_000))) as server:
        model = endpoint(server, ledger)
        assert len(model.chat(TALK).text) == 4 * 200
        with pytest.raises(Overdrawn, match="budget for models is spent"):
            model.chat(TALK)
    assert server.requests[0]["max_tokens"] == 200
    assert server.tokens == ledger.tokens <= bound + 200


def test_a_cap_in_dollars_shortens_answers_and_then_ends_them():
    price = Price(1.0, 10.0)
    cap = price.cost(most_tokens(TALK), 100)
    ledger = Ledger(cap_usd=cap)
    with serving(in_turn([], Answer("y" * 10_000))) as server:
        model = endpoint(server, ledger, price=price)
        model.chat(TALK)
        with pytest.raises(Overdrawn):
            model.chat(TALK)
    assert server.requests[0]["max_tokens"] in (99, 100)
    assert ledger.usd <= cap


def test_threads_share_a_ledger_without_passing_its_cap():
    cap = 20 * (most_tokens(TALK) + LEAST_ANSWER)
    ledger = Ledger(cap)
    with serving(in_turn([], Answer("z" * 2000, usage=False))) as server:
        model = endpoint(server, ledger)

        def ask():
            with pytest.raises(Overdrawn):
                for _ in range(20):
                    model.chat(TALK, max_tokens=500)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert server.tokens <= ledger.tokens <= cap


def test_what_a_request_may_cost_is_written_down_before_it_is_sent():
    ledger, written = Ledger(100_000), []
    ledger.journal = lambda: written.append((ledger.committed()[0], len(server.requests)))
    with serving(in_turn([Answer("Fine.")])) as server:
        endpoint(server, ledger).chat(TALK, max_tokens=500)
    assert written == [(most_tokens(TALK) + 500, 0)]


def test_what_is_held_counts_as_spent_once_nobody_waits_for_it():
    ledger = Ledger(1000)
    ledger.hold(100, 200, Price())
    ledger.close()
    assert ledger.tokens == 300
    with pytest.raises(Overdrawn):
        ledger.hold(1, 100, Price())


# ---- conversations ----


def test_a_dearer_model_answers_when_the_cheaper_one_does_not():
    talk = Conversation([Scripted([Unavailable("down"), "no"]), Scripted(["yes"])], list(TALK))
    assert talk.ask().text == "yes"
    assert talk.level == 1
    assert talk.messages[-1] == {"role": "assistant", "content": "yes"}


def test_with_no_model_left_the_last_reason_is_told():
    with pytest.raises(Refused, match="never"):
        Conversation([Scripted([Unavailable("down")]), Scripted([Refused("never")])], list(TALK)).ask()
    with pytest.raises(Unavailable, match="no model is configured"):
        Conversation([], list(TALK)).ask()


def test_a_conversation_that_is_too_long_loses_its_middle_and_goes_on():
    def script(body):
        return Answer(fault="too long") if len(str(body["messages"])) > 3000 else Answer("Short enough.")

    with serving(script) as server:
        talk = Conversation([endpoint(server)], [*TALK, {"role": "user", "content": "a" * 20_000 + "the end"}])
        assert talk.ask().text == "Short enough."
    assert LEFT_OUT in talk.messages[2]["content"]
    assert talk.messages[2]["content"].endswith("the end")
    assert talk.messages[0] == TALK[0]


def test_a_conversation_that_cannot_be_shortened_is_too_long():
    with serving(in_turn([], Answer(fault="too long"))) as server, pytest.raises(TooLong):
        Conversation([endpoint(server)], list(TALK)).ask()


def test_stored_conversations_play_again_in_their_order_at_no_cost():
    first = Conversation([Scripted([called("check", edits="x"), "done"])], list(TALK))
    first.ask()
    first.say("fine", "tool", tool_call_id="call-check-0")
    first.ask()
    second = Conversation([Scripted(["other"])], [*TALK[:1], {"role": "user", "content": "Another?"}])
    second.ask()
    replay = Replay([first.said().messages, second.said().messages])
    again = Conversation([replay], list(TALK))
    reply = again.ask()
    assert reply.calls[0].arguments == {"edits": "x"}
    other = Conversation([replay], [*TALK[:1], {"role": "user", "content": "A new number 17?"}])
    assert other.ask().text == "other"
    again.say("fine", "tool", tool_call_id=reply.calls[0].id)
    assert again.ask().text == "done"
    assert again.said().tokens == 0
    with pytest.raises(Unavailable, match="played"):
        Conversation([replay], list(TALK)).ask()


def test_a_replayed_call_names_the_parent_of_the_conversation_it_is_played_in():
    def about(number):
        return [TALK[0], {"role": "user", "content": f"The parent is candidate {number}. Improve it."}]

    told = Conversation([Scripted([called("check", parent=7, candidate=12, edits="7")])], about(7))
    told.ask()
    reply = Replay([told.said().messages]).chat(about(31))
    assert reply.calls[0].arguments == {"parent": 31, "candidate": 12, "edits": "7"}
