"""Reads plans in all forms that the public functions accept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from meshwright.api.asked_text import launched, read_asked
from meshwright.errors import SpecError
from meshwright.loading.plan_text import pins_of_answer
from meshwright.plans.plan import Plan
from meshwright.reading.document import Document, Where
from meshwright.reading.messages import explain, shown
from meshwright.results.serving import ServingPlan
from meshwright.spec.pins import Pins
from meshwright.spec.serving import Question

PlanLike = Plan | ServingPlan | Pins | Mapping[str, Any] | str
"""A plan, fields of one, or text: 'tp=8,pp=2', or the name of a file that has one."""

PlansLike = Mapping[str, PlanLike] | Iterable[PlanLike | tuple[str, PlanLike]]
"""Plans by name, or plans alone, each named by its text."""


def pins_of(plan: PlanLike, spec: Question, notes: list[str] | None = None) -> Pins:
    """Return the fields that a plan decides on a spec.

    The configuration of a framework adds what is said of its options to `notes`.

    Raises:
        SpecError: names the field or option, its value and what is accepted.
    """
    if isinstance(plan, Pins):
        return plan
    if isinstance(plan, str):
        return read_asked(plan, spec, notes)
    if not isinstance(plan, Plan | ServingPlan | Mapping):
        raise SpecError(f"plan: {shown(plan)}: expected text, a mapping or a Plan")
    fields = _fields(plan)
    try:
        return launched(Pins.model_validate(fields), spec, notes)
    except ValidationError as error:
        document = Document(fields, {(): Where("plan")})
        raise SpecError(explain(document, error, Pins)) from None


def _fields(plan: Plan | ServingPlan | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(plan, Plan):
        return pins_of_answer(plan.model_dump(mode="json"))
    if isinstance(plan, ServingPlan):
        return plan.model_dump(mode="json", exclude={"mesh"})
    return dict(plan)


def named_pins(plans: PlansLike, spec: Question) -> Iterator[tuple[str, Pins]]:
    """Yield the name of each plan and the fields that it decides on a spec.

    Raises:
        SpecError: see `pins_of`.
    """
    for entry in plans.items() if isinstance(plans, Mapping) else plans:
        name, plan = entry if isinstance(entry, tuple) else (str(entry), entry)
        yield name, pins_of(plan, spec)
