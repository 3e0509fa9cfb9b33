"""The smallest set of decisions that leaves no plan, found by asking the enumerator.

A set conflicts where no plan exists with all other decisions left open. Sets are tried
by size, so the first that conflicts is a smallest one: every smaller set has a plan.
CP-SAT's own word on infeasibility is not taken: rows of the lattice that fit are
counted, but where stages are pinned or links limited, which only a solve can tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

from meshwright.explain.data import Conflict, Fixed
from meshwright.explain.fixed import without
from meshwright.job import Job
from meshwright.lattice import build_lattice
from meshwright.room import Memory
from meshwright.spec.spec import Spec

MakeJob = Callable[[Spec], Job]
IsPossible = Callable[[Spec], bool]


def smallest_conflict(
    spec: Spec, fixed: Sequence[Fixed], is_possible: IsPossible, witness: str
) -> Conflict:
    """Return a smallest conflict of a spec for which there is no plan.

    It has no rules where the model, the GPUs and the framework leave no plan alone.
    """
    names = [own.rule for own in fixed]
    for size in range(len(fixed)):
        for kept in combinations(fixed, size):
            open_ = [name for name in names if name not in {own.rule for own in kept}]
            if not is_possible(without(spec, open_)):
                return Conflict(rules=kept, is_minimal=True, witness=witness)
    return Conflict(rules=tuple(fixed), is_minimal=True, witness=witness)


def has_room(job: Job) -> bool:
    """Return whether any row of the lattice can hold the model."""
    lattice = build_lattice(job)
    return bool(len(lattice.rows) and Memory(job, lattice).fits().any())


def needs_solve(spec: Spec) -> bool:
    """Return whether rows that fit are not yet plans: stages pinned, links limited."""
    pins, limits = spec.pins, spec.limits
    is_staged = pins.layers is not None or pins.stage_recompute is not None
    return is_staged or limits.max_link_utilisation is not None
