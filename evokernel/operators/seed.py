"""Hand out generation 0: the templates' defaults and the configured seeds, each once in every shape class."""

from __future__ import annotations

from collections.abc import Sequence

from evokernel.candidate import Genome
from evokernel.operators import Operator, Plan, Proposal, ProposalError


class Seed(Operator):
    """Proposes known designs, where they are valid, before anything is searched."""

    name = "seed"

    def __init__(self, genomes: Sequence[Genome] = ()) -> None:
        self.genomes = tuple(genomes)

    def propose(self, plan: Plan) -> Proposal:
        for genome in self.genomes:
            space = genome.body.space
            knobs = space.canonical(genome.knobs, plan.context)
            fitted = Genome(genome.body, knobs)
            if space.valid(knobs, plan.context) and not plan.known(fitted):
                return Proposal(fitted, note=f"seed {genome.body.where}")
        raise ProposalError("every seed that is valid here has been proposed")
