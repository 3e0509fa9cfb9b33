"""One solved case of a search, as it is stored, listed and drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, create_model

from meshwright.plans.plan import Plan
from meshwright.results.outcome import Certificate
from meshwright.results.priced_plan import StageMemory
from meshwright.results.result import Status
from meshwright.spec.base import SpecModel
from meshwright.sweeps.metrics import METRICS, Metric

Value = str | int | float | bool | None


class _Case(SpecModel):
    """Where a case lies on the axes of the sweep, and why it has no plan."""

    key: str = Field(description="Hash of the spec, the profile and the code.")
    name: str = Field(description="The spec in one line.")
    axes: dict[str, Value] = Field(description="Of each axis, the value of this case.")
    status: Status | Literal["failed"]
    error: str = Field("", description="Why the case failed; empty for all others.")
    conflict: tuple[str, ...] = Field(
        (), description="Names of the rules that leave no plan."
    )
    sentence: str = Field("", description="Why no plan fits, in one line.")


def _described(metric: Metric) -> str:
    unit = f", {metric.unit}" if metric.unit else ""
    return f"{metric.description.rstrip('.')}{unit}."


def _is_of_plan(named: tuple[str, Metric]) -> bool:
    return named[1].needs_plan


if TYPE_CHECKING:

    class _Measured(_Case):
        """A case with its metrics."""

        def __getattr__(self, name: str) -> float | None: ...

else:
    _Measured = create_model(
        "_Measured",
        __base__=_Case,
        **{
            name: (
                metric.number | None,
                Field(None, description=_described(metric)),
            )
            for name, metric in sorted(METRICS.items(), key=_is_of_plan)
        },
    )


class Row(_Measured):
    """A case: where it lies on the axes of the sweep, and its best plan, or why none.

    Metrics are None where no plan fits, or where the spec does not say enough.
    """

    plan: Plan | None = None
    time_parts: dict[str, float] = Field(default_factory=dict)
    memory: StageMemory | None = Field(None, description="Of the fullest GPU.")
    certificate: Certificate | None = None
