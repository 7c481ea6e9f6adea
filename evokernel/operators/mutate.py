"""Change a few knobs of one parent, mostly by one step."""

from __future__ import annotations

from evokernel.candidate import Genome
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
        if not plan.parents:
            return self._fresh(plan)
        parent = plan.parents[0].candidate
        space = parent.genome.body.space
        for _ in range(TRIES):
            knobs: Knobs = dict(parent.genome.knobs)
            while True:  # one change; another with probability one half, up to `most`
                self._change(knobs, plan, parent.genome)
                changed = sum(knobs[name] != value for name, value in parent.genome.knobs.items())
                if changed >= self.most or plan.rng.random() < 0.5:
                    break
            knobs = space.canonical(knobs, plan.context)
            genome = Genome(parent.genome.body, knobs)
            if knobs != dict(parent.genome.knobs) and space.valid(knobs, plan.context) and not plan.known(genome):
                return Proposal(genome, (parent.id,))
        raise ProposalError("no unseen mutant of this parent was found")

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

    def _fresh(self, plan: Plan) -> Proposal:
        return random_proposal(plan)


def random_proposal(plan: Plan) -> Proposal:
    """Draw an unseen valid genome of any template."""
    from evokernel.errors import SpaceError

    templates = list(plan.templates)
    plan.rng.shuffle(templates)
    for template in templates:
        for _ in range(TRIES):
            try:
                knobs = template.body.space.sample(plan.rng, plan.context)
            except SpaceError:
                break  # this template does not serve the class; another does
            genome = Genome(template.body, knobs)
            if not plan.known(genome):
                return Proposal(genome)
    raise ProposalError("no unseen random genome was found")
