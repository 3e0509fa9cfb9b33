"""A framework's limits: every rule is one, and without it everything else stays."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import yaml

import meshwright as mw
from meshwright.cost.job import make_job
from meshwright.frameworks.base.framework import LIMITS, Framework
from meshwright.frameworks.base.registry import (
    IDEAL,
    KINDS_OF_RULES,
    framework,
    framework_of,
    limits,
    limits_of,
    without_limits,
)
from meshwright.planner.rows import build_lattice
from meshwright.plans.rule import Rule
from meshwright.plans.skeletons import Skeletons
from meshwright.spec.spec import Spec, framework_names

SPEC = "llama3-8b-2xh100-nvlink"

TP_SMALL = Rule("small", "tp is 1", "here", lambda spec, rows: rows.tp == 1)


def rows_of(name: str, *lifted: str) -> Skeletons:
    spec = mw.load(SPEC, Spec).model_copy(update={"framework": name})
    return build_lattice(make_job(spec.without_limits(lifted))).rows


def codes(rows: Skeletons) -> set[tuple[int, ...]]:
    names = [field.name for field in fields(rows) if field.name not in ("mesh", "ep")]
    columns = [getattr(rows, name) for name in names]
    numbers = [column for column in columns if isinstance(column, np.ndarray)]
    return set(zip(*(number.tolist() for number in numbers), strict=True))


@pytest.mark.parametrize("name", framework_names())
def test_rules_that_ideal_does_not_test_are_limits(name: str) -> None:
    found, ideal = framework(name), framework(IDEAL)
    known = {rule.holds for rule in (*ideal.degree_rules, *ideal.plan_rules)}
    rules = [rule for kind in KINDS_OF_RULES for rule in getattr(found, kind)]
    named = {limit.name for limit in limits(found, ideal)}
    assert {rule.name for rule in rules if rule.holds not in known} <= named


def test_ideal_has_no_limits() -> None:
    assert limits(framework(IDEAL), framework(IDEAL)) == ()


def test_a_new_rule_is_a_limit_with_its_sentence() -> None:
    changed = replace(framework(IDEAL), degree_rules=(TP_SMALL,))
    found = limits(changed, framework(IDEAL))
    assert [(limit.name, limit.sentence) for limit in found] == [("small", "tp is 1")]


def test_rules_that_do_not_concern_a_spec_are_no_limits_of_it() -> None:
    of_experts = replace(TP_SMALL, concerns=lambda spec: spec.model.moe is not None)
    changed = replace(framework(IDEAL), degree_rules=(of_experts,))

    def found(name: str) -> int:
        spec = mw.load(name, Spec)
        return len(limits(changed, framework(IDEAL), lambda rule: rule.concerns(spec)))

    assert (found(SPEC), found("mixtral-8x7b-64xh100")) == (0, 1)


def test_rules_of_one_name_are_one_limit() -> None:
    other = replace(TP_SMALL, sentence="pp is 1", holds=lambda spec, rows: rows.pp == 1)
    changed = replace(framework(IDEAL), degree_rules=(TP_SMALL,), plan_rules=(other,))
    assert [limit.sentence for limit in limits(changed, framework(IDEAL))] == [
        "tp is 1; pp is 1"
    ]


@pytest.mark.parametrize("name", framework_names())
def test_bytes_and_kernels_stay(name: str) -> None:
    found, ideal = framework(name), framework(IDEAL)
    names = {limit.name for limit in limits(found, ideal)}
    free = without_limits(found, names, ideal)
    limiting = {field.name for field in fields(Framework) if LIMITS in field.metadata}
    for field in fields(Framework):
        if field.name not in {*limiting, *KINDS_OF_RULES}:
            assert getattr(free, field.name) == getattr(found, field.name)
    assert len(limiting) > 0


@pytest.mark.parametrize("name", framework_names())
def test_no_plan_is_lost_without_a_limit(name: str) -> None:
    within = codes(rows_of(name))
    for limit in limits(framework(name), framework(IDEAL)):
        assert within <= codes(rows_of(name, limit.name)), limit


@pytest.mark.parametrize("name", framework_names())
def test_without_limits_every_plan_of_ideal_is_there(name: str) -> None:
    names = [limit.name for limit in limits(framework(name), framework(IDEAL))]
    assert codes(rows_of(IDEAL)) <= codes(rows_of(name, *names))


def test_an_inherited_rule_stays_inherited_beside_inherited_ones_alone() -> None:
    changed = replace(
        framework(IDEAL), degree_rules=(replace(TP_SMALL, is_inherited=True),)
    )
    pp_alone = replace(TP_SMALL, holds=lambda spec, rows: rows.pp == 1)
    for is_inherited in (False, True):
        instead = replace(pp_alone, is_inherited=is_inherited)
        ideal = replace(framework(IDEAL), degree_rules=(instead,))
        free = without_limits(changed, {"small"}, ideal)
        assert free.degree_rules[0].is_inherited == is_inherited


def test_a_spec_keeps_its_lifted_limits_in_copies_and_shows_them_nowhere() -> None:
    spec = mw.load(SPEC, Spec)
    free = spec.without_limits([limits_of(spec)[0].name])
    copy = free.model_copy(update={"pins": free.pins})
    assert framework_of(copy) == framework_of(free) != framework_of(spec)
    assert free.model_dump() == spec.model_dump()
    assert free.title == spec.title
    assert free != spec
    assert spec.lifted_limits == frozenset()


def test_no_file_lifts_a_limit() -> None:
    text = yaml.safe_dump({"model": "llama3-8b", "cluster": {"machine": "dgx-h100"}})
    training = {"seq_len": 4096, "global_batch": 64}
    data = {**yaml.safe_load(text), "training": training}
    for field in ("lifted_limits", "_lifted_limits"):
        with pytest.raises(mw.SpecError, match="lifted_limits"):
            mw.load({**data, field: ["zero_with_pipeline"]})
