"""Proves skeletons in turn, those with the least bounds first.

One model of all skeletons has a weak relaxation: CP-SAT takes a minute over two hundred
that it proves within a fiftieth of a second each. And a plan that is proven early
leaves most of the others out by their bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from meshwright.cpsat.problem import Proof
from meshwright.deadline import Deadline
from meshwright.plans.columns import Floats


def prove_in_turn(
    lower: Floats,
    upper: Floats,
    prove_one: Callable[[int], Proof],
    settle: Callable[[Proof], Proof],
    deadline: Deadline,
) -> Proof:
    """Return the proof of the best skeleton, settled; of equals, the first.

    `lower` and `upper` bound the ticks of each skeleton, (skeletons,); one without a
    split has no bound, but an infinite one. Once `deadline` has passed, or a skeleton
    was left unproven, the one with the least upper bound stands for all that are left.
    """
    order = np.argsort(lower, kind="stable")[: np.isfinite(lower).sum()].tolist()
    best, left, is_over = Proof("infeasible", -1, (), 0, np.inf), np.inf, False
    while order and (best.skeleton < 0 or lower[order[0]] <= best.ticks):
        if is_over or deadline.has_passed:
            left = min(left, float(lower[order[0]]))
            order = [min(order, key=lambda row: float(upper[row]))]
        row = order.pop(0)
        own = replace(prove_one(row), skeleton=row)
        left = min(left, own.bound) if own.status != "infeasible" else left
        best, is_over = _better(best, own), own.status in ("feasible", "unknown")
    if best.skeleton < 0:
        return replace(best, bound=left)
    best = settle(best)
    is_proven = left >= best.ticks
    return replace(
        best,
        status="optimal" if is_proven else "feasible",
        bound=float(best.ticks) if is_proven else min(left, best.ticks),
    )


def _better(best: Proof, own: Proof) -> Proof:
    """Return the proof with a plan that is faster, or comes first among equals."""
    if own.status not in ("optimal", "feasible"):
        is_open = own.status == "unknown" and best.skeleton < 0
        return replace(best, status="unknown") if is_open else best
    if best.skeleton < 0:
        return own
    return min(best, own, key=lambda proof: (proof.ticks, proof.skeleton))
