"""Edits that make a spec possible, each solved again: decisions given up first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from typing import Literal, get_args

from meshwright.explanations.conflict import Clash
from meshwright.explanations.fixed import HOST_MEMORY, MEMORY, chosen, without
from meshwright.results.explanation import Repair
from meshwright.results.outcome import Outcome
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.spec import Spec

Solve = Callable[[Spec], Outcome]

Changes = Literal["plan", "training", "hardware"]

CHANGES: tuple[Changes, ...] = get_args(Changes)
"""What repairs change, the cheapest first."""

MOST_GIVEN_UP = 2
"""Decisions given up together where only solves tell whether that helps."""


def given_up(spec: Spec, clash: Clash, solve: Solve) -> list[Repair]:
    """Return what giving up the fewest decisions brings, the fastest first.

    All sets of that many are looked at: one that leaves a conflict whole is none.
    Capacities are not given up; see `hardware`.
    """
    for sets in _by_size(clash):
        found = []
        for names in map(clash.decisions.named, sets):
            best = solve(without(spec, names)).best
            if best is not None:
                edits = tuple(chosen(spec, name, best.plan) for name in names)
                found.append(repair(edits, best))
        if found:
            return sorted(found, key=lambda own: own.step_s)
    return []


def _by_size(clash: Clash) -> Iterator[list[int]]:
    """Yield sets of decisions to give up, those of one size together."""
    fixed = clash.decisions.bits([MEMORY, HOST_MEMORY])
    if clash.is_complete:
        sets = [own for own in clash.freeing if not own & fixed]
        sizes = sorted({own.bit_count() for own in sets})
        yield from ([own for own in sets if own.bit_count() == n] for n in sizes)
        return
    names = [n for n in clash.decisions.names if n not in (MEMORY, HOST_MEMORY)]
    for size in range(1, MOST_GIVEN_UP + 1):
        sets = [clash.decisions.bits(own) for own in combinations(names, size)]
        yield [own for own in sets if own & clash.conflict]


def repair(
    edits: Iterable[str], best: PricedPlan, changes: Changes = "plan", note: str = ""
) -> Repair:
    """Return a repair whose price is not known yet."""
    own = {"edits": tuple(edits), "changes": changes, "note": note}
    return Repair(**own, step_s=best.step_s, plan=best.plan)


def priced(repairs: list[Repair], best_s: float | None) -> list[Repair]:
    """Return repairs with their prices, the cheapest first.

    What changes the plan alone is cheaper than what changes the training, and that
    than what is bought; then come fewer edits, then less time.
    """
    least_s = best_s or min((own.step_s for own in repairs), default=0.0)
    against = "the best plan" if best_s else "the fastest repair"

    def cost(own: Repair) -> tuple[int, int, float]:
        return CHANGES.index(own.changes), len(own.edits), own.step_s

    return [
        own.model_copy(update={"price": own.step_s / least_s - 1, "against": against})
        for own in sorted(repairs, key=cost)
    ]
