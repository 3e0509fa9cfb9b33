"""The map of a lattice, against solves of what each dot stands for."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright.api.price import map_of
from meshwright.cost.job import make_job
from meshwright.cost.profile import load_profile
from meshwright.explanations import lattice_map as dot_groups
from meshwright.planner.degrees import degree_rows, enumerate_degrees
from meshwright.planner.rows import build_lattice
from meshwright.planner.unplaced import list_layouts
from meshwright.plans.rule import broken
from meshwright.plans.skeletons import plain_columns
from meshwright.report.pages.answer import map_data
from meshwright.results.outcome_parts import Dot, LatticeMap
from meshwright.rules.legality import degree_rules
from meshwright.spec.plan_fields import FIELDS, Pins
from tests.helpers.extent import gate

PROFILE = load_profile("measured")
SMALL, MOE, NONE_FITS = (
    *("llama2-13b-8xa100", "mixtral-8x7b-64xh100", "llama3-8b-2x4090-pcie"),
)
MIXED, RINGS = "gpt2-xl-2x3090-2x4090", "gpt-1.3b-dgx-1v"


@cache
def mapped(name: str) -> tuple[mw.Spec, mw.Outcome, LatticeMap]:
    spec = mw.load(name, mw.Spec)
    outcome = mw.solve(spec, by_kind=False, safety=False)
    found = (outcome.best, outcome.fastest)
    lattice = map_of(spec, [one.plan for one in found if one], PROFILE)
    assert lattice is not None
    return spec, outcome, lattice


def pinned(spec: mw.Spec, dot: Dot) -> mw.Outcome:
    """Return the answer where only the skeleton that stands for a dot is left."""
    free = {"dp_shard", "recompute_modules"}
    fields: dict[str, Any] = {k: v for k, v in dot.fields.items() if k not in free}
    if dot.fields["recompute"] == "selective":
        fields["recompute_modules"] = dot.fields["recompute_modules"]
    pins = Pins.model_validate(fields)
    changed = spec.model_copy(update={"pins": pins})
    return mw.solve(changed, by_kind=False, safety=False, fastest=True)


@pytest.mark.parametrize("name", [SMALL, MOE, NONE_FITS, MIXED, RINGS])
def test_dots_stand_for_all_skeletons(name: str) -> None:
    _, outcome, lattice = mapped(name)
    assert sum(dot.skeletons for dot in lattice.dots) == lattice.skeletons
    if outcome.certificate is not None and not lattice.is_of_parts:
        assert lattice.skeletons == outcome.certificate.counts.skeletons


@pytest.mark.parametrize("name", [SMALL, MOE, MIXED, RINGS])
def test_the_best_plan_stands_at_its_time(name: str) -> None:
    _, outcome, lattice = mapped(name)
    assert outcome.best is not None
    (best,) = (dot for dot in lattice.dots if dot.state == "best")
    assert best.is_exact
    assert best.step_s == outcome.best.step_s
    assert best.memory_gib == pytest.approx(outcome.best.peak_gib)
    fits = [dot for dot in lattice.dots if dot.state in ("near", "best")]
    assert min(dot.step_s for dot in fits) <= (outcome.fastest or best).step_s * 1.00001


def test_no_dot_fits_where_no_plan_does() -> None:
    _, outcome, lattice = mapped(NONE_FITS)
    assert outcome.status == "infeasible"
    assert {dot.state for dot in lattice.dots} == {"memory"}
    assert all(dot.memory_gib > lattice.usable_gib for dot in lattice.dots)


@pytest.mark.parametrize("name", [SMALL, RINGS])
@pytest.mark.parametrize("state", ["near", "slower", "memory"])
def test_each_dot_is_what_a_solve_of_it_says(name: str, state: str) -> None:
    spec, outcome, lattice = mapped(name)
    fastest = outcome.fastest or outcome.best
    assert fastest is not None
    dots = [dot for dot in lattice.dots if dot.state == state]
    for dot in dots[:: max(len(dots) // gate(2, everything=8), 1)]:
        found = pinned(spec, dot)
        assert (found.best is None) == (state == "memory"), dot
        if found.best is None:
            assert dot.memory_gib > lattice.usable_gib
            continue
        assert dot.memory_gib <= lattice.usable_gib
        assert found.best.step_s >= dot.step_s * (1 - 1e-6)
        is_within = found.best.step_s <= fastest.step_s * (1 + lattice.within)
        assert state == "near" or not is_within


def test_fewer_dots_keep_the_least_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thinning loses nothing: a dot has the least bound of what it stands for."""
    spec, outcome, each = mapped(SMALL)
    assert each.shared == ()
    monkeypatch.setattr(dot_groups, "MOST_DOTS", 100)
    assert outcome.best is not None
    plans = [this.plan for this in (outcome.best, outcome.fastest) if this]
    few = map_of(spec, plans, PROFILE)
    assert few is not None
    assert few.shared == ("tp", "pp", "cp", "ep", "dp_replicate", "dp_shard", "zero")
    assert len(few.dots) <= 100

    def key(dot: Dot) -> tuple[Any, ...]:
        return tuple(dot.fields[name] for name in few.shared)

    for dot in few.dots:
        found = [one for one in each.dots if key(one) == key(dot)]
        assert sum(one.skeletons for one in found) == dot.skeletons
        fitting = [one.step_s for one in found if one.state != "memory"]
        assert (not fitting) == (dot.state == "memory")
        if fitting and dot.state == "slower":
            assert dot.step_s == pytest.approx(min(fitting), rel=1e-6)


@pytest.mark.parametrize("name", [SMALL, MOE])
def test_degrees_are_told_by_the_first_rule_that_they_break(name: str) -> None:
    spec, _, lattice = mapped(name)
    rules = degree_rules(spec)
    rows = degree_rows(enumerate_degrees(make_job(spec).fabric.sizes)[0])
    holds = [np.broadcast_to(rule.holds(spec, rows), len(rows)) for rule in rules]
    first = [one.argmin() for one in np.stack(holds, axis=1) if not one.all()]
    told: Counter[str] = Counter()
    for refusal in lattice.refusals:
        if refusal.rule in {rule.name for rule in rules}:
            told[refusal.rule] += refusal.count
    assert told == Counter(rules[rule].name for rule in first)


def test_layouts_are_told_by_degrees_experts_and_zero_stage() -> None:
    """Stages of ZeRO that no skeleton has are refused beside those that some have."""
    spec = mw.load(SMALL, mw.Spec)
    lattice = build_lattice(make_job(spec))
    found, kept = list_layouts(spec, lattice.degrees), lattice.unplaced
    every = set(zip(found.degree, found.rows.ep, found.rows.zero, strict=True))
    is_legal = kept.legal.counts > 0
    columns = (kept.base_degree, kept.base.ep, kept.base.zero)
    legal = set(zip(*(column[is_legal] for column in columns), strict=True))
    refused = dot_groups.refusals(make_job(spec), lattice)
    told = [one.count for one in refused if set(one.examples[0]) >= {"zero"}]
    assert {key[:2] for key in every - legal} & {key[:2] for key in legal}
    assert sum(told) == len(every - legal)


def test_rules_refuse_what_they_are_said_to() -> None:
    spec, _, lattice = mapped(MOE)
    rules = {rule.name: rule for rule in degree_rules(spec)}
    told = {refusal.rule: refusal for refusal in lattice.refusals}
    assert told["pin ep"].count > 1_000
    assert len(told["pin ep"].examples) <= 200
    assert all(one["ep"] != 8 for one in told["pin ep"].examples)
    for name in {"heads_divisible", "layers_cover_stages"} & set(told):
        for example in told[name].examples:
            assert not _keeps(rules[name], spec, example)


def _keeps(rule: Any, spec: mw.Spec, fields: Any) -> bool:
    from meshwright.plans.skeletons import Skeletons
    from meshwright.topology.fabric import free_paths

    columns = plain_columns(1) | {
        name: np.array([value]) for name, value in fields.items()
    }
    row = Skeletons(**columns, paths=free_paths(1, 0), mesh=np.array([0]))
    return not broken([rule], spec, row)


def test_where_rules_refuse_all_there_are_no_dots() -> None:
    rule = {"name": "both", "that": "tp == 8 and pp == 8"}
    spec = mw.load(SMALL, mw.Spec, rules=[rule])
    lattice = map_of(spec, (), PROFILE)
    assert lattice is not None
    assert lattice.dots == ()
    refused = {refusal.rule: refusal.count for refusal in lattice.refusals}
    assert refused["rules.both"] > 0
    assert map_data(lattice)["told"][0].startswith("No plan is legal")


def test_links_refuse_degrees_on_every_mesh() -> None:
    spec = mw.load(SMALL, mw.Spec)
    limits = spec.limits.model_copy(update={"tp_min_link_gb_s": 1e4})
    lattice = map_of(spec.model_copy(update={"limits": limits}), (), PROFILE)
    assert lattice is not None
    told = {refusal.rule: refusal for refusal in lattice.refusals}
    assert all(example["tp"] != 1 for example in told["tp_link_bandwidth"].examples)
    assert {dot.fields["tp"] for dot in lattice.dots} == {1}


def test_unlike_parts_without_a_plan_have_no_map() -> None:
    assert map_of(mw.load(MIXED, mw.Spec), (), PROFILE) is None


def test_every_field_of_a_plan_is_told() -> None:
    _, _, lattice = mapped(SMALL)
    assert all(
        list(dot.fields) == [field.name for field in FIELDS] for dot in lattice.dots
    )


def test_each_degree_with_its_experts_and_zero_stage_has_a_number() -> None:
    triples = [*product(range(4), (1, 2, 2**20 - 1), range(4))]
    degree, ep, zero = np.array(triples).T
    rows: Any = SimpleNamespace(ep=ep, zero=zero)
    keys = dot_groups._keys(rows, degree)
    assert len({*keys.tolist()}) == len(triples)
    assert keys.dtype == np.int64
    assert (np.diff(keys) > 0).all()


@pytest.mark.parametrize(("count", "told"), [(1, 1), (5, 5), (200, 200), (1_000, 200)])
def test_examples_of_a_refusal_are_spread_over_all_that_it_refuses(
    count: int, told: int
) -> None:
    rule: Any = SimpleNamespace(name="a rule", sentence="it is so")
    columns: Any = {"tp": np.arange(1, count + 1)}
    rows = degree_rows(np.ones((1, 5), dtype=np.int64))
    rows = rows.take_with(np.zeros(count, dtype=int), **columns)
    refusal = dot_groups._refusal(rule, rows, ("tp", "pp"))
    assert (refusal.rule, refusal.sentence, refusal.count) == (
        "a rule", "it is so", count
    )  # fmt: skip
    tensor = [example["tp"] for example in refusal.examples]
    assert len({*tensor}) == len(tensor) == told
    assert (tensor[0], tensor[-1]) == (1, count)
    assert {example["pp"] for example in refusal.examples} == {1}
