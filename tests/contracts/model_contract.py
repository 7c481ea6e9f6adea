"""What every model keeps to. Inherit ModelContract and give a `model` that has answers left."""

import threading

from evokernel.llm import ModelError, Reply

TALK = [{"role": "system", "content": "You write kernels."}, {"role": "user", "content": "The parent is candidate 1."}]


class ModelContract:
    def test_an_answer_is_a_reply_whose_message_can_be_sent_back(self, model):
        reply = model.chat(TALK)
        assert isinstance(reply, Reply)
        assert reply.message()["role"] == "assistant"
        assert reply.text or reply.calls
        assert reply.tokens >= 0 and reply.cost_usd >= 0
        assert isinstance(model.chat([*TALK, reply.message(), {"role": "user", "content": "Go on."}]), Reply)

    def test_the_conversation_is_left_as_it_was(self, model):
        talk = [dict(message) for message in TALK]
        model.chat(talk)
        assert talk == TALK

    def test_several_threads_may_ask_and_all_that_is_raised_is_a_model_error(self, model):
        answers = []

        def ask():
            for _ in range(5):
                try:
                    answers.append(model.chat(TALK))
                except ModelError as error:
                    answers.append(error)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == 20

    def test_it_has_a_name_a_price_and_a_way_to_be_cancelled(self, model):
        assert model.name
        assert model.output_usd >= 0
        assert not model.cancelled.is_set()
