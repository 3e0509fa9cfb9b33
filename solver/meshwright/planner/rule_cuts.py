"""Proofs under rules that the model does not hold whole: found splits are cut.

A split that CP-SAT finds and the checker finds to break a rule of the user is
forbidden, and the model solved again. Its time stays a lower bound on all others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np

from meshwright.cost.job import Job
from meshwright.deadline import Deadline
from meshwright.planner.candidates import Candidates
from meshwright.planner.pipeline import Pairs, Pipeline, Proof
from meshwright.planner.rows import Lattice
from meshwright.planner.side_limits import keeps_user_rules
from meshwright.rules.user_rules import split_dependent
from meshwright.spec.spec import Spec

MOST_PROOFS = 256
"""Splits that are proven for one answer under rules that a skeleton alone does not
decide, before the rest is left open: seconds."""

MOST_BRIEF_PROOFS = 32
"""The same for each of the dozens of brief solves of an explanation."""

MOST_PROBED = 8
"""Skeletons of a batch that are solved for a first plan where constructed splits break
rules of the user, or a limit on links."""

Prove = Callable[[Pipeline], Proof]

Keeps = Callable[[Pairs], bool]
"""Returns whether a split keeps the user's rules."""


@dataclass
class RuleEffort:
    """How many more splits are proven under the user's rules for one answer."""

    left: float = math.inf
    is_spent: bool = False
    """Whether a proof was refused because the effort was spent."""

    @classmethod
    def of(cls, spec: Spec, *, is_brief: bool) -> Self:
        """Return the effort for an answer; endless if no rule depends on the split."""
        if not split_dependent(spec):
            return cls()
        return cls(MOST_BRIEF_PROOFS if is_brief else MOST_PROOFS)

    def take_one(self) -> bool:
        """Return whether one more may be proven, which is then spent."""
        self.is_spent |= self.left < 1
        self.left -= 1
        return not self.is_spent

    def left_open(self, spec: Spec) -> str:
        """Return the sentence on undecided splits if the effort is spent."""
        names = ", ".join(repr(rule.name) for rule in split_dependent(spec))
        return (
            f"Rules on what a split of layers gives ({names}) are tested on one split "
            "after another: not all splits that may be faster were tested."
        )


def prove_within_rules(
    pipeline: Pipeline, prove: Prove, keeps: Keeps, effort: RuleEffort
) -> Proof:
    """Return the proof of the best split that keeps the user's rules, as far as known.

    It is unknown once the effort is spent.
    """
    bound = 0.0
    while effort.take_one():
        proof = prove(pipeline)
        if not proof.has_plan or keeps(proof.split):
            return proof
        bound = proof.bound
        pipeline = pipeline.without(proof.split)
    return Proof("unknown", (), 0, bound)


def split_test(job: Job, lattice: Lattice, one: Candidates) -> Keeps:
    """Return the test whether splits of a candidate keep the user's rules."""
    if not split_dependent(job.spec):
        return lambda _pairs: True

    def keeps(pairs: Pairs) -> bool:
        layers, recomputed = np.array(pairs, dtype=np.int64).T
        return keeps_user_rules(job, lattice, one.costs.rows, layers, recomputed)

    return keeps


def first_plan_prices(
    found: Candidates,
    wanted: int,
    prove: Callable[[Candidates], Proof],
    deadline: Deadline,
) -> dict[int, float]:
    """Return prices of plans that keep rules on splits, by their unplaced skeleton.

    So many are wanted. Only those with the least bounds are looked at.
    """
    prices: dict[int, float] = {}
    for row in np.argsort(found.lower, kind="stable")[:MOST_PROBED].tolist():
        is_over = len(prices) == wanted or deadline.has_passed
        if is_over or np.isinf(found.lower[row]):
            break
        proof = prove(found.take(np.array([row])))
        if proof.has_plan:
            skeleton, price = int(found.unplaced[row]), proof.ticks * found.scale[row]
            prices[skeleton] = min(float(price), prices.get(skeleton, math.inf))
    return prices
