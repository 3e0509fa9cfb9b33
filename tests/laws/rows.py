"""Conflicts against brute force, over rows that break any rule."""

from __future__ import annotations

import numpy as np

from meshwright.cost.job import make_job
from meshwright.cost.price import Prices, price
from meshwright.explanations.decisions import (
    HOST_MEMORY,
    MEMORY,
    decisions_in,
    without_decisions,
)
from meshwright.explanations.framework_rules import rules_behind
from meshwright.plans.rule import Rule, holding
from meshwright.plans.skeletons import Skeletons
from meshwright.rules.legality import (
    degree_pins,
    degree_rules,
    mesh_rules,
    plan_pins,
    plan_rules,
)
from meshwright.rules.sums import row_rules
from meshwright.spec.spec import Spec
from meshwright.topology.fabric import free_paths
from meshwright.topology.groups import price_groups
from tests.helpers import oracle
from tests.laws.law import Checks

ROUNDING_BYTES = 2**20
"""More than rounding up to kibibytes adds to a stage: some 250 amounts at most."""

MOST_GPUS = 4
"""Of clusters whose every row is looked at."""


def excludes_every_row(spec: Spec, decided: set[str]) -> Checks:
    """Hold a conflict and the rules behind it against every row of a small spec."""
    if spec.cluster.gpus > MOST_GPUS:
        return
    behind = {rule.rule for rule in rules_behind(spec, decided)}
    freed = without_decisions(
        spec, {rule.rule for rule in decisions_in(spec)} - decided
    )
    if behind & {rule.name for rule in row_rules(freed)}:
        yield not len(_rows(freed, set())), f"{decided} with {behind} leave rows"
        return
    told = f"{decided} with {behind}"
    yield not _any_plan(freed, decided, behind, ROUNDING_BYTES), f"{told} leave a plan"
    # What divides no batch, or has more stages than layers, is no row of the oracle's.
    for rule in behind - {"batch_divisible", "layers_cover_stages"}:
        is_needed = _any_plan(freed, decided, behind - {rule})
        yield is_needed, f"{told} leave no plan without {rule} either"


def _named(spec: Spec, names: set[str]) -> list[Rule]:
    rules = [*degree_rules(spec), *plan_rules(spec)]
    return [rule for rule in rules if rule.name in names]


def _rows(spec: Spec, names: set[str]) -> Skeletons:
    """Return every row of a spec that keeps its pins and some rules of legality."""
    fabric = make_job(spec).fabric
    meshes = np.array(list(oracle._meshes(fabric.sizes)))
    pins = [*degree_pins(spec), *plan_pins(spec)]
    rows = oracle.every_row(spec, meshes, [*pins, *_named(spec, names)])
    rows = rows.on_meshes(price_groups(fabric, meshes[rows.mesh]), rows.mesh)
    kept = holding(mesh_rules(spec, meshes), spec, rows)
    return rows.take(np.flatnonzero(kept))


def _any_plan(spec: Spec, decided: set[str], names: set[str], spare: int = 0) -> bool:
    """Return whether some row has a split with room, if room is asked for.

    `spare` bytes of it are left over.
    """
    rows = _rows(spec, names)
    if not decided & {MEMORY, HOST_MEMORY}:
        return bool(len(rows))
    rows = rows.take(np.flatnonzero(rows.pp <= spec.model.n_layers))
    prices = price(make_job(spec), rows.on_meshes(free_paths(len(rows), 8), rows.mesh))
    return any(_has_split(spec, prices, row, spare) for row in range(len(rows)))


def _has_split(spec: Spec, prices: Prices, row: int, spare: int) -> bool:
    one = oracle._one(prices, row)
    layers, again = oracle._possible_splits(spec, one.rows)
    on_host = oracle._host_bytes(one, layers)
    fits = oracle._peak_bytes(one, layers, again) <= spec.usable_gib * 2**30 - spare
    fits &= on_host + spare * (on_host > 0) <= oracle._host_room_bytes(spec)
    return bool(fits.any())
