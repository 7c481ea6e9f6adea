"""Set knobs with optuna's samplers, one study per body and shape class."""

from __future__ import annotations

import copy
import random
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from evokernel.candidate import Body, Candidate, Genome
from evokernel.measurement import Record
from evokernel.operators import Operator, Plan, Proposal, ProposalError
from evokernel.operators.mutate import random_proposal
from evokernel.space import Knobs, SearchSpace

optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)

# A look at a study copies its list of trials, and TPE fits all of them: 10 ms at 700 trials of 14 knobs, 170 ms at
# 10,000. So a study is rebuilt from a window, which in turn costs 50 ms: often enough to stay small, no oftener.
BEST_KEPT, LAST_KEPT = 200, 500
TRIMMED_AT = BEST_KEPT + LAST_KEPT + 100  # trials told
LITTER = 2000  # trials that stood in for something pending or invalid, now closed
INHERITED = 20  # trials that the study of an edited body takes over from its parent's, the best ones
STARTUP = 10  # trials told before a sampler looks at any
ASKS = 2  # fits of the sampler per proposal; what is invalid after that is repaired
REPAIRS = 300
FAILED_SCORE = 0.0  # optuna ignores FAIL, so a broken kernel is told as 0, or TPE returns to it


@dataclass
class Study:
    """One body in one shape class: a function of what was told, in that order, and of what is pending.

    Nothing of optuna's survives an ask but the trials told. So a resumed campaign, which knows its records and the
    candidates in flight but none of the asks before, is asked to measure what the uninterrupted one would have been.
    """

    space: SearchSpace
    sampler: str
    told: list[tuple[Knobs, float]] = field(default_factory=list)
    pending: dict[int, Knobs] = field(default_factory=dict)  # by candidate
    study: optuna.Study | None = None

    def __post_init__(self) -> None:
        self.distributions = {name: distribution(self.space, name) for name in self.space.knobs}
        self.movable = {name: d for name, d in self.distributions.items() if not d.single()}
        self.ordinal = {name: d for name, d in self.movable.items() if isinstance(d, IntDistribution)}
        self.trials: list[FrozenTrial] = []  # told, as optuna takes it; random search looks at none
        self.sources: list[FrozenTrial] = []  # what CMA-ES starts from: told, as far as it can see
        self.worst: float | None = None  # of those that passed
        self.litter = 0

    def tell(self, candidate: Candidate, score: float | None) -> None:
        self.pending.pop(candidate.id, None)
        if score is not None:
            self.worst = score if self.worst is None else min(self.worst, score)
        value = FAILED_SCORE if score is None else score
        if score is None and self.sampler == "cmaes":  # it fits a surface, which an outlying 0 would bend
            value = self.worst or FAILED_SCORE
        self._add(dict(candidate.genome.knobs), value)

    def inherit(self, parent: Study, mine: Knobs) -> None:
        """Start from what a parent body's study knows, as far as its knobs are ours; our own new knobs are as given."""
        best = sorted(range(len(parent.told)), key=lambda i: -parent.told[i][1])[:INHERITED]
        for index in sorted(best):
            knobs, value = parent.told[index]
            merged = {name: knobs.get(name, mine[name]) for name in self.space.knobs}
            if all(merged[name] in self.space.knobs[name] for name in merged):
                self._add(merged, value)

    def _add(self, knobs: Knobs, value: float) -> None:
        self.told.append((knobs, value))
        if self.sampler != "random":
            self.trials.append(self._trial(*self.told[-1], self.distributions))
        if self.sampler == "cmaes":
            self.sources.append(self._trial(*self.told[-1], self.ordinal))
        if len(self.told) > TRIMMED_AT:
            self._trim()
        elif self.study is not None:
            self.study.add_trials(self.trials[-1:])

    def _trim(self) -> None:
        """Keep the best and the latest."""
        older = range(len(self.told) - LAST_KEPT)
        best = sorted(older, key=lambda i: -self.told[i][1])[:BEST_KEPT]
        kept = [*sorted(best), *range(len(self.told) - LAST_KEPT, len(self.told))]
        self.told = [self.told[i] for i in kept]
        self.trials = [self.trials[i] for i in kept if self.trials]
        self.sources = [self.sources[i] for i in kept if self.sources]
        self.study = None

    def ask(self, seed: int, valid: Callable[[Knobs], bool]) -> Knobs:
        """Return the sampler's proposal, which may be invalid still."""
        if self.study is None or self.litter > LITTER:
            self.litter = 0
            self.study = optuna.create_study(direction="maximize")
            self.study.add_trials(self.trials)
        study, stand_ins = self.study, len(self.study.get_trials(deepcopy=False))
        if self.sampler != "random":
            study.add_trials([self._running(knobs) for knobs in self.pending.values()])
        study.sampler = self._sampler(seed)
        knobs = {}
        for _ in range(ASKS):
            # Invalid ones stay open: the constant liar counts what is running as bad, as if told 0.
            knobs = decode(self.space, study.ask(self.distributions).params)
            if valid(knobs):
                break
        for trial in study.get_trials(deepcopy=False)[stand_ins:]:
            study.tell(trial.number, state=TrialState.FAIL)
            self.litter += 1
        return knobs

    def _sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        if self.sampler == "tpe" and len(self.told) >= STARTUP:
            return Tpe(self.movable, seed)
        if self.sampler == "cmaes" and len(self.told) >= STARTUP:
            return CmaEs(self.movable, seed, self.sources)
        return optuna.samplers.RandomSampler(seed=seed)

    def _trial(self, knobs: Knobs, value: float, distributions: dict[str, BaseDistribution]) -> FrozenTrial:
        parameters = encode(self.space, {name: knobs[name] for name in distributions})
        return create_trial(params=parameters, distributions=distributions, value=value)

    def _running(self, knobs: Knobs) -> FrozenTrial:
        parameters = encode(self.space, knobs)
        return create_trial(params=parameters, distributions=self.distributions, state=TrialState.RUNNING)


class Tpe(optuna.samplers.TPESampler):  # type: ignore[misc]  # optuna is imported untyped
    """TPE over all knobs at once: they interact, and one fit is cheaper than one for every knob."""

    def __init__(self, space: dict[str, BaseDistribution], seed: int) -> None:
        # With many asks in flight, TPE proposes the same point again and again unless it is told to be a liar.
        super().__init__(seed=seed, n_startup_trials=STARTUP, multivariate=True, constant_liar=True)
        self.space = space

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self.space  # known; inferring it from the trials takes 40% of an ask


class CmaEs(optuna.samplers.CmaEsSampler):  # type: ignore[misc]
    """CMA-ES warm-started, at every ask, from all that was told (Nomura et al., arXiv 2012.06932).

    Its own state lives in trials that it proposed itself, in the order it did: half of the records here come from
    other operators, and a resumed campaign has no such trials. Categorical knobs, which it cannot see, are TPE's.
    """

    def __init__(self, space: dict[str, BaseDistribution], seed: int, told: list[FrozenTrial]) -> None:
        super().__init__(seed=seed, warn_independent_sampling=False, source_trials=told)
        self.ordinal = {name: d for name, d in space.items() if isinstance(d, IntDistribution)}
        if len(self.ordinal) < 2:
            self.ordinal = {}  # it needs two dimensions
        self.tpe = Tpe({name: d for name, d in space.items() if name not in self.ordinal}, seed)
        self.space = space

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self.space

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        numbered = copy.copy(trial)
        numbered.number = 0  # optuna adds the number to the seed; a resumed study numbers its trials otherwise
        return {
            **super().sample_relative(study, numbered, self.ordinal),
            **self.tpe.sample_relative(study, trial, self.tpe.space),
        }


SAMPLERS = ("tpe", "random", "cmaes")


def distribution(space: SearchSpace, name: str) -> BaseDistribution:
    """Numbers become their index, an ordinal integer: as categories, CMA-ES would not see them at all."""
    if space.is_ordinal(name):
        return IntDistribution(0, len(space.knobs[name]) - 1)
    return CategoricalDistribution(list(space.knobs[name]))


def encode(space: SearchSpace, knobs: Knobs) -> dict[str, Any]:
    return {n: space.knobs[n].index(v) if space.is_ordinal(n) else v for n, v in knobs.items()}


def decode(space: SearchSpace, parameters: dict[str, Any]) -> Knobs:
    return {n: space.knobs[n][parameters[n]] if space.is_ordinal(n) else parameters[n] for n in space.knobs}


class Tune(Operator):
    """Asks optuna for the knobs of the best parent's body, or of a template while there is no parent."""

    name = "tune"
    tunes = True

    def __init__(self, sampler: str = "tpe", seed: int = 0) -> None:
        if sampler not in SAMPLERS:
            raise ValueError(f"sampler is {sampler!r}; choose one of {', '.join(SAMPLERS)}")
        if sampler == "cmaes" and find_spec("cmaes") is None:
            raise ValueError("sampler is 'cmaes', which needs the package cmaes")
        self.sampler = sampler
        self.seed = seed
        self.studies: dict[tuple[str, str], Study] = {}
        self.bodies: dict[int, str] = {}  # of each candidate
        self.lock = threading.Lock()  # proposals are made in threads, optuna's studies are not safe in them

    def _study(self, body: Body, shape_class: str) -> Study:
        key = (body.digest, shape_class)
        if key not in self.studies:
            self.studies[key] = Study(body.space, self.sampler)
        return self.studies[key]

    def _begun(self, candidate: Candidate) -> Study:
        """Return a candidate's study; that of an edited body starts from its parents'."""
        body, where = candidate.genome.body, candidate.shape_class
        self.bodies[candidate.id] = body.digest
        new = (body.digest, where) not in self.studies
        study = self._study(body, where)
        for parent in candidate.parents if new else ():
            theirs = self.studies.get((self.bodies.get(parent, ""), where))
            if theirs is not None and theirs is not study:
                study.inherit(theirs, dict(candidate.genome.knobs))
        return study

    def propose(self, plan: Plan) -> Proposal:
        body, parents = self._body(plan)
        space = body.space
        stream = random.Random(plan.rng.getrandbits(64) ^ self.seed)

        def valid(knobs: Knobs) -> bool:
            return space.valid(space.canonical(knobs, plan.context), plan.context)

        with self.lock:
            asked = self._study(body, plan.shape_class.name).ask(stream.getrandbits(31), valid)
        knobs = repaired(space, space.canonical(asked, plan.context), plan, stream)
        if knobs is not None:
            genome = self._unseen(Genome(body, knobs), plan, stream)
            if genome is not None:
                return Proposal(genome, parents)
        return random_proposal(plan)

    def _body(self, plan: Plan) -> tuple[Body, tuple[int, ...]]:
        if plan.parents:
            best = max(plan.parents, key=lambda parent: parent.score).candidate
            return best.genome.body, (best.id,)
        if not plan.templates:
            raise ProposalError("there is neither a parent nor a template to tune")
        return plan.rng.choice(plan.templates).body, ()

    def _unseen(self, genome: Genome, plan: Plan, stream: random.Random) -> Genome | None:
        """Return the genome itself, or a neighbour of it when it is known already."""
        if not plan.known(genome):
            return genome
        near = genome.body.space.neighbours(genome.knobs, plan.context)
        stream.shuffle(near)
        return next((g for g in (Genome(genome.body, knobs) for knobs in near) if not plan.known(g)), None)

    def expect(self, candidate: Candidate) -> None:
        with self.lock:
            study = self._begun(candidate)
            study.pending[candidate.id] = dict(candidate.genome.knobs)

    def learn(self, record: Record, score: float | None) -> None:
        candidate = record.candidate
        with self.lock:
            self._study(candidate.genome.body, candidate.shape_class).tell(candidate, score)


def repaired(space: SearchSpace, knobs: Knobs, plan: Plan, stream: random.Random) -> Knobs | None:
    """Change as few knobs as make the genome valid: one, then two, then three, drawn at random."""
    if space.valid(knobs, plan.context):
        return knobs
    for attempt in range(REPAIRS):
        changed = dict(knobs)
        for name in stream.sample(list(space.knobs), min(len(space.knobs), 1 + 3 * attempt // REPAIRS)):
            changed[name] = stream.choice(space.knobs[name])
        changed = space.canonical(changed, plan.context)
        if space.valid(changed, plan.context):
            return changed
    return None
