"""What every operator keeps to. Inherit OperatorContract and give an `operator`."""

import random

import pytest

from evokernel.operators import Parent, Plan, Proposal, ProposalError
from tests.toys import CLASS, PROBLEM, genome, record

CONTEXT = PROBLEM.context(CLASS, {"arch": 0, "shared_bytes": 1 << 40, "num_sms": 2})


def plan(seed=0, parents=(), known=frozenset()):
    return Plan(
        CLASS,
        PROBLEM,
        CONTEXT,
        (genome(),),
        tuple(Parent(r.candidate, r.score(PROBLEM) or 0.0, r) for r in parents),
        random.Random(seed),
        lambda found: found.key in known,
    )


PARENTS = (record(1, 1.5, block=64, rows=2), record(2, 1.2, block=128, rows=4, form="b"), record(3, 1.1, rows=1))


class OperatorContract:
    def test_proposals_are_valid_canonical_and_unseen(self, operator):
        known: set[str] = set()
        for seed in range(20):
            try:
                proposal = operator.propose(plan(seed, PARENTS, known))
            except ProposalError:
                continue
            assert isinstance(proposal, Proposal)
            found = proposal.genome
            assert found.body.space.valid(found.knobs, CONTEXT)
            assert found.body.space.canonical(found.knobs, CONTEXT) == dict(found.knobs)
            assert found.key not in known
            known.add(found.key)
        assert known

    def test_proposals_come_without_parents_too_or_are_refused(self, operator):
        try:
            assert operator.propose(plan()).parents == ()
        except ProposalError as error:
            assert str(error)

    def test_the_same_randomness_gives_the_same_proposal(self, operator):
        first = operator.propose(plan(7, PARENTS))
        fresh = self.again(operator)
        assert fresh.propose(plan(7, PARENTS)).genome.key == first.genome.key

    def test_parents_named_are_parents_given(self, operator):
        assert set(operator.propose(plan(3, PARENTS)).parents) <= {1, 2, 3}

    def test_records_of_others_and_failures_are_learnt_without_complaint(self, operator):
        for number, speedup in ((10, 1.3), (11, None), (12, 0.2)):
            told = record(number, speedup, block=32, rows=1)
            operator.expect(told.candidate)
            operator.learn(told, told.score(PROBLEM))
        assert operator.propose(plan(1, PARENTS))

    def test_a_space_without_anything_unseen_is_a_proposal_error(self, operator):
        everything = {genome(**k).key for k in genome().body.space.enumerate(CONTEXT)}
        with pytest.raises(ProposalError):
            operator.propose(plan(0, PARENTS, everything))

    def again(self, operator):
        return type(operator)()
