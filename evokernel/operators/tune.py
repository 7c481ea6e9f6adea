"""Set knobs with optuna's samplers, one study per body and shape class."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import TrialState

from evokernel.candidate import Body, Genome
from evokernel.measurement import Record
from evokernel.operators import Operator, Plan, Proposal, ProposalError
from evokernel.operators.mutate import random_proposal
from evokernel.space import Knobs, SearchSpace

optuna.logging.set_verbosity(optuna.logging.ERROR)

SAMPLERS = ("tpe", "random", "cmaes")
# TPE's ask and tell cost 19 ms at 1,000 trials and 171 ms at 10,000, so a study is rebuilt from a window.
BEST_KEPT, LAST_KEPT = 200, 500
REBUILD_AT = 2 * (BEST_KEPT + LAST_KEPT)
INVALID_TRIES = 8
FAILED_SCORE = 0.0  # optuna ignores FAIL, so a broken kernel is told as 0, or TPE returns to it


@dataclass
class Study:
    """An optuna study of one body in one shape class, and the trials it was told."""

    space: SearchSpace
    sampler: str
    distributions: dict[str, BaseDistribution]
    told: list[tuple[Knobs, float]] = field(default_factory=list)
    open: dict[str, Any] = field(default_factory=dict)  # genome key -> optuna's trial, asked and not told

    def __post_init__(self) -> None:
        self.study = self._new()

    def _new(self) -> optuna.Study:
        return optuna.create_study(direction="maximize", sampler=make_sampler(self.sampler, 0))

    def ask(self, seed: int) -> Any:
        self.study.sampler = make_sampler(self.sampler, seed)  # a function of the plan's randomness, resumed or not
        return self.study.ask(self.distributions)

    def tell(self, genome: Genome, score: float | None) -> None:
        value = self._value(score)
        self.told.append((dict(genome.knobs), value))
        trial = self.open.pop(genome.key, None)
        if trial is not None:
            self.study.tell(trial, value)
        else:
            self.study.add_trial(self._frozen(dict(genome.knobs), value))
        if len(self.told) > REBUILD_AT:  # optuna's own list of trials is copied whole at every look
            self._rebuild()

    def _value(self, score: float | None) -> float:
        if score is not None:
            return score
        if self.sampler == "cmaes":  # it fits a surface: an outlying 0 would bend it
            return min((v for _, v in self.told if v > FAILED_SCORE), default=FAILED_SCORE)
        return FAILED_SCORE

    def _frozen(self, knobs: Knobs, value: float) -> optuna.trial.FrozenTrial:
        parameters = {name: encode(self.space, name, v) for name, v in knobs.items()}
        return optuna.trial.create_trial(
            params=parameters, distributions=self.distributions, value=value, state=TrialState.COMPLETE
        )

    def _rebuild(self) -> None:
        """Keep the best and the latest trials."""
        older, last = self.told[:-LAST_KEPT], self.told[-LAST_KEPT:]
        best = sorted(older, key=lambda pair: -pair[1])[:BEST_KEPT]
        self.told = best + last
        self.study = self._new()
        self.study.add_trials([self._frozen(knobs, value) for knobs, value in self.told])
        self.open.clear()


def make_sampler(name: str, seed: int) -> optuna.samplers.BaseSampler:
    if name == "tpe":
        # With many asks in flight, TPE proposes the same point again and again unless it is told to be a liar.
        return optuna.samplers.TPESampler(seed=seed, constant_liar=True, multivariate=False, n_startup_trials=10)
    if name == "cmaes":
        return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
    return optuna.samplers.RandomSampler(seed=seed)


def distribution(space: SearchSpace, name: str) -> BaseDistribution:
    """Numbers become their index, an ordinal integer: as categories, CMA-ES would not see them at all."""
    if space.is_ordinal(name):
        return IntDistribution(0, len(space.knobs[name]) - 1)
    return CategoricalDistribution(list(space.knobs[name]))


def encode(space: SearchSpace, name: str, value: Any) -> Any:
    return space.knobs[name].index(value) if space.is_ordinal(name) else value


def decode(space: SearchSpace, parameters: dict[str, Any]) -> Knobs:
    return {n: space.knobs[n][parameters[n]] if space.is_ordinal(n) else parameters[n] for n in space.knobs}


class Tune(Operator):
    """Asks optuna for the knobs of the best parent's body, or of a template while there is no parent."""

    name = "tune"

    def __init__(self, sampler: str = "tpe", seed: int = 0) -> None:
        if sampler not in SAMPLERS:
            raise ValueError(f"sampler is {sampler!r}; choose one of {', '.join(SAMPLERS)}")
        self.sampler = sampler
        self.seed = seed
        self.studies: dict[tuple[str, str], Study] = {}

    def _study(self, body: Body, shape_class: str) -> Study:
        key = (body.digest, shape_class)
        if key not in self.studies:
            space = body.space
            self.studies[key] = Study(space, self.sampler, {n: distribution(space, n) for n in space.knobs})
        return self.studies[key]

    def propose(self, plan: Plan) -> Proposal:
        body, parents = self._body(plan)
        study = self._study(body, plan.shape_class.name)
        stream = random.Random(plan.rng.getrandbits(64) ^ self.seed)
        for _ in range(INVALID_TRIES):
            trial = study.ask(stream.getrandbits(31))
            knobs = body.space.canonical(decode(body.space, trial.params), plan.context)
            genome = Genome(body, knobs)
            if not body.space.valid(knobs, plan.context):
                study.study.tell(trial, FAILED_SCORE)  # learnt without a measurement
                continue
            if plan.known(genome):
                study.study.tell(trial, state=TrialState.FAIL)  # says nothing new; optuna forgets it
                unseen = self._unseen_neighbour(genome, plan, stream)
                if unseen is None:
                    continue
                return Proposal(unseen, parents)
            study.open[genome.key] = trial
            return Proposal(genome, parents)
        return random_proposal(plan)

    def _body(self, plan: Plan) -> tuple[Body, tuple[int, ...]]:
        if plan.parents:
            best = max(plan.parents, key=lambda parent: parent.score).candidate
            return best.genome.body, (best.id,)
        if not plan.templates:
            raise ProposalError("there is neither a parent nor a template to tune")
        return plan.rng.choice(plan.templates).body, ()

    def _unseen_neighbour(self, genome: Genome, plan: Plan, stream: random.Random) -> Genome | None:
        near = genome.body.space.neighbours(genome.knobs, plan.context)
        stream.shuffle(near)
        for knobs in near:
            if not plan.known(found := Genome(genome.body, knobs)):
                return found
        return None

    def learn(self, record: Record, score: float | None) -> None:
        candidate = record.candidate
        self._study(candidate.genome.body, candidate.shape_class).tell(candidate.genome, score)
