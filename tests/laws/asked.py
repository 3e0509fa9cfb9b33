"""Asks a question of training or of serving, and reads the answers alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.cost.job import Job
from meshwright.cost.profile import Profile
from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from meshwright.plans.plan import Plan
from meshwright.results.outcome import Outcome
from meshwright.results.priced_plan import PricedPlan
from meshwright.results.serving import PricedServing, ServingOutcome, ServingPlan
from meshwright.serving.solve import solve_serving
from meshwright.spec.plan_fields import Pins
from meshwright.spec.serving import FixedSpec, ServingSpec
from meshwright.spec.spec import Spec
from tests.laws.law import Data, plain

Priced = PricedPlan | PricedServing


def question(data: Data) -> FixedSpec:
    """Return the question of a spec's data.

    Pins of training are taken as a plan is that is asked about: they may divide
    nothing, where a spec would be refused.
    """
    if "inference" in data:
        return ServingSpec.model_validate(data)
    pins = Pins.model_validate(data.get("pins", {}))
    spec = Spec.model_validate({**data, "pins": {}})
    return spec.model_copy(update={"pins": pins})


def training(data: Data) -> Spec:
    """Return the spec of training in some data."""
    spec = question(data)
    assert isinstance(spec, Spec)
    return spec


@dataclass(frozen=True)
class Answer:
    """An outcome of training or of serving."""

    outcome: Outcome | ServingOutcome

    @property
    def best(self) -> Priced | None:
        """Return the best plan with what it takes."""
        return self.outcome.best

    @property
    def step_s(self) -> float:
        """Return what was minimised, seconds; infinite where nothing fits."""
        return seconds_of(self.best) if self.best else math.inf

    @property
    def rounding_s(self) -> float:
        """Return how far whole numbers may lie off, seconds."""
        known = self.outcome.certificate
        return known.rounding_s if known else 0.0

    @property
    def plan(self) -> Plan | ServingPlan | None:
        """Return the best plan."""
        return self.best.plan if self.best else None

    @property
    def others(self) -> Sequence[Priced]:
        """Return the plans that come next; serving names none."""
        return self.outcome.others if isinstance(self.outcome, Outcome) else ()

    def is_no_slower(self, other: Answer) -> bool:
        """Return whether it takes no longer, up to the rounding of both."""
        return self.step_s <= other.step_s + self.rounding_s + other.rounding_s


def seconds_of(priced: Priced) -> float:
    """Return the seconds of a plan that were minimised."""
    return priced.step_s if isinstance(priced, PricedPlan) else priced.objective_s


def ask(asked: FixedSpec | Data, **how: Any) -> Answer:
    """Return the answer to a question or to the question of a spec's data."""
    found = question(asked) if isinstance(asked, dict) else asked
    options = Options(is_brief=True, **how)
    if isinstance(found, ServingSpec):
        return Answer(solve_serving(found, options))
    return Answer(solve(found, options))


def job_of(spec: Spec, answer: Answer) -> Job:
    """Return the job that the plans of an answer are priced by."""
    assert isinstance(answer.outcome, Outcome)
    update = {"cluster": answer.outcome.cluster}
    return Profile().job(spec.model_copy(update=update))


def pins_of(plan: Plan | ServingPlan) -> dict[str, Any]:
    """Return every pin that a plan meets, as a spec has them."""
    found = plan.model_dump(mode="json")
    pins = {name: found[name] for name in Pins.model_fields if name in found}
    if isinstance(plan, Plan):
        pins["dp"] = plan.dp_replicate * plan.dp_shard
        pins["layers"] = [stage.layers for stage in plan.stages]
        pins["recompute_layers"] = [stage.recompute_layers for stage in plan.stages]
    return pins


def pinned(data: Data, pins: dict[str, Any]) -> Data:
    """Return a spec with more pins; a mode of recomputation is of as many layers."""
    found = plain(data)
    known = found.setdefault("pins", {})
    if "recompute" in pins and "recompute_layers" not in {**known, **pins}:
        is_all = Pins.model_validate(known).recomputes_all_layers
        known["recompute_layers"] = "all" if is_all else "any"
    found["pins"] = {**known, **pins}
    return found
