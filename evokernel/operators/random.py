"""Draw valid genomes at random: the yardstick for every other operator."""

from __future__ import annotations

from evokernel.operators import Operator, Plan, Proposal
from evokernel.operators.mutate import random_proposal


class Random(Operator):
    """Ignores everything that was measured."""

    name = "random"

    def propose(self, plan: Plan) -> Proposal:
        return random_proposal(plan)
