"""Conflicts conflict, repairs repair, and nothing smaller does."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import yaml

from meshwright import catalog
from meshwright.check.check import broken_rules, check
from meshwright.cost.job import make_job
from meshwright.explanations.conflict import (
    Infeasibility,
    analyse_infeasibility,
    any_skeleton_fits,
    solve_only_decisions,
)
from meshwright.explanations.decisions import (
    HOST_MEMORY,
    MEMORY,
    with_pins,
    without_decisions,
)
from meshwright.explanations.explain import Explainer
from meshwright.explanations.repairs import plan_repairs
from meshwright.loading.plan_text import read_plan
from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from meshwright.reading.yaml_and_csv import read_yaml
from meshwright.results.explanation import NearestPlan
from meshwright.results.outcome_parts import Repair
from meshwright.spec.plan_fields import Pins
from meshwright.spec.spec import Spec
from tests.helpers.tight import leading_dense_data, tight_data
from tests.laws.asked import training
from tests.laws.law import Checks, Data, Law
from tests.laws.rows import excludes_every_row

FLOAT = 1e-9
"""Of a step time: what a plan may be off that was found in another way."""


def conflicts_are_minimal(data: Data, _choice: Random) -> Checks:
    """Keep the decisions of a conflict alone, and every smaller set of any.

    Sets with one decision less are among the smaller ones: all of it is needed.
    """
    spec = training(data)
    if has_plan(spec):
        return
    found = analyse_infeasibility(spec, has_plan)
    rules = set(found.decisions.names_of(found.conflict))
    every = set(found.decisions.names)
    yield not has_plan(without_decisions(spec, every - rules)), f"{rules} leave a plan"
    for size in range(len(rules)):
        for fewer in combinations(sorted(every), size):
            told = f"{fewer} leave no plan, told was {rules}"
            yield has_plan(without_decisions(spec, every - set(fewer))), told
    if not solve_only_decisions(spec):
        yield from excludes_every_row(spec, rules)


def repairs_are_true(data: Data, choice: Random) -> Checks:
    """Give up what is told, and everything else of that size; apply what is told."""
    spec = training(data)
    is_costly = bool(solve_only_decisions(spec))
    if has_plan(spec) or (is_costly and choice.random() > COSTLY):
        return
    yield from _gives_up_the_least(spec, analyse_infeasibility(spec, has_plan))
    if not is_costly:
        yield from _edits_repair(spec)


COSTLY = 0.1
"""Share of the specs of which only many solves tell what helps."""


def has_plan(spec: Spec) -> bool:
    """Return whether there is a plan: by the enumerator, where that can tell."""
    if solve_only_decisions(spec):
        return solve(spec).best is not None
    return any_skeleton_fits(spec)


def _gives_up_the_least(spec: Spec, found: Infeasibility) -> Checks:
    """Hold what is told against single decisions, or pairs where none helps alone."""
    told = plan_repairs(spec, found, solve)
    for repair in told:
        freed = without_decisions(spec, [_decision(edit) for edit in repair.edits])
        broken = broken_rules(make_job(freed), repair.plan)
        yield not broken, f"{repair.edits}: {broken} broken by {repair.plan}"
        own_s = check(make_job(freed), repair.plan).step_s
        yield _is_equal(own_s, repair.step_s), f"{own_s!r} s, told: {repair}"
    names = [n for n in found.decisions.names if n not in (MEMORY, HOST_MEMORY)]
    edits = {tuple(map(_decision, one.edits)) for one in told}
    for size in (1, 2):
        pairs = combinations(names, size)
        helping = {pair for pair in pairs if has_plan(without_decisions(spec, pair))}
        if helping:
            yield edits == helping, f"{edits} for {helping}"
            return
    yield all(len(one) > 2 for one in edits), f"{edits}, and no two help"


def _is_equal(own_s: float, told_s: float) -> bool:
    return abs(own_s - told_s) <= FLOAT * told_s


def _decision(edit: str) -> str:
    name = edit.partition(":")[0]
    return f"pins.{name}" if name in Pins.model_fields else name


def _edits_repair(spec: Spec) -> Checks:
    """Apply edits as a user would: what stands behind the arrow, at its place."""
    told = Explainer(Options()).spec(spec)
    yield from _nearest_is_as_told(spec, told.nearest_plan)
    for repair in told.repairs:
        best = solve(edited(spec, repair)).best
        is_told = best is not None and _is_equal(best.step_s, repair.step_s)
        yield is_told, f"{repair.edits} give {best} for {repair.step_s!r} s"


def _nearest_is_as_told(spec: Spec, nearest: NearestPlan | None) -> Checks:
    """Ask for the nearest plan as it is printed: it fits, and takes as long."""
    if nearest is None:
        return
    best = solve(with_pins(spec, read_plan(nearest.text))).best
    is_told = best is not None and _is_equal(best.step_s, nearest.step_s)
    yield is_told, f"{nearest.text} gives {best} for {nearest.step_s!r} s"
    changed = {change.partition(":")[0] for change in nearest.changes}
    pinned = {name for name, pin in spec.pins if pin not in (None, "any")}
    yield changed | set(nearest.kept) == pinned, f"{nearest} of {pinned}"


def edited(spec: Spec, repair: Repair) -> Spec:
    """Return a spec with the edits of a repair."""
    for edit in repair.edits:
        path, _, change = edit.partition(": ")
        value = yaml.safe_load(change.partition(" -> ")[2].partition(", recompute_")[0])
        if path in Pins.model_fields:
            beside = {"recompute_layers": "any"} if ", recompute_" in change else {}
            spec = with_pins(spec, Pins.model_validate({path: value, **beside}))
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


CONFLICTS = Law(
    "conflicts",
    "a conflict excludes every plan, and no smaller set of decisions does",
    tight_data(),
    conflicts_are_minimal,
    tested=15,
    always=(leading_dense_data(),),
)

REPAIRS = Law(
    "repairs",
    "a repair, applied, gives the plan that is told, and nothing less repairs",
    tight_data(4),
    repairs_are_true,
    tested=12,
)
