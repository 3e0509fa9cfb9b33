"""Judges a published configuration: is it legal, does it fit, and how fast is it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, computed_field

import meshwright as mw
from benchmarks.experts.freed import decisive
from benchmarks.experts.read import Configuration
from meshwright import DEFAULT_PROFILE
from meshwright.cost.profile import Profile
from meshwright.plans.simplicity import complexity, names_of_techniques
from meshwright.results.outcome import NearMiss
from meshwright.spec.base import MOST_RISK
from meshwright.spec.goals import BEYOND_RUNS, DEFAULT_OOM_RISK, card_gib

MEMORY = frozenset({"memory", "host_memory"})
"""Rules that legal plans may break: they say what fits."""


WHOLE = {"memory_margin": 0.0, "host_memory_margin": 0.0}
"""Limits under which a plan may take all memory, as teams that ran theirs chose to: the
risk that they took is not published."""


ROUNDED = 1e-4
"""Risk beside that of a team's plan: the planner rounds memory up, part by part, and so
would refuse the very plan whose risk is the limit."""


def as_risky_as(theirs: mw.PricedPlan) -> dict[str, float]:
    """Return the limits under which a plan may be as likely to run out as a team's.

    It is allowed the default risk in any case, and all memory where the team's plan is
    expected to run out, or takes more than CUDA reports of its cards. The team's plan
    was priced with all memory.
    """
    risk = 1 - theirs.fit_probability + ROUNDED
    takes_all = any(
        stage.total_gib > card_gib(stage.usable_gib) for stage in theirs.stages
    )
    if risk > MOST_RISK or takes_all:
        return WHOLE
    return {"oom_risk": max(DEFAULT_OOM_RISK, risk), "host_memory_margin": 0.0}


FAR = 0.1
"""A claimed gain that asks for an explanation."""


class Verdict(BaseModel):
    """What Meshwright says of one configuration."""

    id: str
    gpus: int | None
    runs_on: str
    plan: str
    has_experts: bool = False
    is_legal: bool = False
    refused_by: str = ""
    fits: bool = False
    """Whether the memory of GPUs and hosts holds it."""
    fit_probability: float | None = None
    """How likely it is said to fit."""
    over_gib: float | None = None
    """How much more memory it takes than its fullest GPU, or host, has."""
    step_s: float | None = None
    measured_s: float | None = None
    optimum_s: float | None = None
    """The proven optimum at the same risk, where the plan fits or was measured."""
    recommended: str = ""
    """The simplest plan within the tolerance of the optimum."""
    recommended_s: float | None = None
    techniques: tuple[str, ...] = ()
    """What the published plan has beyond data parallelism."""
    recommended_techniques: tuple[str, ...] = ()
    is_simpler: bool | None = None
    """Whether the recommended plan is as simple as the published one, or simpler."""
    beyond: tuple[str, ...] = ()
    """Decisions of the published plan beyond what other sources ran."""
    recommended_beyond: tuple[str, ...] = ()
    """The same of the recommended plan."""
    doubted_gain: float | None = None
    """How much faster the recommended plan is with what is doubted of both."""
    fastest_gain: float | None = None
    """How much faster the fastest plan of the model is."""
    decision: str = ""
    """Of a gain above `FAR`: the published decision that costs most on its own."""
    decision_gain: float | None = None
    """How much faster the plan is with that decision left open."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def error(self) -> float | None:
        """Return by how much the prediction is off, as a share of what was measured."""
        return _over(self.step_s, self.measured_s)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def beats_optimum(self) -> bool | None:
        """Return whether the measured step is faster than the proven optimum."""
        lead = _over(self.optimum_s, self.measured_s)
        return None if lead is None else lead > 0

    @computed_field  # type: ignore[prop-decorator]
    @property
    def gain(self) -> float | None:
        """Return by how much the recommended plan is claimed to be faster."""
        return _over(self.step_s, self.recommended_s)


def _over(predicted: float | None, measured: float | None) -> float | None:
    return predicted / measured - 1 if predicted and measured else None


def judge(
    configuration: Configuration,
    *,
    is_compared: bool = True,
    profile: str | Profile = DEFAULT_PROFILE,
) -> Verdict:
    """Return the verdict on one configuration; fields left open are chosen for it.

    Unless it is compared with what one should run instead, only its plan is judged. The
    profile should not know what its source ran.
    """
    told = Verdict(
        id=configuration.id,
        gpus=configuration.gpus,
        runs_on=configuration.runs_on,
        plan=brief(configuration.plan),
        measured_s=configuration.measured_step_s,
        refused_by=configuration.lacks,
    )
    if configuration.lacks:
        return told
    try:
        asked = {**configuration.spec, "limits": WHOLE}
        spec = mw.load(asked, mw.Spec)
        facts: dict[str, Any] = {
            "gpus": spec.cluster.gpus,
            "has_experts": spec.model.moe is not None,
        }
        pinned = mw.load({**asked, "pins": configuration.plan}, mw.Spec)
        outcome = mw.solve(
            pinned, by_kind=False, fastest=True, repair=False, profile=profile
        )
    except mw.SpecError as error:
        why = str(error).splitlines()[0].removeprefix("fields: ")
        return told.model_copy(update={"refused_by": why})
    if is_compared and outcome.best is not None:
        asked |= {"limits": as_risky_as(outcome.best)}
        facts |= _recommended(mw.load(asked, mw.Spec), outcome.best, profile)
    elif is_compared and configuration.measured_step_s:
        best = mw.solve(spec, by_kind=False, repair=False, profile=profile).optimum
        facts["optimum_s"] = best and best.step_s
    if outcome.best is not None:
        facts |= {"is_legal": True, "fits": True, "step_s": outcome.best.step_s}
        facts["fit_probability"] = outcome.best.fit_probability
        recommended_s = facts.get("recommended_s", outcome.best.step_s)
        if outcome.best.step_s > (1 + FAR) * recommended_s:
            facts |= _explained(asked, configuration.plan, outcome.best.step_s)
    else:
        facts |= _miss(outcome.near_miss)
    return told.model_copy(update=facts)


def _recommended(
    spec: mw.Spec, theirs: mw.PricedPlan, profile: str | Profile
) -> dict[str, Any]:
    """Return what is said of the plan that one should run instead of a team's."""
    outcome = mw.solve(spec, by_kind=False, repair=False, profile=profile)
    if outcome.best is None or outcome.optimum is None:
        return {}
    criteria = [name for name in spec.objective.criteria if name != BEYOND_RUNS]
    ours = complexity(spec, outcome.best.plan, tuple(criteria))
    return {
        "optimum_s": outcome.optimum.step_s,
        "recommended": outcome.best.plan.brief,
        "recommended_s": outcome.best.step_s,
        "techniques": names_of_techniques(theirs.plan),
        "recommended_techniques": names_of_techniques(outcome.best.plan),
        "is_simpler": ours <= complexity(spec, theirs.plan, tuple(criteria)),
        "beyond": _beyond(theirs),
        "recommended_beyond": _beyond(outcome.best),
        "doubted_gain": theirs.doubted_s / outcome.best.doubted_s - 1,
        "fastest_gain": theirs.step_s / outcome.optimum.step_s - 1,
    }


def _beyond(priced: mw.PricedPlan) -> tuple[str, ...]:
    return priced.familiarity.beyond if priced.familiarity else ()


def _explained(
    asked: dict[str, Any], plan: dict[str, Any], step_s: float
) -> dict[str, Any]:
    freed = decisive(asked, plan, step_s)
    if freed is None:
        return {"decision": "none alone"}
    return {"decision": freed.decision, "decision_gain": freed.gain}


def _miss(miss: NearMiss | None) -> dict[str, Any]:
    """Return what is said of a plan that breaks a rule."""
    broken = miss.broken_rules if miss else ()
    others = [rule for rule in broken if rule.rule not in MEMORY]
    if others or not broken:
        named = "; ".join(f"{rule.rule}: {rule.sentence}" for rule in others)
        return {"refused_by": named or "no plan keeps all pins"}
    over = [rule.need - rule.have for rule in broken if rule.need and rule.have]
    return {"is_legal": True, "over_gib": max(over, default=None)}


SHORT = {"micro_batch": "mb", "recompute_layers": "of", "zero": "z"}
LEFT_OUT = ("layers", "sequence_parallel")
"""Fields that a line of a table has no room for, or that follow from others."""


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return ">=" + str(value["min"])
    return "/".join(map(str, value)) if isinstance(value, list) else str(value)


def brief(plan: dict[str, Any]) -> str:
    """Return the fields of a plan that say most, in one line."""
    words = []
    for name, value in plan.items():
        if name in LEFT_OUT or value in ("none", "1f1b"):
            continue
        if value == 1 and name not in ("zero", "micro_batch"):
            continue
        text = _written(value)
        is_number = isinstance(value, int)
        words.append(f"{SHORT.get(name, name)}{'' if is_number else ' '}{text}")
    return " ".join(words)
