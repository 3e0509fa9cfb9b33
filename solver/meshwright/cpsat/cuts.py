"""Proves the fastest row by cuts: logic-based Benders decomposition.

The master chooses the row with the least bound. A model of this row alone splits its
layers, and its proven optimum goes back as a cut: the row takes no less. Once the
master chooses a row again that is proven, none is faster. Most rows are never split,
since their bounds are above the optimum of another one; and no model ever holds the
splits of several rows, whose relaxation is weak: two hundred skeletons take a minute
in one model, and a fiftieth of a second each alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from meshwright.cpsat.decisions import Ints
from meshwright.cpsat.master import Master
from meshwright.cpsat.problem import Proof
from meshwright.deadline import Deadline

NO_PLAN = Proof("infeasible", -1, (), 0, inf)


@dataclass
class SplitProofs:
    """The splits that are proven so far, and the master that their optima cut."""

    master: Master
    prove_row: Callable[[int], Proof]
    """Returns the proof of the best split of a row's layers."""
    known: dict[int, Proof] = field(default_factory=dict)

    def of_row(self, row: int) -> Proof:
        """Return the proof of a row; its optimum cuts the objective of the master."""
        if row not in self.known:
            proof = replace(self.prove_row(row), skeleton=row)
            self.known[row] = proof
            if proof.status == "optimal":
                self.master.raise_bound(row, proof.ticks)
            else:
                # Without a split there is no plan; one that is left unproven counts
                # by its bound, and the master has nothing more to say about it.
                self.master.leave_out([row])
        return self.known[row]


def prove_fastest(splits: SplitProofs, upper: Ints, deadline: Deadline) -> Proof:
    """Return the proof of the fastest row, the first of equals.

    `upper` bounds the ticks of each row from above, (rows,). Once `deadline` has passed
    or a row was left unproven, only the row with the least upper bound is still tried.
    """
    master, best, bound, is_over = splits.master, NO_PLAN, inf, False
    while (row := master.fastest()) is not None:
        if best.skeleton >= 0 and (master.ticks[row], row) >= (
            best.ticks,
            best.skeleton,
        ):
            break
        is_last = is_over or (deadline.has_passed and row not in splits.known)
        if is_last:
            bound = min(bound, float(master.ticks[row]))
            row = master.first_by(upper)
            assert row is not None
        proof = splits.of_row(row)
        if proof.status != "infeasible":
            bound = min(bound, proof.bound)
        best, is_over = better(best, proof), proof.status in ("feasible", "unknown")
        if is_last:
            break
    if best.skeleton < 0:
        return replace(best, bound=bound)
    is_proven = bound >= best.ticks
    return replace(
        best,
        status="optimal" if is_proven else "feasible",
        bound=float(best.ticks) if is_proven else min(bound, best.ticks),
    )


def prove_first(
    splits: SplitProofs, columns: Sequence[Ints], most_ticks: int, deadline: Deadline
) -> tuple[Proof, bool]:
    """Return the proof of the row that comes first by columns within `most_ticks`.

    Of rows that are equal by all columns it is the fastest. The second result says
    whether every row before it is proven to take longer, or to have no plan.
    """
    master, is_proven = splits.master, True
    master.leave_out(np.flatnonzero(master.ticks > most_ticks).tolist())
    while (row := master.first_by(*columns, master.ticks)) is not None:
        if row in splits.known:
            return splits.known[row], is_proven
        if deadline.has_passed:
            return NO_PLAN, False
        proof = splits.of_row(row)
        if proof.status == "optimal" and proof.ticks > most_ticks:
            master.leave_out([row])
        elif proof.status in ("feasible", "unknown"):
            is_proven &= proof.bound > most_ticks
    return NO_PLAN, is_proven


def better(best: Proof, proof: Proof) -> Proof:
    """Return the proof of the faster plan, of equals that of the first skeleton."""
    if proof.status not in ("optimal", "feasible"):
        is_open = proof.status == "unknown" and best.skeleton < 0
        return replace(best, status="unknown") if is_open else best
    if best.skeleton < 0:
        return proof
    return min(best, proof, key=lambda either: (either.ticks, either.skeleton))
