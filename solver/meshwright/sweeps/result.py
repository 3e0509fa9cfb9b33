"""A row from an outcome: metrics, and why there is none."""

from __future__ import annotations

from typing import Any

from meshwright.results.outcome import NearMiss, Outcome
from meshwright.spec.spec import Spec
from meshwright.sweeps.metrics import Answer, taken
from meshwright.sweeps.row import Row, Value


def row_of(
    key: str, name: str, axes: dict[str, Value], spec: Spec, outcome: Outcome
) -> Row:
    """Return the row of a solved spec."""
    answer = Answer(spec, outcome)
    fields: dict[str, Any] = {**taken(answer)}
    if outcome.best is not None:
        fields["plan"] = outcome.best.plan
        fields["time_parts"] = outcome.best.time_parts
        fields["memory"] = answer.fullest
        fields["certificate"] = outcome.certificate
    elif outcome.near_miss is not None:
        fields |= _reason(outcome.near_miss)
    return Row(key=key, name=name, axes=axes, status=outcome.status, **fields)


def _reason(miss: NearMiss) -> dict[str, Any]:
    """Return the rules that leave no plan, as the nearest miss breaks them."""
    rules = miss.broken_rules
    return {
        "conflict": tuple(dict.fromkeys(rule.rule for rule in rules)),
        "sentence": rules[0].sentence if rules else "",
    }
