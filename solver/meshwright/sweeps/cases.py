"""One solved case of a search, as it is stored, listed and drawn."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, create_model

from meshwright import __version__
from meshwright.cost.profile import Profile
from meshwright.plans.plan import Plan
from meshwright.results.outcome import Certificate
from meshwright.results.priced_plan import StageMemory
from meshwright.results.result import Status
from meshwright.spec.base import SpecModel
from meshwright.spec.spec import Spec
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


@cache
def fingerprint() -> str:
    """Return a hash of the code of Meshwright.

    A row depends on all of the code: on costs, solver and metrics. With this hash in
    its keys a store never serves rows of other code, and no version has to be counted.
    """
    package = Path(__file__).parents[1]
    digest = hashlib.sha256(__version__.encode())
    for path in sorted(package.rglob("*.py")):
        digest.update(f"\n{path.relative_to(package).as_posix()}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Case:
    """One spec of a search, or the reason why its settings make no spec."""

    name: str
    axes: dict[str, Value]
    """By axis of the sweep, the value that this case has."""
    spec: Spec | None
    error: str = ""
    """Why there is no spec."""

    def row(self, key: str) -> Row:
        """Return the row of a case that cannot be solved."""
        return Row(
            key=key, name=self.name, axes=self.axes, status="failed", error=self.error
        )


@dataclass(frozen=True)
class SolveSettings:
    """The settings with which all cases of a search are solved."""

    profile: Profile = field(default_factory=Profile)
    seed: int = 0
    time_limit_s: float | None = None
    memory_limit_gib: float | None = None
    version: str = __version__
    code: str = field(default_factory=fingerprint)

    @property
    def limits(self) -> str:
        """Return the limits that an unproven answer depends on, as text."""
        return f"{self.time_limit_s} s"

    def keys(self, cases: list[Case]) -> list[str]:
        """Return the key of each case: a hash of everything its answer depends on."""
        common = f"{self.code}\n{self.version}\n{self.seed}\n" + _json(self.profile)
        return [_hash(f"{common}\n{_question(case)}") for case in cases]


def _question(case: Case) -> str:
    return _json(case.spec) if case.spec else f"{case.name}\n{case.error}"


def _json(model: Spec | Profile) -> str:
    return model.model_dump_json()


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
