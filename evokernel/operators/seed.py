"""Hand out generation 0: the best of an earlier run, the templates' defaults and the configured seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evokernel.candidate import Genome
from evokernel.operators import Operator, Plan, Proposal, ProposalError


class Seed(Operator):
    """Proposes known designs, each once in every class where it is valid, before anything is searched.

    `best` holds what is proposed before them, by shape class.
    """

    name = "seed"

    def __init__(self, genomes: Sequence[Genome] = (), best: Mapping[str, Sequence[Genome]] | None = None) -> None:
        self.genomes = tuple(genomes)
        self.best = dict(best or {})

    def propose(self, plan: Plan) -> Proposal:
        for genome in (*self.best.get(plan.shape_class.name, ()), *self.genomes):
            space = genome.body.space
            knobs = space.canonical(genome.knobs, plan.context)
            fitted = Genome(genome.body, knobs)
            if space.valid(knobs, plan.context) and not plan.known(fitted):
                return Proposal(fitted, note=f"seed {genome.body.where}")
        raise ProposalError("every seed that is valid here has been proposed")
