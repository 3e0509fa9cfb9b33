"""The proof in turn: skeletons are proven one after another, least bound first.

One CP-SAT model of all skeletons has a weak relaxation: it takes a minute for two
hundred skeletons that take a fiftieth of a second each alone. And a plan that is proven
early excludes most of the other skeletons by their bounds.
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
    with_unique_split: Callable[[Proof], Proof],
    deadline: Deadline,
) -> Proof:
    """Return the proof of the best skeleton, the first of equals, with a unique split.

    `lower` and `upper` bound the ticks of each skeleton, (skeletons,); both are
    infinite where it has no split. Once `deadline` has passed or a skeleton was left
    unproven, only the skeleton with the least upper bound is still tried.
    """
    order = np.argsort(lower, kind="stable")[: np.isfinite(lower).sum()].tolist()
    best, bound = Proof("infeasible", -1, (), 0, np.inf), np.inf
    is_over = False
    while order and (best.skeleton < 0 or lower[order[0]] <= best.ticks):
        if is_over or deadline.has_passed:
            bound = min(bound, float(lower[order[0]]))
            order = [min(order, key=lambda row: float(upper[row]))]
        row = order.pop(0)
        proof = replace(prove_one(row), skeleton=row)
        if proof.status != "infeasible":
            bound = min(bound, proof.bound)
        best, is_over = _better(best, proof), proof.status in ("feasible", "unknown")
    if best.skeleton < 0:
        return replace(best, bound=bound)
    best = with_unique_split(best)
    is_proven = bound >= best.ticks
    return replace(
        best,
        status="optimal" if is_proven else "feasible",
        bound=float(best.ticks) if is_proven else min(bound, best.ticks),
    )


def _better(best: Proof, proof: Proof) -> Proof:
    """Return the proof of the faster plan, of equals that of the first skeleton."""
    if proof.status not in ("optimal", "feasible"):
        is_open = proof.status == "unknown" and best.skeleton < 0
        return replace(best, status="unknown") if is_open else best
    if best.skeleton < 0:
        return proof
    return min(best, proof, key=lambda either: (either.ticks, either.skeleton))
