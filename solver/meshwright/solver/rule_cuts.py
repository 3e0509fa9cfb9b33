"""Proofs under rules that the model does not hold whole: found splits are cut.

A split that CP-SAT finds and the checker finds to break a rule of the user is
forbidden, and the model solved again. Its time stays a lower bound on all others.
"""

from __future__ import annotations

from collections.abc import Callable

from meshwright.cpsat.problem import Pairs, Problem, Proof

MOST_CUTS = 400
"""Splits of one problem that are cut before it is left unproven."""

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
