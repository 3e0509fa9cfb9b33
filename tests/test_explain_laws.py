"""Laws of explanations: conflicts conflict, repairs repair, and nothing is cheaper."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, assume, example, given, settings

from meshwright import catalog
from meshwright.check import broken_rules, check
from meshwright.cost.price import price
from meshwright.explain.conflict import Clash, clash_of, costly_decisions, has_room
from meshwright.explain.data import Repair
from meshwright.explain.explain import Explainer
from meshwright.explain.fixed import HOST_MEMORY, MEMORY, fixed_in, with_plan, without
from meshwright.explain.framework import CHUNKS, WORLD, rules_behind
from meshwright.explain.repairs import given_up
from meshwright.job import make_job
from meshwright.legality import degree_rules, mesh_rules, plan_rules
from meshwright.options import Options
from meshwright.pin_rules import degree_pins, plan_pins
from meshwright.rule import Rule, holding
from meshwright.solve import solve
from meshwright.spec.pins import Pins
from meshwright.spec.source import read_yaml
from meshwright.spec.spec import Spec
from meshwright.topology.groups import price_groups
from meshwright.topology.paths import free_paths
from tests import oracle
from tests.tight import leading_dense_spec, tight_specs

LAWS = settings(
    max_examples=200, deadline=None, suppress_health_check=list(HealthCheck)
)

ROUNDING_BYTES = 2**20
"""More than rounding up to kibibytes adds to a stage: some 250 amounts at most."""


def has_plan(spec: Spec) -> bool:
    """Return whether there is a plan: by the enumerator, where that can tell."""
    if costly_decisions(spec):
        return solve(spec).best is not None
    return has_room(spec)


def clash(spec: Spec) -> tuple[Clash, set[str]]:
    """Return how the decisions of a spec without a plan clash, and the conflict."""
    assume(not has_plan(spec))
    found = clash_of(spec, has_plan)
    return found, set(found.decisions.named(found.conflict))


@LAWS
@given(tight_specs())
def test_a_conflict_excludes_every_plan_and_no_smaller_set_does(spec: Spec) -> None:
    """Sets with one decision less are among the smaller ones: all of it is needed."""
    found, rules = clash(spec)
    every = set(found.decisions.names)
    assert not has_plan(without(spec, every - rules))
    for size in range(len(rules)):
        for fewer in combinations(sorted(every), size):
            assert has_plan(without(spec, every - set(fewer)))


@LAWS
@example(leading_dense_spec())
@given(tight_specs(4))
def test_a_conflict_and_its_rules_exclude_every_row(spec: Spec) -> None:
    """By brute force over rows that break any rule; and each rule is needed."""
    assume(not costly_decisions(spec))
    _, decided = clash(spec)
    behind = {rule.rule for rule in rules_behind(spec, decided)}
    own = without(spec, {rule.rule for rule in fixed_in(spec)} - decided)
    if behind & {WORLD.rule, CHUNKS.rule}:
        assert not len(_rows(own, set()))
        return
    assert not _any_plan(own, decided, behind, ROUNDING_BYTES)
    # What divides no batch, or has more stages than layers, is no row of the oracle's.
    for rule in behind - {"batch_divisible", "layers_cover_stages"}:
        assert _any_plan(own, decided, behind - {rule})


def _named(spec: Spec, names: set[str]) -> list[Rule]:
    rules = [*degree_rules(spec), *plan_rules(spec)]
    return [rule for rule in rules if rule.name in names]


def _rows(spec: Spec, names: set[str]) -> Any:
    """Return every row of a spec that keeps its pins and some rules of legality."""
    fabric = make_job(spec).fabric
    meshes = np.array(list(oracle._meshes(fabric.sizes)))
    rows = oracle._every_row(spec, meshes)
    rows = rows.on_meshes(price_groups(fabric, meshes[rows.mesh]), rows.mesh)
    pins = [*degree_pins(spec), *plan_pins(spec), *mesh_rules(spec, meshes)]
    kept = holding([*pins, *_named(spec, names)], spec, rows)
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


def _has_split(spec: Spec, prices: Any, row: int, spare: int) -> bool:
    one = oracle._one(prices, row)
    pp, is_redone = int(prices.rows.pp[row]), bool(prices.rows.recompute[row])
    layers, again = oracle._splits(spec.model.n_layers, pp, is_redone)
    possible = layers[:, 0] >= spec.model.first_dense_layers
    if prices.rows.vpp[row] > 1:
        possible &= (layers == spec.model.n_layers // pp).all(axis=1)
    if is_redone and spec.pins.recomputes_all_layers:
        possible &= (again == layers).all(axis=1)
    layers, again = layers[possible], again[possible]
    on_host = oracle._host_bytes(one, layers)
    fits = oracle._peak_bytes(one, layers, again) <= spec.usable_gib * 2**30 - spare
    fits &= on_host + spare * (on_host > 0) <= oracle._host_room_bytes(spec)
    return bool(fits.any())


@LAWS
@given(tight_specs(4))
def test_what_is_given_up_repairs_and_nothing_less_does(spec: Spec) -> None:
    assume(not costly_decisions(spec))
    gives_up_the_least(spec)


@settings(LAWS, max_examples=15)
@given(tight_specs(4))
def test_so_does_what_only_solves_can_tell(spec: Spec) -> None:
    assume(costly_decisions(spec))
    gives_up_the_least(spec)


def gives_up_the_least(spec: Spec) -> None:
    """Check single decisions, or pairs where no single one: all that help are told."""
    found, _ = clash(spec)
    told = given_up(spec, found, solve)
    for repair in told:
        freed = without(spec, [_decision(edit) for edit in repair.edits])
        assert broken_rules(make_job(freed), repair.plan) == []
        step_s = check(make_job(freed), repair.plan).step_s
        assert step_s == pytest.approx(repair.step_s, rel=1e-9)
    names = [n for n in found.decisions.names if n not in (MEMORY, HOST_MEMORY)]
    for size in (1, 2):
        helping = {
            own for own in combinations(names, size) if has_plan(without(spec, own))
        }
        if helping:
            edits = {tuple(map(_decision, own.edits)) for own in told}
            assert edits == helping
            return
    assert all(len(own.edits) > 2 for own in told)


def _decision(edit: str) -> str:
    name = edit.partition(":")[0]
    return f"pins.{name}" if name in Pins.model_fields else name


@LAWS
@given(tight_specs(4))
def test_an_edit_applied_gives_the_plan_that_is_told(spec: Spec) -> None:
    """As a user would: what stands behind the arrow, in YAML, at its place."""
    assume(not costly_decisions(spec) and not has_plan(spec))
    for repair in Explainer(Options()).spec(spec).repairs:
        best = solve(edited(spec, repair)).best
        assert best is not None
        assert best.step_s == pytest.approx(repair.step_s, rel=1e-9)


def edited(spec: Spec, repair: Repair) -> Spec:
    """Return a spec with the edits of a repair."""
    for edit in repair.edits:
        path, _, change = edit.partition(": ")
        value = yaml.safe_load(change.partition(" -> ")[2].partition(", recompute_")[0])
        if path in Pins.model_fields:
            beside = {"recompute_layers": "any"} if ", recompute_" in change else {}
            spec = with_plan(spec, Pins.model_validate({path: value, **beside}))
            continue
        pins, data = spec.pins, spec.model_dump(exclude={"pins"})
        _put(data, path.split("."), value)
        spec = Spec.model_validate(data).model_copy(update={"pins": pins})
    return spec


def _put(data: Any, path: list[str], value: Any) -> None:
    *parents, last = path
    for name in parents:
        key, _, index = name.partition("[")
        data = data[key]
        data = data[int(index[:-1])] if index else data
    if last == "gpu":
        value = read_yaml(catalog.locate("topologies/gpus", value, Path())).data
    data[last] = value
