"""The alternatives to the best plan: other techniques, and other degrees."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from meshwright.explanations.time_differences import part_differences
from meshwright.plans.columns import Bools
from meshwright.results.serving import DegreeChoice, PricedServing, ServingKind
from meshwright.serving.check import check
from meshwright.serving.deployment import Deployments
from meshwright.serving.enumeration import enumerate_deployments
from meshwright.serving.lattice import Lattice
from meshwright.serving.nearest_miss import nearest_miss
from meshwright.spec.base import divisors

TECHNIQUES = ("TP", "PP", "replicas")


def techniques_of(rows: Deployments) -> list[str]:
    """Return the techniques of every deployment, such as "TP + replicas"."""
    is_used = np.stack([rows.tp > 1, rows.pp > 1, rows.dp_replicate > 1], axis=1)
    return [
        " + ".join(np.array(TECHNIQUES)[used].tolist()) or "one GPU" for used in is_used
    ]


def best_by_technique(lattice: Lattice) -> Iterator[ServingKind]:
    """Yield the best plan of every technique, or the nearest miss where none fits."""
    every, _ = enumerate_deployments(lattice.job)
    legal = np.array(techniques_of(lattice.rows))
    for technique in dict.fromkeys(techniques_of(every)):
        row = lattice.best(legal == technique)
        if row is not None:
            plan = lattice.plan(row, lattice.layers[row])
            yield ServingKind(kind=technique, best=check(lattice.job, plan))
        else:
            miss = nearest_miss(lattice, partial(_uses, technique))
            yield ServingKind(kind=technique, near_miss=miss)


def _uses(technique: str, rows: Deployments) -> Bools:
    return np.array([used == technique for used in techniques_of(rows)], dtype=bool)


def best_by_degree(lattice: Lattice, best: PricedServing) -> Iterator[DegreeChoice]:
    """Yield the best plan with every other degree of tensors and of stages."""
    degrees = divisors(int(np.prod(lattice.job.fabric.sizes)))
    for axis in ("tp", "pp"):
        yield from (_with_degree(lattice, best, axis, degree) for degree in degrees)


def _with_degree(
    lattice: Lattice, best: PricedServing, axis: str, degree: int
) -> DegreeChoice:
    """Return the best plan with a degree, or the rule that leaves it none."""

    def has_degree(rows: Deployments) -> Bools:
        return np.asarray(getattr(rows, axis) == degree)

    row = lattice.best(has_degree(lattice.rows))
    if row is not None:
        priced = check(lattice.job, lattice.plan(row, lattice.layers[row]))
        return _compared(axis, degree, priced, best)
    broken = nearest_miss(lattice, has_degree).broken_rules
    rule = broken[0].rule if broken else "no split of layers"
    return DegreeChoice(axis=axis, degree=degree, because=rule)


def _compared(
    axis: str, degree: int, priced: PricedServing, best: PricedServing
) -> DegreeChoice:
    """Return a degree with the part of the objective that grows most under it."""
    changes = part_differences(priced.objective_parts, best.objective_parts)
    part = max(changes, key=lambda name: changes[name])
    growth = f"{part} {changes[part] / best.objective_s:+.1%}"
    is_best = getattr(best.plan, axis) == degree
    return DegreeChoice(
        axis=axis,
        degree=degree,
        objective_s=priced.objective_s,
        because="the best" if is_best else growth,
    )
