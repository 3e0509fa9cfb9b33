"""The limits of a framework, and the framework without some of them.

A limit is what a framework cannot launch: its rules of one name together, and fields
that say which plans it launches. To lift a limit is to accept also what a framework
without limits accepts, so that no plan is lost. Bytes, buffers, kernels and the loss
stay, and plans with and without the limit are compared at equal code.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import fields, replace
from typing import Any

from meshwright.frameworks.base.framework import LIMIT, Framework, Limit
from meshwright.plans.columns import Bools
from meshwright.plans.rule import Rule, holding
from meshwright.plans.skeletons import Skeletons
from meshwright.spec.spec import Spec


def limits(own: Framework, ideal: Framework) -> tuple[Limit, ...]:
    """Return the limits of a framework that `ideal` does not have."""
    shared = (*ideal.degree_rules, *ideal.plan_rules)
    sentences: dict[str, dict[str, None]] = {}
    for rule in (*own.degree_rules, *own.plan_rules):
        if rule not in shared:
            sentences.setdefault(rule.name, {})[rule.sentence] = None
    for limit in _limiting_fields(own, ideal).values():
        sentences.setdefault(limit.name, {limit.sentence: None})
    return tuple(Limit(name, "; ".join(told)) for name, told in sentences.items())


def without_limits(
    own: Framework, names: Container[str], ideal: Framework
) -> Framework:
    """Return a framework that accepts what `ideal` accepts instead of some limits."""
    changed: dict[str, Any] = {
        field: getattr(ideal, field)
        for field, limit in _limiting_fields(own, ideal).items()
        if limit.name in names
    }
    for kind in ("degree_rules", "plan_rules"):
        rules: tuple[Rule, ...] = getattr(own, kind)
        changed[kind] = tuple(
            _relaxed(rule, getattr(ideal, kind)) if rule.name in names else rule
            for rule in rules
        )
    return replace(own, **changed)


def _limiting_fields(own: Framework, ideal: Framework) -> dict[str, Limit]:
    """Return the fields that limit a framework more than `ideal`, with their limits."""
    return dict(_differing(own, ideal))


def _differing(own: Framework, ideal: Framework) -> Iterator[tuple[str, Limit]]:
    for field in fields(Framework):
        is_other = getattr(own, field.name) != getattr(ideal, field.name)
        if LIMIT in field.metadata and is_other:
            yield field.name, field.metadata[LIMIT]


def _relaxed(rule: Rule, of_ideal: tuple[Rule, ...]) -> Rule:
    """Return a rule that also accepts rows that keep the rules of its name in `ideal`.

    Without such rules it accepts every row.
    """
    instead = [other for other in of_ideal if other.name == rule.name]

    def holds(spec: Spec, rows: Skeletons) -> Bools:
        return rule.holds(spec, rows) | holding(instead, spec, rows)

    return replace(rule, holds=holds)
