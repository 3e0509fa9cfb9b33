"""Degrees that rules refuse, by the rule: they are in no lattice and have no price."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meshwright.cost.job import Job
from meshwright.lattice.degrees import (
    degree_rows,
    enumerate_degrees,
    legal_degrees,
    mesh_rows,
)
from meshwright.lattice.lattice import Lattice
from meshwright.lattice.mesh_enumeration import enumerate_meshes
from meshwright.lattice.unplaced_choices import list_layouts
from meshwright.plans.columns import Ints
from meshwright.plans.rule import Rule
from meshwright.plans.skeletons import Skeletons
from meshwright.results.lattice_map import Refusal
from meshwright.rules.legality import degree_rules, mesh_rules, plan_rules
from meshwright.spec.plan_fields import FIELD
from meshwright.topology.groups import price_groups

MOST_EXAMPLES = 200
"""Examples of a rule that are told."""

MOST_EXPERTS, ZERO_STAGES = 2**20, 4
"""More than any expert-parallel degree; the number of ZeRO stages."""

OF_DEGREES = ("tp", "pp", "cp", "dp_replicate", "dp_shard")
OF_LAYOUTS = (*OF_DEGREES, "ep", "zero")


def refusals(job: Job, lattice: Lattice) -> tuple[Refusal, ...]:
    """Return the rules that refuse degrees, each with what it refuses, most first.

    Degrees are told by the first rule that they break, and so are degrees with an
    expert-parallel degree and a ZeRO stage, by the first rule that their plainest
    skeleton breaks.
    """
    found = [*_of_degrees(job), *_of_meshes(job, lattice), *_of_layouts(job, lattice)]
    return tuple(sorted(found, key=lambda own: -own.count))


def _of_degrees(job: Job) -> Iterator[Refusal]:
    degrees, _ = enumerate_degrees(job.fabric.sizes)
    yield from _by_rule(job, degree_rules(job.spec), degree_rows(degrees), OF_DEGREES)


def _of_meshes(job: Job, lattice: Lattice) -> Iterator[Refusal]:
    """Yield what rules on the levels of axes refuse, on every mesh of some degrees."""
    legal, _ = legal_degrees(job)
    kept = set(map(tuple, lattice.degrees.tolist()))
    refused: dict[str, tuple[Rule, list[Ints]]] = {}
    for degrees in legal:
        if tuple(degrees.tolist()) not in kept:
            rule = _rule_on_meshes(job, degrees)
            refused.setdefault(rule.name, (rule, []))[1].append(degrees)
    for rule, found in refused.values():
        yield _refusal(rule, degree_rows(np.array(found)), OF_DEGREES)


def _rule_on_meshes(job: Job, degrees: Ints) -> Rule:
    """Return the first rule that is broken by the mesh which breaks the fewest."""
    meshes = enumerate_meshes(job.fabric.sizes, degrees)
    rules = mesh_rules(job.spec, meshes)
    rows = mesh_rows(meshes, price_groups(job.fabric, meshes))
    broken = ~np.stack([rule.holds(job.spec, rows) for rule in rules])
    nearest = int(broken.sum(axis=0).argmin())
    return rules[int(broken[:, nearest].argmax())]


def _of_layouts(job: Job, lattice: Lattice) -> Iterator[Refusal]:
    """Yield what rules refuse of legal degrees, where no skeleton is left."""
    spec, unplaced = job.spec, lattice.unplaced
    layouts = list_layouts(spec, lattice.degrees)
    is_legal = unplaced.legal.counts > 0
    legal = _keys(unplaced.base, unplaced.base_degree)[is_legal]
    keys = _keys(layouts.rows, layouts.degree)
    rows = layouts.rows.take(np.flatnonzero(~np.isin(keys, legal)))
    keys = keys[~np.isin(keys, legal)]
    rules = plan_rules(spec)
    broken = [~np.broadcast_to(rule.holds(spec, rows), len(rows)) for rule in rules]
    plainest = np.lexsort((np.sum(broken, axis=0), keys))
    plainest = plainest[np.unique(keys[plainest], return_index=True)[1]]
    yield from _by_rule(job, rules, rows.take(plainest), OF_LAYOUTS)


def _keys(rows: Skeletons, degree: Ints) -> Ints:
    """Return a number for each set of degrees, with its ep and ZeRO stage."""
    return np.asarray((degree * MOST_EXPERTS + rows.ep) * ZERO_STAGES + rows.zero)


def _by_rule(
    job: Job, rules: list[Rule], rows: Skeletons, names: tuple[str, ...]
) -> Iterator[Refusal]:
    """Yield what each rule refuses that no rule before it does."""
    left = np.ones(len(rows), dtype=bool)
    for rule in rules:
        broken = left & ~np.broadcast_to(rule.holds(job.spec, rows), len(rows))
        if broken.any():
            yield _refusal(rule, rows.take(np.flatnonzero(broken)), names)
        left &= ~broken


def _refusal(rule: Rule, rows: Skeletons, names: tuple[str, ...]) -> Refusal:
    count = len(rows)
    shown = np.unique(np.linspace(0, count - 1, MOST_EXAMPLES).astype(np.int64))
    columns = {name: getattr(rows, name)[shown].tolist() for name in names}
    return Refusal(
        rule=rule.name,
        sentence=rule.sentence,
        count=count,
        examples=tuple(
            {name: FIELD[name].decoded(columns[name][i]) for name in names}
            for i in range(len(shown))
        ),
    )
