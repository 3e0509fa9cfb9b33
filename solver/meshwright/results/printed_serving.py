"""The JSON of a solved spec of serving: the best plan's fields stand at its top."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from meshwright.results.model_size import ModelSize
from meshwright.results.outcome import Certificate, NearMiss
from meshwright.results.printed_outcome import PrintedCertificate
from meshwright.results.printed_plan import PrintedMemory
from meshwright.results.result import Status, require_all_or_none
from meshwright.results.serving import (
    DegreeChoice,
    KindCrossover,
    Largest,
    PricedServing,
    ServingKind,
    ServingOutcome,
    ServingPlan,
)
from meshwright.spec.base import SpecModel

RATES = ("objective_s", "tokens_per_s", "requests_per_s", "bubble")
TIMES = ("ttft_s", "tpot_s", "request_s", "ttft_parts", "tpot_parts")
AROUND = (
    *("largest", "by_kind", "flips", "tp_against_pp", "degrees", "near_miss"),
    *("gpus", "versions"),
)
"""Fields of an outcome that are printed as they are."""


class PrintedServingTime(SpecModel):
    """What users wait for."""

    ttft_s: float = Field(description="A prompt's prefill, alone.")
    tpot_s: float = Field(description="Between tokens, all requests in flight.")
    request_s: float = Field(description="A request, while no other is prefilled.")
    ttft_parts: dict[str, float]
    tpot_parts: dict[str, float]


class PrintedServing(SpecModel):
    """The answer to one spec of serving; fields of a plan are left out if none fits.

    That is what `solve --format json` prints.
    """

    spec: str = Field(description="The question in one line.")
    status: Status
    plan: ServingPlan | None = None
    objective_s: float | None = Field(None, description="What was minimised.")
    tokens_per_s: float | None = None
    requests_per_s: float | None = None
    bubble: float | None = None
    time: PrintedServingTime | None = None
    memory: PrintedMemory | None = None
    bound_s: float | None = Field(None, description="No plan takes less.")
    gap: float | None = None
    solver: PrintedCertificate | None = None
    largest: Largest | None
    by_kind: tuple[ServingKind, ...]
    flips: tuple[KindCrossover, ...]
    tp_against_pp: tuple[KindCrossover, ...]
    degrees: tuple[DegreeChoice, ...]
    near_miss: NearMiss | None
    gpus: int
    model: ModelSize | None = Field(None, description="The size of the model.")
    versions: dict[str, str]

    @model_validator(mode="after")
    def _check_plan(self) -> Self:
        names = ("plan", *RATES, "time", "memory", "bound_s", "gap", "solver")
        require_all_or_none(self, names)
        return self


def printed_serving(outcome: ServingOutcome) -> dict[str, Any]:
    """Return the data that is printed of an outcome."""
    fields: dict[str, Any] = {name: getattr(outcome, name) for name in AROUND}
    if outcome.model is not None:
        fields["model"] = outcome.model
    best, certificate = outcome.best, outcome.certificate
    if best is not None and certificate is not None:
        fields |= _plan_fields(best, outcome.capacity_gib)
        fields |= {"bound_s": certificate.bound_s, "gap": certificate.gap}
        rest = certificate.model_dump(exclude={"bound_s", "gap"})
        fields["solver"] = PrintedCertificate.model_validate(rest)
    printed = PrintedServing(spec=outcome.title, status=outcome.status, **fields)
    data = printed.model_dump(mode="json")
    return {name: own for name, own in data.items() if name in printed.model_fields_set}


def _plan_fields(best: PricedServing, capacity_gib: float) -> dict[str, Any]:
    times = {name: getattr(best, name) for name in TIMES}
    return {
        "plan": best.plan,
        **{name: getattr(best, name) for name in RATES},
        "time": PrintedServingTime(**times),
        "memory": PrintedMemory(
            peak_gib=best.peak_gib,
            capacity_gib=capacity_gib,
            fit_probability=best.fit_probability,
            stages=best.stages,
        ),
    }


def serving_fields(printed: PrintedServing) -> dict[str, Any]:
    """Return the fields of the outcome of which this was printed."""
    memory, solver = printed.memory, printed.solver
    ends = {"bound_s": printed.bound_s, "gap": printed.gap}
    certificate = {**dict(solver), **ends} if solver else None
    return {
        "title": printed.spec,
        "status": printed.status,
        "best": _best(printed),
        "certificate": certificate and Certificate.model_validate(certificate),
        "capacity_gib": memory.capacity_gib if memory else 0.0,
        "model": printed.model,
        **{name: getattr(printed, name) for name in AROUND},
    }


def _best(printed: PrintedServing) -> PricedServing | None:
    if printed.plan is None or printed.time is None or printed.memory is None:
        return None
    rates = {name: getattr(printed, name) for name in RATES}
    stages = printed.memory.stages
    times = dict(printed.time)
    return PricedServing(
        plan=printed.plan, stages=stages, objective_parts={}, **rates, **times
    )
