"""Take each knob from one of two parents that share a body."""

from __future__ import annotations

from evokernel.candidate import Genome
from evokernel.operators import Operator, Plan, Proposal, ProposalError

TRIES = 32


class Cross(Operator):
    """Uniform crossover; parents of different bodies have no knobs in common."""

    name = "cross"

    def propose(self, plan: Plan) -> Proposal:
        for index, first in enumerate(plan.parents):
            body = first.candidate.genome.body
            for second in plan.parents[index + 1 :]:
                if second.candidate.genome.body.digest != body.digest:
                    continue
                mine, theirs = first.candidate.genome.knobs, second.candidate.genome.knobs
                for _ in range(TRIES):
                    mixed = {n: (mine if plan.rng.random() < 0.5 else theirs)[n] for n in mine}
                    knobs = body.space.canonical(mixed, plan.context)
                    genome = Genome(body, knobs)
                    if body.space.valid(knobs, plan.context) and not plan.known(genome):
                        return Proposal(genome, (first.candidate.id, second.candidate.id))
        raise ProposalError("no two parents of one body give an unseen child")
