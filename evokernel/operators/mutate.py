"""Change a few knobs of one parent, mostly by one step."""

from __future__ import annotations

from evokernel.candidate import Body, Genome
from evokernel.errors import SpaceError
from evokernel.operators import Operator, Plan, Proposal, ProposalError
from evokernel.space import Knobs

TRIES = 64


class Mutate(Operator):
    """Moves one knob in most proposals, more in fewer; `leap` is the chance of any value instead of a neighbour."""

    name = "mutate"

    def __init__(self, leap: float = 0.2, most: int = 3) -> None:
        if not 0 <= leap <= 1:
            raise ValueError(f"leap is {leap}; a probability")
        if most < 1:
            raise ValueError(f"most is {most}; at least 1")
        self.leap = leap
        self.most = most

    def propose(self, plan: Plan) -> Proposal:
        for parent in plan.parents:
            child = self._mutant(plan, parent.candidate.genome)
            if child is not None:
                return Proposal(child, (parent.candidate.id,))
        return random_proposal(plan)  # no parent yet, or nothing unseen around any of them

    def _mutant(self, plan: Plan, genome: Genome) -> Genome | None:
        space, old = genome.body.space, dict(genome.knobs)
        for _ in range(TRIES):
            knobs: Knobs = dict(old)
            while True:  # one change; another with probability one half, up to `most`
                self._change(knobs, plan, genome)
                changed = sum(knobs[name] != value for name, value in old.items())
                if changed >= self.most or plan.rng.random() < 0.5:
                    break
            knobs = space.canonical(knobs, plan.context)
            child = Genome(genome.body, knobs)
            if knobs != old and space.valid(knobs, plan.context) and not plan.known(child):
                return child
        return None

    def _change(self, knobs: Knobs, plan: Plan, genome: Genome) -> None:
        space = genome.body.space
        active = [n for n in space.knobs if len(space.knobs[n]) > 1 and space.active(n, knobs, plan.context)]
        if not active:
            return
        name = plan.rng.choice(active)
        values = space.knobs[name]
        here = values.index(knobs[name])
        if not space.is_ordinal(name) or plan.rng.random() < self.leap:
            knobs[name] = plan.rng.choice([v for i, v in enumerate(values) if i != here])
        else:
            near = [i for i in (here - 1, here + 1) if 0 <= i < len(values)]
            knobs[name] = values[plan.rng.choice(near)]


def random_proposal(plan: Plan) -> Proposal:
    """Draw an unseen valid genome of any template; when draws meet only seen ones, look through the whole space."""
    templates = list(plan.templates)
    plan.rng.shuffle(templates)
    for template in templates:
        genome = _drawn(template.body, plan)
        if genome is not None:
            return Proposal(genome)
    for template in templates:
        for knobs in template.body.space.enumerate(plan.context):
            genome = Genome(template.body, knobs)
            if not plan.known(genome):
                return Proposal(genome)
    raise ProposalError("every genome of every template has been proposed")


def _drawn(body: Body, plan: Plan) -> Genome | None:
    for _ in range(TRIES):
        try:
            knobs = body.space.sample(plan.rng, plan.context)
        except SpaceError:
            return None  # this template does not serve the class; another may
        genome = Genome(body, knobs)
        if not plan.known(genome):
            return genome
    return None
