"""Edits that make a spec possible: single ones first, then pairs, each solved again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

from meshwright.explain.data import Conflict, Fixed, Repair
from meshwright.explain.fixed import MEMORY, chosen, without
from meshwright.plan import Outcome, PricedPlan
from meshwright.spec.cluster import Cluster
from meshwright.spec.spec import Spec

Solve = Callable[[Spec], Outcome]

NODES = (2, 4, 8)
"""How many times the machines of a cluster are tried, beside one more of them."""


def repairs(
    spec: Spec,
    fixed: Sequence[Fixed],
    conflict: Conflict,
    solve: Solve,
    best_s: float | None,
    needed_gib: float | None = None,
) -> list[Repair]:
    """Return repairs, fewest edits first, then the fastest.

    Every repair gives up something of the conflict: a set of edits that does not leaves
    the conflict as it is. Pairs are tried where no single edit of the spec helps.
    `needed_gib` is what the plan that comes closest holds on its fullest GPU.
    """
    names = [own.rule for own in conflict.rules]
    found = [*_freed(spec, [(name,) for name in names], solve, best_s)]
    if not found:
        others = [own.rule for own in fixed]
        pairs = [pair for pair in combinations(others, 2) if set(pair) & set(names)]
        found = [*_freed(spec, pairs, solve, best_s)]
    if MEMORY in names:
        found += [
            *_more_machines(spec, solve, best_s),
            *_more_memory(spec, needed_gib, solve, best_s),
        ]
    return sorted(found, key=lambda repair: (len(repair.edits), repair.step_s))


def _freed(
    spec: Spec, sets: Sequence[tuple[str, ...]], solve: Solve, best_s: float | None
) -> Iterator[Repair]:
    """Yield what leaving pins or limits open gives; memory is not there to be left."""
    for names in sets:
        if MEMORY in names:
            continue
        best = solve(without(spec, names)).best
        if best is not None:
            edits = tuple(
                chosen(spec, name, best.plan)
                if name.startswith("pins.")
                else f"{name}: none"
                for name in names
            )
            yield _repair(edits, best, best_s)


def _more_machines(spec: Spec, solve: Solve, best_s: float | None) -> Iterator[Repair]:
    """Yield the first larger cluster on which there is a plan."""
    cluster = spec.cluster
    if cluster.topology.scale_out is None or cluster.parts:
        return
    counts = sorted({cluster.count + 1, *(cluster.count * own for own in NODES)})
    for count in counts:
        larger = Cluster(
            topology=cluster.topology, count=count, overrides=cluster.overrides
        )
        best = solve(spec.model_copy(update={"cluster": larger})).best
        if best is not None:
            edit = f"cluster.count: {cluster.count} -> {count}"
            yield _repair((edit,), best, best_s)
            return


def _more_memory(
    spec: Spec, needed_gib: float | None, solve: Solve, best_s: float | None
) -> Iterator[Repair]:
    """Yield GPUs with as much memory as the plan that comes closest needs."""
    if needed_gib is None or needed_gib <= spec.usable_gib:
        return
    more = {"memory_gib": needed_gib * (1 + 1e-9)}
    changed = {"limits": spec.limits.model_copy(update=more)}
    best = solve(spec.model_copy(update=changed)).best
    if best is not None:
        edit = f"usable memory of a GPU: {spec.usable_gib:.2f} -> {needed_gib:.2f} GiB"
        yield _repair((edit,), best, best_s)


def _repair(edits: tuple[str, ...], best: PricedPlan, best_s: float | None) -> Repair:
    price = best.step_s / best_s - 1 if best_s else None
    return Repair(edits=edits, step_s=best.step_s, price=price, plan=best.plan)
