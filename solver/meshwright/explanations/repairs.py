"""Repairs: edits after which a spec has a plan. Here: decisions that are given up.

Every repair is solved again, so that its price is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from typing import Literal, get_args

from meshwright.explanations.conflict import Infeasibility
from meshwright.explanations.decisions import (
    HOST_MEMORY,
    MEMORY,
    edit_to_plan,
    without_decisions,
)
from meshwright.results.explanation import Repair
from meshwright.results.outcome import Outcome
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.spec import Spec

Solve = Callable[[Spec], Outcome]

Changes = Literal["plan", "training", "hardware", "safety"]

CHANGES: tuple[Changes, ...] = get_args(Changes)
"""What a repair may change, the cheapest first; less safety is never offered first."""

MOST_GIVEN_UP = 2
"""Most decisions given up together where the correction sets are not all known."""


def plan_repairs(
    spec: Spec,
    infeasibility: Infeasibility,
    solve: Solve,
    keep: Iterable[str] = (),
) -> list[Repair]:
    """Return the repairs that give up the fewest decisions, the fastest plan first.

    Every set of that many decisions is tried, except those that leave the conflict
    whole. Capacities are not given up here; see `hardware_repairs`. Neither are the
    decisions to `keep`.
    """
    decisions = infeasibility.decisions
    kept = decisions.bits([MEMORY, HOST_MEMORY, *keep])
    for sets in _sets_to_give_up(infeasibility, kept):
        found = []
        for names in map(decisions.names_of, sets):
            best = solve(without_decisions(spec, names)).best
            if best is not None:
                edits = tuple(edit_to_plan(spec, name, best.plan) for name in names)
                found.append(unpriced_repair(edits, best))
        if found:
            return sorted(found, key=lambda repair: repair.step_s)
    return []


def _sets_to_give_up(infeasibility: Infeasibility, kept: int) -> Iterator[list[int]]:
    """Yield lists of sets of decisions to give up; a list has the sets of one size."""
    decisions = infeasibility.decisions
    known = [bits for bits in infeasibility.correction_sets if not bits & kept]
    sizes = sorted({bits.bit_count() for bits in known})
    by_size = {n: [bits for bits in known if bits.bit_count() == n] for n in sizes}
    if infeasibility.is_complete:
        yield from by_size.values()
        return
    names = decisions.names_of(decisions.every & ~kept)
    for size in range(1, MOST_GIVEN_UP + 1):
        sets = [decisions.bits(chosen) for chosen in combinations(names, size)]
        yield [bits for bits in sets if bits & infeasibility.conflict]
    yield from (sets for n, sets in by_size.items() if n > MOST_GIVEN_UP)


def unpriced_repair(
    edits: Iterable[str], best: PricedPlan, changes: Changes = "plan", note: str = ""
) -> Repair:
    """Return a repair with its best plan; `with_prices` sets its price later."""
    return Repair(
        edits=tuple(edits),
        changes=changes,
        note=note,
        step_s=best.step_s,
        plan=best.plan,
    )


def with_prices(repairs: list[Repair], best_s: float | None) -> list[Repair]:
    """Return the repairs with their prices, the cheapest first.

    A change of the plan alone is cheaper than a change of the training, and that is
    cheaper than new hardware; last comes what costs nothing but safety. Among repairs
    of the same sort come fewer edits first, then the shorter step. `best_s` is the step
    time of the spec's fastest plan, if any.
    """
    least_s = best_s or min((repair.step_s for repair in repairs), default=0.0)
    against = "the fastest plan" if best_s else "the fastest repair"

    def cost(repair: Repair) -> tuple[int, int, float]:
        return CHANGES.index(repair.changes), len(repair.edits), repair.step_s

    return [
        repair.model_copy(
            update={"price": repair.step_s / least_s - 1, "against": against}
        )
        for repair in sorted(repairs, key=cost)
    ]
