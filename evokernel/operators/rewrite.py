"""Ask a model once for a structural edit of a parent, and let it mend a near-miss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evokernel.candidate import Genome
from evokernel.llm import Model, ModelError, prompts
from evokernel.llm.conversation import Conversation
from evokernel.llm.patch import PatchError, patched
from evokernel.llm.tools import Draft, ToolError
from evokernel.measurement import Fidelity
from evokernel.operators import Operator, Parent, Plan, Proposal, ProposalError

CUT = "Your answer was cut at the limit of tokens; be brief."


class Rewrite(Operator):
    """One question, one edit. A near-miss goes back with the checker's words, `repairs` times a model."""

    name = "rewrite"
    slow = True

    def __init__(
        self, models: Sequence[Model] = (), repairs: int = 2, max_tokens: int = 8192, inspirations: int = 2
    ) -> None:
        for name, value, least in (
            ("repairs", repairs, 0),
            ("max_tokens", max_tokens, 64),
            ("inspirations", inspirations, 0),
        ):
            if value < least:
                raise ValueError(f"{name} is {value}; at least {least}")
        self.models = tuple(models)
        self.repairs = repairs
        self.max_tokens = max_tokens
        self.inspirations = inspirations

    def propose(self, plan: Plan) -> Proposal:
        if not plan.parents:
            raise ProposalError("nothing has been measured yet that could be rewritten")
        parent, *others = plan.parents
        opening = prompts.opening(plan, plan.tools, parent, others[: self.inspirations], prompts.ONE_SHOT)
        talk = Conversation(self.models, opening)
        found: Proposal | str = ""
        while True:
            for _ in range(1 + self.repairs):
                if found:
                    talk.say(f"{found}\n\nMend it, and give the whole answer again.")
                try:
                    reply = talk.ask(max_tokens=self.max_tokens)
                except ModelError as error:
                    raise ProposalError(
                        str(error), talk.said(), no_model=not talk.answered, lasting=error.lasting
                    ) from None
                try:
                    found = self._judged(plan, parent, reply.text)
                except ToolError as error:
                    raise ProposalError(str(error), talk.said()) from None
                if isinstance(found, Proposal):
                    return _with_talk(found, talk)
                found = CUT if reply.finish == "length" else found
            if not talk.escalate():
                raise ProposalError(f"no usable edit: {found}", talk.said())

    def _judged(self, plan: Plan, parent: Parent, answer: str) -> Proposal | str:
        """Return a proposal, or what is wrong with the answer."""
        try:
            genome = patched(parent.candidate.genome, answer, plan.problem.entry, plan.context)
        except PatchError as error:
            return str(error)
        if plan.known(genome):
            return "this candidate has been proposed before"
        number = parent.candidate.id
        note, prediction = prompts.labelled(answer, "IDEA"), prompts.labelled(answer, "PREDICTION")
        if wrong := self._checked(plan, Draft(genome, plan.shape_class.name, (number,), note, prediction, self.name)):
            return wrong
        return Proposal(genome, (number,), note, prediction=prediction)

    def _checked(self, plan: Plan, draft: Draft) -> str:
        """Check a new body on the small shapes before it is timed; knobs alone are as right as they were."""
        if not plan.tools.measures or same_body(draft.genome, plan.parents[0].candidate.genome):
            return ""
        judged = plan.tools.measure(draft, Fidelity.SCREEN)
        return "" if judged.measurement.passed else f"It was checked: {judged.text()}"


def same_body(a: Genome, b: Genome) -> bool:
    return a.body.digest == b.body.digest


def _with_talk(found: Proposal, talk: Conversation) -> Proposal:
    said = talk.said()
    return replace(found, cost_usd=said.cost_usd, tokens=said.tokens, said=said)
