"""Explains a serving spec: why the best plan wins, or why none fits and what helps."""

from __future__ import annotations

from dataclasses import replace

from pydantic import ValidationError

from meshwright.deadline import Interrupt
from meshwright.errors import SpecError
from meshwright.explanations.changed_spec import with_pins
from meshwright.explanations.time_differences import part_differences
from meshwright.reading.document import Document, Where
from meshwright.reading.messages import explain
from meshwright.results.serving import ServingOutcome
from meshwright.results.serving_explanation import ServingExplanation
from meshwright.search.options import Options
from meshwright.serving.conflict import conflict_of, constraints_of
from meshwright.serving.marginal_values import marginal_values
from meshwright.serving.repairs import repairs
from meshwright.serving.solve import solve_serving
from meshwright.spec.pins import Pins
from meshwright.spec.serving import ServingSpec


def explain_serving(
    spec: ServingSpec, plan: Pins | None, options: Options
) -> ServingExplanation:
    """Return why the best plan of a spec wins, or why there is none.

    With `plan`, its decisions are added to the pins of the spec, and the best plan is
    compared with that of the spec alone.

    Raises:
        SpecError: no deployment has such a plan.
    """
    asked = _asked(spec, plan) if plan else spec
    outcome = solve_serving(asked, options)
    answer = ServingExplanation(
        title=asked.title, fits=outcome.best is not None, outcome=outcome
    )

    def in_full() -> ServingExplanation:
        return answer.model_copy(update=_reasons(spec, asked, outcome, options))

    return options.interrupt.unless_asked(in_full, answer)


def _asked(spec: ServingSpec, plan: Pins) -> ServingSpec:
    """Return the spec with a plan pinned."""
    try:
        return ServingSpec.model_validate(with_pins(spec, plan))
    except ValidationError as error:
        document = Document({}, {(): Where("--plan")})
        raise SpecError(explain(document, error, ServingSpec)) from None


def _reasons(
    spec: ServingSpec, asked: ServingSpec, outcome: ServingOutcome, options: Options
) -> dict[str, object]:
    """Return the fields of an explanation that say why."""
    if outcome.best is None:
        return _why_none_fits(asked, outcome)
    values: dict[str, object] = {"marginal_values": tuple(marginal_values(asked))}
    if asked is spec:
        return values
    best = solve_serving(spec, replace(options, interrupt=Interrupt()))
    assert best.best is not None
    gap = part_differences(outcome.best.objective_parts, best.best.objective_parts)
    return {**values, "best": best, "gap": gap}


def _why_none_fits(asked: ServingSpec, outcome: ServingOutcome) -> dict[str, object]:
    """Return the nearest miss, the smallest conflict and the repairs of a spec."""
    miss, constraints = outcome.near_miss, list(constraints_of(asked))
    memory = miss.memory if miss else None
    witness = miss.description if miss else ""
    return {
        "broken_rules": miss.broken_rules if miss else (),
        "memory": memory,
        "conflict": conflict_of(asked, constraints, witness),
        "repairs": tuple(repairs(asked, constraints, memory)),
    }
