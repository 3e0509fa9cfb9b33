"""The limits of a framework, and the framework without some of them.

A limit is what a framework cannot launch: its rules of one name together, and fields
that say which plans it launches. To lift a limit is to accept also what a framework
without limits accepts, so that no plan is lost. Bytes, buffers, kernels and the loss
stay, and plans with and without the limit are compared at equal code.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from meshwright.frameworks.base.framework import LIMITS, Framework, LimitingField
from meshwright.plans.columns import Bools
from meshwright.plans.rule import Rule, holding
from meshwright.plans.skeletons import Skeletons
from meshwright.spec.spec import Spec

KINDS_OF_RULES = ("degree_rules", "plan_rules")


@dataclass(frozen=True)
class Limit:
    """Something that a framework cannot launch, though the mathematics allow it."""

    name: str
    """The name that broken rules have in answers."""
    sentence: str


def limits(
    framework: Framework,
    ideal: Framework,
    concerns: Callable[[Rule], bool] = lambda _rule: True,
) -> tuple[Limit, ...]:
    """Return the limits of a framework that `ideal` does not have.

    `concerns` says which rules matter.
    """
    shared = {rule.holds for rule in (*ideal.degree_rules, *ideal.plan_rules)}
    sentences: dict[str, dict[str, None]] = {}
    for rule in (*framework.degree_rules, *framework.plan_rules):
        if rule.holds not in shared and concerns(rule):
            sentences.setdefault(rule.name, {})[rule.sentence] = None
    of_rules = set(sentences)
    for name, metadata, _ in _limiting_fields(framework, ideal):
        if metadata.name not in of_rules:
            told = metadata.sentence(getattr(framework, name))
            sentences.setdefault(metadata.name, {})[told] = None
    return tuple(Limit(name, "; ".join(told)) for name, told in sentences.items())


def without_limits(
    framework: Framework, names: Container[str], ideal: Framework
) -> Framework:
    """Return a framework that also accepts what `ideal` does, in place of some limits.

    `names` are those of the limits.
    """
    changed: dict[str, Any] = {
        field: lifted
        for field, metadata, lifted in _limiting_fields(framework, ideal)
        if metadata.name in names
    }
    for kind in KINDS_OF_RULES:
        rules: tuple[Rule, ...] = getattr(framework, kind)
        changed[kind] = tuple(
            _relaxed(rule, ideal) if rule.name in names else rule for rule in rules
        )
    return replace(framework, **changed)


def _limiting_fields(
    framework: Framework, ideal: Framework
) -> Iterator[tuple[str, LimitingField, Any]]:
    """Yield the fields that limit a framework, and their values without the limits."""
    for field in fields(Framework):
        metadata = field.metadata.get(LIMITS)
        if metadata is None:
            continue
        value = getattr(framework, field.name)
        lifted = metadata.lifted(value, getattr(ideal, field.name))
        if lifted != value:
            yield field.name, metadata, lifted


def _relaxed(rule: Rule, ideal: Framework) -> Rule:
    """Return a rule that also accepts what the rules of its name in `ideal` accept.

    Without such rules it accepts everything.
    """
    every = (*ideal.degree_rules, *ideal.plan_rules)
    instead = [other for other in every if other.name == rule.name]

    def holds(spec: Spec, rows: Skeletons) -> Bools:
        concerned = [other for other in instead if other.concerns(spec)]
        return rule.holds(spec, rows) | holding(concerned, spec, rows)

    is_inherited = all(other.is_inherited for other in (rule, *instead))
    return replace(rule, holds=holds, is_inherited=is_inherited)
