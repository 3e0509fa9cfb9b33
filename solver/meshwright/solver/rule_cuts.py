"""Proofs under rules that the model does not hold whole: found splits are cut.

A split that CP-SAT finds and the checker finds to break a rule of the user is
forbidden, and the model solved again. Its time stays a lower bound on all others.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from meshwright.bounds.candidates import Candidates
from meshwright.bounds.rule_limit import keeps_user_rules
from meshwright.cost.job import Job
from meshwright.cpsat.problem import Pairs, Problem, Proof
from meshwright.deadline import Deadline
from meshwright.lattice.lattice import Lattice
from meshwright.rules.user_rules import split_dependent

MOST_CUTS = 400
"""Splits of one problem that are cut before it is left unproven."""

MOST_PROBED = 8
"""Skeletons of a batch that are solved for a first plan under rules of the user."""

Prove = Callable[[Problem], Proof]

Keeps = Callable[[int, Pairs], bool]
"""Returns whether a split of the skeleton of an index keeps the user's rules."""


def prove_within_rules(problem: Problem, prove: Prove, keeps: Keeps) -> Proof:
    """Return the proof of the best split that keeps the user's rules."""
    proof = prove(problem)
    for _ in range(MOST_CUTS):
        if proof.skeleton < 0 or keeps(proof.skeleton, proof.split):
            return proof
        problem = problem.without(proof.skeleton, proof.split)
        proof = prove(problem)
    return Proof("unknown", -1, (), 0, proof.bound)


def split_test(job: Job, lattice: Lattice, among: Candidates) -> Keeps:
    """Return the test whether splits of some candidates keep the user's rules."""
    if not split_dependent(job.spec):
        return lambda _row, _pairs: True

    def keeps(row: int, pairs: Pairs) -> bool:
        rows = among.costs.rows.take(np.array([row]))
        layers, recomputed = np.array(pairs, dtype=np.int64).T
        return keeps_user_rules(job, lattice, rows, layers, recomputed)

    return keeps


def first_plan_ticks(
    found: Candidates, prove: Callable[[Candidates], Proof], deadline: Deadline
) -> float:
    """Return the ticks of a plan that keeps the user's rules, if one is near."""
    for row in np.argsort(found.lower, kind="stable")[:MOST_PROBED].tolist():
        if np.isinf(found.lower[row]) or deadline.has_passed:
            break
        proof = prove(found.take(np.array([row])))
        if proof.skeleton >= 0:
            return float(proof.ticks)
    return float("inf")
