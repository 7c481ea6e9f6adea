"""The driver's desk: thoughts of slow operators, drafts that agents want measured, submissions from outside."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container
from dataclasses import replace

from evokernel.candidate import Candidate, Genome
from evokernel.llm.conversation import Said
from evokernel.llm.ledger import Ledger
from evokernel.llm.patch import PatchError
from evokernel.llm.patch import genome as genome_of
from evokernel.llm.tools import Draft, Judged, ToolError, Tools
from evokernel.measurement import Fidelity, Measurement, Record
from evokernel.operators import Operator, Plan, Proposal, ProposalError
from evokernel.proposers import Proposers, Request, Thought
from evokernel.reporters import Reporter
from evokernel.search import Search
from evokernel.store import Conversation, Lesson, Run, Store, Submission, exchange
from evokernel.toolbox import Inside, enough

GRACE_S = 2.0  # that conversations get to end when the campaign does
LOOK_EVERY_S = 0.5  # for submissions
SHORTEST_REST_S, LONGEST_REST_S = 0.5, 300.0  # before a model that did not answer is asked again
HOPELESS = 8  # times that no model answered, each after twice the rest of the one before

Begin = Callable[[Candidate, Fidelity], None]


class Desk:
    """Belongs to the driver's thread, which alone writes and announces."""

    def __init__(
        self,
        store: Store,
        run: Run,
        search: Search,
        ledger: Ledger,
        reporter: Reporter,
        proposers: Proposers,
        cancel: Callable[[], None],  # ends the waits of all models
    ) -> None:
        self.store = store
        self.run = run
        self.search = search
        self.ledger = ledger
        self.reporter = reporter
        self.proposers = proposers
        self.cancel = cancel
        self.tools: Tools = Inside(store, run, proposers.request)
        self.slow = [(operator, weight) for operator, weight in search.operators if operator.slow and weight > 0]
        self.asked = dict.fromkeys((id(operator) for operator, _ in self.slow), 0)
        self.others_asked = search.asked
        self.candidates: dict[int, Candidate] = {}  # that somebody here asked for
        self.measured: dict[int, list[Measurement]] = {}  # of those
        self.waiting: dict[int, list[Request]] = {}
        self.wanted: set[int] = set()  # to be timed once the check that is under way has passed
        self.lessons: dict[int, float | None] = {  # candidate -> parent's score, until it is settled
            x.candidate_id: None for x in store.lessons(run.id) if x.candidate_id and not x.outcome
        }
        self.trials: dict[tuple[str, str], tuple[int, float]] = {}  # (class, body) -> candidate of the lesson, best
        self.failures = 0  # answers that no model gave, in a row
        self.hopeless = False
        self.rest_until = float("-inf")
        self.unfinished: tuple[int | None, int] = (None, 0)  # row and tokens of what is under way
        self.recorded = (ledger.tokens, ledger.usd)
        self.looked_at = float("-inf")
        self.spending = threading.Lock()
        ledger.journal = self._keep_spending
        exchange.reopen(store, run.id)

    def open(
        self,
        begin: Begin,
        in_flight: Container[int],
        refusal: Callable[[], str],
        now: Callable[[], float] = time.monotonic,  # models think in real time, whatever clock an evaluator has
    ) -> None:
        """Meet the driver: how a candidate is set to be measured, which are, and why no more may be."""
        self.begin, self.in_flight, self.refusal, self.now = begin, in_flight, refusal, now

    @property
    def busy(self) -> bool:
        """Whether something may still come from here: a thought, a draft, or a model that was not reached just now."""
        return self.proposers.busy > 0 or bool(self.waiting) or (self.failures > 0 and not self.hopeless)

    def serve(self) -> None:
        """Take in whatever waits; once the campaign ends, nothing new begins."""
        for request in self.proposers.requests():
            self._request(request)
        for thought in self.proposers.thoughts():
            self._thought(thought)
        if not self.refusal():
            self._claim()
            self._ask()
        self._keep_spending()

    def wait(self, timeout_s: float) -> None:
        """Return when there is something to serve, or the time is up."""
        if self.proposers.busy:
            self.proposers.wait(timeout_s)
        else:
            time.sleep(max(0.0, min(timeout_s, self.rest_until - self.now())))

    # ---- slow operators ----

    def _ask(self) -> None:
        """Give each slow operator its share of plans, by weight, while threads are free."""
        if self.now() < self.rest_until or self.refusal():
            return
        total = sum(weight for _, weight in self.search.operators if 0 < weight < float("inf"))
        for operator, weight in self.slow:
            if self.proposers.busy >= self.proposers.limit:
                return
            plans = self.search.asked - self.others_asked
            if self.asked[id(operator)] <= weight / total * plans:
                plan = self.search.plan_for_slow()
                if plan is None:
                    return  # nothing has been measured that could be built upon
                self.asked[id(operator)] += 1
                self.proposers.start(operator, replace(plan, tools=self.tools))

    def _thought(self, thought: Thought) -> None:
        outcome = thought.outcome
        if isinstance(outcome, ProposalError):
            if outcome.said:
                self._keep(outcome.said, None)
            if outcome.__cause__ is not None:
                self.reporter.note(f"{outcome}; the campaign goes on")
                return
            if outcome.no_model:
                self.failures += 1
                self.hopeless = outcome.lasting or self.failures >= HOPELESS
                rest_s = SHORTEST_REST_S * 2.0 ** (self.failures - 1)
                self.rest_until = self.now() + (LONGEST_REST_S if outcome.lasting else min(LONGEST_REST_S, rest_s))
                if self.failures == 1 and not self.refusal():
                    self.reporter.note(f"no model answers ({outcome}); the campaign goes on with the samplers")
            else:
                self._answers_again()
            return
        self._answers_again()
        candidate = self._proposal(thought.operator, thought.plan, outcome)
        if outcome.said:
            self._keep(outcome.said, candidate)

    def _answers_again(self) -> None:
        if self.failures:
            self.reporter.note("a model answers again")
        self.failures, self.hopeless = 0, False

    def _proposal(self, operator: Operator, plan: Plan, proposal: Proposal) -> Candidate | None:
        """Have a proposal measured; a draft that was checked is known already, and keeps its number."""
        where = plan.shape_class.name
        draft = Draft(
            proposal.genome, where, proposal.parents, proposal.note, proposal.prediction, operator.name
        )  # fmt: skip
        number = self.search.number(where, proposal.genome)
        if number is None and self.refusal():
            return None
        candidate = self._adopted(number) if number is not None else self._made(draft, proposal)
        self._expect(candidate, draft)
        self._begin(candidate, Fidelity.FULL)
        return candidate

    def _keep(self, said: Said, candidate: Candidate | None) -> None:
        number = candidate.id if candidate else None
        talk = Conversation(said.model, list(said.messages), number, said.tokens, said.cost_usd)
        with self.spending:
            self.store.add_conversation(self.run.id, talk)
            self.recorded = (self.recorded[0] + said.tokens, self.recorded[1] + said.cost_usd)
            self._write_spending()

    def _keep_spending(self) -> None:
        """Keep on disk what models were paid beyond the stored conversations, at worst what is asked of them now."""
        with self.spending:  # proposers' threads come here too, before each request
            self._write_spending()

    def _write_spending(self) -> None:
        tokens, usd = self.ledger.committed()
        row, kept = self.unfinished
        open_tokens = max(0, tokens - self.recorded[0])
        if open_tokens != kept:
            row = exchange.keep_unfinished(
                self.store, self.run.id, row, open_tokens, max(0.0, usd - self.recorded[1])
            )  # fmt: skip
            self.unfinished = (row, open_tokens)

    # ---- drafts and submissions ----

    def _claim(self) -> None:
        """Look for submissions now and then; claiming writes, so look first."""
        if time.monotonic() - self.looked_at < LOOK_EVERY_S:
            return
        self.looked_at = time.monotonic()
        if exchange.waiting(self.store, self.run.id):
            for submission in self.store.claim_submissions(self.run.id):
                self._submission(submission)

    def _request(self, request: Request) -> None:
        draft = request.draft
        number = self.search.number(draft.shape_class, draft.genome)
        if number is None and self.refusal():
            request.refuse(self.refusal())
            return
        candidate = self._adopted(number) if number is not None else self._made(draft)
        self._expect(candidate, draft)
        self.waiting.setdefault(candidate.id, []).append(request)
        self._answer_or_begin(candidate)

    def _answer_or_begin(self, candidate: Candidate) -> None:
        """Answer who waits for a candidate and can be answered; have measured what the others want."""
        left = []
        for request in self.waiting.pop(candidate.id, []):
            latest = enough(self.measured.get(candidate.id, ()), request.fidelity)
            if latest is not None:
                request.answer.set_result(Judged(candidate.id, latest, self.search.score_of(candidate)))
            elif self.refusal() and candidate.id not in self.in_flight:
                request.refuse(self.refusal())
            else:
                left.append(request)
        if left:
            self.waiting[candidate.id] = left
            self._begin(candidate, left[0].fidelity)

    def _submission(self, handed: Submission) -> None:
        """Make a candidate of a submission, or say why not. One that comes too late waits for the next sitting."""
        if self.refusal():
            return
        try:
            candidate = self._submitted(handed)
        except ToolError as error:
            exchange.answer(self.store, handed.id, refusal=str(error) or "refused")
            self.reporter.note(f"submission {handed.id} is refused: {error}")
            return
        exchange.answer(self.store, handed.id, candidate.id)
        self.reporter.note(f"submission {handed.id} is candidate {candidate.id}")
        self._begin(candidate, handed.fidelity)

    def _submitted(self, handed: Submission) -> Candidate:
        parent = self.tools.candidate(handed.parent_id) if handed.parent_id is not None else None
        where = handed.shape_class or (parent.shape_class if parent else "")
        if where not in self.search.states:
            raise ToolError(f"shape class {where!r} is none of {', '.join(self.search.states)}")
        genome = self._genome(handed, parent.genome if parent else None, where)
        number = self.search.number(where, genome)
        if number is not None:
            return self._adopted(number)
        parents = (parent.id,) if parent else ()
        return self._made(Draft(genome, where, parents, handed.note, handed.prediction, handed.operator))

    def _adopted(self, number: int) -> Candidate:
        """Return a candidate that the run has already, and know what was measured of it."""
        if number not in self.candidates:
            self.candidates[number] = self.store.candidate(number)
            self.measured[number] = self.store.measurements(number)
        return self.candidates[number]

    def _genome(self, handed: Submission, parent: Genome | None, where: str) -> Genome:
        state = self.search.states[where]
        try:
            genome = genome_of(handed.source, parent, state.problem.entry, state.context)
        except PatchError as error:
            raise ToolError(str(error)) from None
        backends = {t.body.space.backend for t in self.search.templates}
        if genome.body.space.backend not in backends:
            known = ", ".join(sorted(backends))
            raise ToolError(f"its backend is {genome.body.space.backend!r}; this run measures {known}")
        return genome

    def _made(self, draft: Draft, proposal: Proposal | None = None) -> Candidate:
        """Store and announce a candidate, with its prediction, before anything is known of it."""
        proposal = proposal or Proposal(draft.genome, draft.parents, draft.note)
        made = self.search.candidate(draft.shape_class, draft.operator, proposal)
        candidate = self.store.add_candidate(self.run.id, made)
        self.search.announce(candidate)
        self.candidates[candidate.id] = candidate
        self._expect(candidate, draft)
        return candidate

    def _expect(self, candidate: Candidate, draft: Draft) -> None:
        """Write down what is tried and predicted, while nobody knows how it comes out."""
        known = enough(self.measured.get(candidate.id, ()), Fidelity.FULL)
        if candidate.id in self.lessons or known is not None or not (draft.note or draft.prediction):
            return
        self.store.add_lesson(self.run.id, Lesson(draft.note, draft.prediction, "", candidate.id))
        parent = self.tools.candidate(draft.parents[0]) if draft.parents else None
        self.lessons[candidate.id] = self.search.score_of(parent) if parent else None

    def _begin(self, candidate: Candidate, fidelity: Fidelity) -> None:
        """Have a candidate measured, unless it is being so, or has been, or the campaign ends."""
        if enough(self.measured.get(candidate.id, ()), fidelity) is not None or self.refusal():
            return
        if candidate.id not in self.in_flight:
            self.begin(candidate, fidelity)
        elif fidelity is Fidelity.FULL:
            self.wanted.add(candidate.id)

    # ---- results ----

    def told(self, record: Record, score: float | None) -> None:
        """Called once the search knows a measurement: answer who waits for it, and write down what was learnt."""
        candidate, measurement = record.candidate, record.measurement
        if candidate.id in self.candidates:
            self.measured.setdefault(candidate.id, []).append(measurement)
            self._answer_or_begin(candidate)
            if candidate.id in self.wanted:
                self.wanted.remove(candidate.id)
                self._begin(candidate, Fidelity.FULL)
        self._learn(candidate, measurement, score)

    def _learn(self, candidate: Candidate, measurement: Measurement, score: float | None) -> None:
        trial = (candidate.shape_class, candidate.genome.body.digest)
        if candidate.id in self.lessons and (score is not None or not measurement.passed or measurement.given_up):
            before = self.lessons.pop(candidate.id)
            if measurement.given_up:
                said = f"given up, far behind the leader ({measurement.resources['stopped_early']})"
            elif score is None:
                said = f"{measurement.outcome.value} {measurement.message[-300:]}"
            else:
                against = f", its parent {before:.4f}" if before is not None else ""
                said = f"score {score:.4f}{against}"
                if candidate.genome.body.digest not in self.search.template_bodies:
                    self.trials.setdefault(trial, (candidate.id, score))
            exchange.settle(self.store, candidate.id, said)
        elif score is not None and trial in self.trials and score > self.trials[trial][1]:
            # A new structure is judged by what tuning makes of it.
            number, _ = self.trials[trial]
            self.trials[trial] = (number, score)
            exchange.settle(self.store, number, f"score {score:.4f} once tuned (candidate {candidate.id})")

    def close(self) -> None:
        """End the conversations; what they cost is kept, whether or not they came to an end."""
        self.cancel()
        for number in list(self.waiting):
            self._answer_or_begin(self.candidates[number])
        self.proposers.close(GRACE_S, self.serve)
        self.ledger.close()
        self._keep_spending()
