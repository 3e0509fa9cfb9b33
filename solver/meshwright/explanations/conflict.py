"""The smallest set of decisions that leaves no plan.

Every plan goes against some decisions. A conflict meets all of those sets, so a
smallest conflict is a smallest set that meets every one that is known and that, asked
of the enumerator alone, leaves no plan (an implicit hitting set: Ignatiev et al. 2015,
Smallest MUS extraction with minimal hitting set dualization). CP-SAT's own word on
infeasibility is not taken: rows of the lattice that fit are counted, but where stages
are pinned or links limited, which only a solve can tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from meshwright.bounds.memory_fit import Memory
from meshwright.cost.job import make_job
from meshwright.errors import InternalError
from meshwright.explanations.correction_sets import Decisions, freeing_sets, minimal
from meshwright.explanations.fixed import LINK_SHARE, TP_LINK, fixed_in, without
from meshwright.lattice.lattice import build_lattice
from meshwright.spec.spec import Spec

HasPlan = Callable[[Spec], bool]


@dataclass(frozen=True)
class Clash:
    """The decisions of a spec without a plan, and how they stand to each other."""

    decisions: Decisions
    conflict: int
    """A smallest set of decisions that leaves no plan, as bits."""
    freeing: list[int]
    """Sets without which there is a plan, the smallest first; all, if `is_complete`."""
    is_complete: bool


def clash_of(spec: Spec, has_plan: HasPlan) -> Clash:
    """Return how the decisions of a spec without a plan clash.

    `has_plan` is asked where rows with room are not yet plans.
    """
    decisions = Decisions(tuple(own.rule for own in fixed_in(spec)))
    costly = decisions.bits(costly_decisions(spec))
    is_complete = not costly and not spec.cluster.parts
    known: list[int] = []
    if not spec.cluster.parts:
        known = minimal(own | costly for own in freeing_sets(spec, decisions))

    def is_possible(kept: int) -> bool:
        if is_complete:
            return any(not own & kept for own in known)
        return has_plan(without(spec, decisions.named(decisions.every & ~kept)))

    conflict, known = smallest_conflict(decisions, known, is_possible)
    return Clash(decisions, conflict, known, is_complete)


def smallest_conflict(
    decisions: Decisions, known: list[int], is_possible: Callable[[int], bool]
) -> tuple[int, list[int]]:
    """Return a smallest set of decisions that leaves no plan, as bits.

    Beside it come the sets without which there is a plan: `known` and those found on
    the way. `is_possible` tells whether there is a plan that keeps a set.
    """
    count = len(decisions.names)
    while is_possible(conflict := smallest_hit(known, count)):
        kept = _grown(conflict, count, is_possible)
        known = minimal([*known, decisions.every & ~kept])
    return conflict, known


def costly_decisions(spec: Spec) -> list[str]:
    """Return the decisions of which rows that fit do not tell whether they hold."""
    own, limits = spec.pins, spec.limits
    checks = {
        "pins.layers": own.layers is not None,
        "pins.recompute_layers": own.stage_recompute is not None,
        LINK_SHARE: limits.max_link_utilisation is not None,
        TP_LINK: limits.tp_min_link_gb_s is not None and not spec.cluster.is_tree,
    }
    return [name for name, is_asked in checks.items() if is_asked]


def has_room(spec: Spec) -> bool:
    """Return whether any row of the lattice can hold the model."""
    job = make_job(spec)
    lattice = build_lattice(job)
    return bool(len(lattice) and Memory(job, lattice).fits().any())


def smallest_hit(sets: Sequence[int], count: int) -> int:
    """Return a smallest set that shares a member with every one of `sets`.

    Of equals it is the one whose members come first; all have bits below `count`.

    Raises:
        InternalError: one of the sets is empty.
    """
    for size in range(count + 1):
        for members in combinations(range(count), size):
            hit = sum(1 << member for member in members)
            if all(hit & own for own in sets):
                return hit
    raise InternalError("rows of the lattice have room where no plan was found")


def _grown(kept: int, count: int, is_possible: Callable[[int], bool]) -> int:
    """Return a possible set with as much added as stays possible."""
    for member in range(count):
        more = kept | 1 << member
        if more != kept and is_possible(more):
            kept = more
    return kept
