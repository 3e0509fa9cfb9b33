"""Why a spec has no plan: a smallest conflict (MUS) among its decisions.

A correction set (MCS) is a set of decisions whose removal allows a plan. A conflict
shares a decision with every correction set. So a smallest conflict is found as a
smallest hitting set of the correction sets known so far, until no plan keeps all of
its decisions (Ignatiev et al. 2015, Smallest MUS extraction with minimal hitting set
dualization). Infeasibility is never taken from CP-SAT: whether a plan exists is asked
of the lattice, whose skeletons are tested for memory. Only pinned stages, limits on
links and rules of the user on splits, which that test does not cover, need a solve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from meshwright.cost.job import make_job
from meshwright.errors import InternalError
from meshwright.explanations.correction_sets import (
    NamedBits,
    correction_sets,
    minimal_sets,
)
from meshwright.explanations.decisions import (
    LINK_SHARE,
    TP_LINK,
    decisions_in,
    without_decisions,
)
from meshwright.rules.user_rules import rule_name, split_dependent
from meshwright.search.memory_fit import MemoryFit
from meshwright.search.rows import build_lattice
from meshwright.spec.spec import Spec

HasPlan = Callable[[Spec], bool]


@dataclass(frozen=True)
class Infeasibility:
    """Why a spec has no plan: its decisions, a conflict and the correction sets."""

    decisions: NamedBits
    conflict: int
    """A smallest set of decisions that no plan keeps together, as bits."""
    correction_sets: list[int]
    """Sets without which there is a plan, smallest first; all, if `is_complete`."""
    is_complete: bool


def analyse_infeasibility(spec: Spec, has_plan: HasPlan) -> Infeasibility:
    """Return which decisions of a spec without a plan conflict.

    `has_plan` is called only where the memory test of skeletons cannot tell whether a
    plan exists.
    """
    decisions = NamedBits(tuple(decision.rule for decision in decisions_in(spec)))
    solve_only = decisions.bits(solve_only_decisions(spec))
    is_complete = not solve_only and not spec.cluster.parts
    known: list[int] = []
    if not spec.cluster.parts:
        known = minimal_sets(
            dropped | solve_only for dropped in correction_sets(spec, decisions)
        )

    def is_possible(kept: int) -> bool:
        if is_complete:
            return any(not dropped & kept for dropped in known)
        open_names = decisions.names_of(decisions.every & ~kept)
        return has_plan(without_decisions(spec, open_names))

    conflict, known = smallest_conflict(decisions, known, is_possible)
    return Infeasibility(decisions, conflict, known, is_complete)


def smallest_conflict(
    decisions: NamedBits, known: list[int], is_possible: Callable[[int], bool]
) -> tuple[int, list[int]]:
    """Return a smallest conflict as bits, and all correction sets known at the end.

    These are `known` and the sets found on the way. `is_possible` tells whether there
    is a plan that keeps a set of decisions.
    """
    count = len(decisions.names)
    while is_possible(conflict := smallest_hitting_set(known, count)):
        kept = _maximal_possible(conflict, count, is_possible)
        known = minimal_sets([*known, decisions.every & ~kept])
    return conflict, known


def solve_only_decisions(spec: Spec) -> list[str]:
    """Return the decisions that only a solve can check.

    The test whether a skeleton fits in memory does not cover them.
    """
    pins, limits = spec.pins, spec.limits
    is_decided = {
        "pins.layers": pins.layers is not None,
        "pins.recompute_layers": pins.stage_recompute is not None,
        LINK_SHARE: limits.max_link_utilisation is not None,
        TP_LINK: limits.tp_min_link_gb_s is not None and not spec.cluster.is_tree,
    }
    of_splits = [rule_name(rule) for rule in split_dependent(spec)]
    return [name for name, is_here in is_decided.items() if is_here] + of_splits


def any_skeleton_fits(spec: Spec) -> bool:
    """Return whether at least one skeleton of the lattice fits in memory."""
    job = make_job(spec)
    lattice = build_lattice(job)
    return bool(len(lattice) and MemoryFit(job, lattice).is_fitting().any())


def smallest_hitting_set(sets: Sequence[int], count: int) -> int:
    """Return a smallest set that shares a member with every one of `sets`, as bits.

    Among several of that size, it is the one with the lowest bits. All sets have bits
    below `count`.

    Raises:
        InternalError: one of the sets is empty.
    """
    for size in range(count + 1):
        for members in combinations(range(count), size):
            hit = sum(1 << member for member in members)
            if all(hit & members_of_set for members_of_set in sets):
                return hit
    raise InternalError("rows of the lattice have room where no plan was found")


def _maximal_possible(kept: int, count: int, is_possible: Callable[[int], bool]) -> int:
    """Return the set with every decision added that still allows a plan."""
    for member in range(count):
        more = kept | 1 << member
        if more != kept and is_possible(more):
            kept = more
    return kept
