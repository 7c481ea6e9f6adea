"""Let a model work on a parent with tools until it submits: read, compile, check, time, repair; all of it bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from evokernel.llm import Model, ModelError, Reply, ToolCall, prompts
from evokernel.llm.conversation import Conversation
from evokernel.llm.tools import SCHEMAS, Draft, ToolError
from evokernel.llm.workbench import Workbench
from evokernel.measurement import Fidelity
from evokernel.operators import Operator, Plan, Proposal, ProposalError

NUDGE = "Call one of the tools; end by calling submit."


class Agent(Operator):
    """A conversation of at most `turns` answers, with `checks` and `times` measurements.

    A submission that fails goes back with the reason `repairs` times; then a dearer model takes over, or it is dropped.
    """

    name = "agent"
    slow = True

    def __init__(
        self,
        models: Sequence[Model] = (),
        turns: int = 24,
        checks: int = 8,
        times: int = 4,
        repairs: int = 3,
        max_tokens: int = 8192,
    ) -> None:
        bounds = {"turns": (turns, 1), "checks": (checks, 0), "times": (times, 0), "repairs": (repairs, 0)}
        for name, (value, least) in {**bounds, "max_tokens": (max_tokens, 64)}.items():
            if value < least:
                raise ValueError(f"{name} is {value}; at least {least}")
        self.models = tuple(models)
        self.turns = turns
        self.allowed = {"check": checks, "time": times}
        self.repairs = repairs
        self.max_tokens = max_tokens

    def propose(self, plan: Plan) -> Proposal:
        if not plan.parents:
            raise ProposalError("nothing has been measured yet that an agent could work on")
        parent, *others = plan.parents
        opening = prompts.opening(plan, plan.tools, parent, others[:1], prompts.WITH_TOOLS)
        sitting = Sitting(self, plan, Conversation(self.models, opening))
        for _ in range(self.turns):
            try:
                reply = sitting.talk.ask(SCHEMAS, self.max_tokens)
            except ModelError as error:
                talk = sitting.talk
                raise ProposalError(
                    str(error), talk.said(), no_model=not talk.answered, lasting=error.lasting
                ) from None
            draft = sitting.answer(reply)
            if draft is not None:
                said = sitting.talk.said()
                return Proposal(
                    draft.genome, draft.parents, draft.note, said.cost_usd, said.tokens, draft.prediction, said
                )  # fmt: skip
            if sitting.misses > self.repairs and not sitting.escalated():
                break
        raise ProposalError("the conversation ended without a candidate", sitting.talk.said())


@dataclass
class Sitting:
    """One conversation as it goes on."""

    agent: Agent
    plan: Plan
    talk: Conversation
    used: Counter[str] = field(default_factory=Counter)
    drafted: set[str] = field(default_factory=set)  # genomes that this conversation had measured
    misses: int = 0  # answers without a call, and submissions that failed

    def __post_init__(self) -> None:
        self.bench = Workbench(
            self.plan.tools,
            self.plan.problem.entry,
            lambda _: self.plan.context,
            self.agent.name,
            self.plan.shape_class.name,
        )

    def escalated(self) -> bool:
        self.misses = 0
        return self.talk.escalate()

    def answer(self, reply: Reply) -> Draft | None:
        """Answer every call of a reply; returns the draft of a submission that is fit to be measured."""
        if not reply.calls:
            self.misses += 1
            self.talk.say(NUDGE)
        submitted: Draft | None = None
        for call in reply.calls:
            try:
                if call.name == "submit":
                    submitted = self._submitted(call)
                    said = "submitted"
                else:
                    said = self._used(call)
            except ToolError as error:
                said = f"error: {error}"
                self.misses += call.name == "submit"
            self.talk.say(said, "tool", tool_call_id=call.id)
        return submitted

    def _used(self, call: ToolCall) -> str:
        if call.name in self.agent.allowed:
            if self.used[call.name] >= self.agent.allowed[call.name]:
                raise ToolError(f"no {call.name} is left in this conversation; submit your best edit")
            draft = self.bench.draft(self.bench.known(call.name, call.arguments))
            self.used[call.name] += 1
            if not self.plan.known(draft.genome):
                self.drafted.add(draft.genome.key)
        return self.bench.use(call.name, call.arguments)

    def _submitted(self, call: ToolCall) -> Draft:
        draft = self.bench.draft(self.bench.known(call.name, call.arguments))
        if draft.genome.key not in self.drafted and self.plan.known(draft.genome):
            raise ToolError("this candidate has been proposed before; change something")
        if self.plan.tools.measures:
            judged = self.plan.tools.measure(draft, Fidelity.SCREEN)  # known already, if it was checked or timed
            self.drafted.add(draft.genome.key)
            if not judged.measurement.passed:
                raise ToolError(f"it is not fit to be timed: {judged.text()}")
        return draft
