"""The plan that makers publish for a job, beside the recommended one.

The model may flatter the recommended plan. The published one stands beside it as a
third plan, at its price here; an MFU that nobody reached is said.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright.cost.profile import highest_mfu
from meshwright.explanations.decisions import with_pins
from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from meshwright.results.outcome import Outcome
from meshwright.results.outcome_parts import PublishedPlan
from meshwright.spec.base import MOST_RISK
from meshwright.spec.plan_fields import Pins
from meshwright.spec.run_before import PlanOfMaker
from meshwright.spec.spec import Spec

PROOF_EFFORT = 0.1
"""Deterministic seconds of CP-SAT for the split that a published plan leaves open."""

PLAIN = {"recompute": "none", "offload": "none", "recompute_layers": "any"}
"""Values that nobody names; of degrees other than these, 1 is plain."""

ALWAYS = ("tp", "pp", "micro_batch", "zero")


def with_published(outcome: Outcome, spec: Spec, options: Options) -> Outcome:
    """Return an answer with what makers publish for its model and GPUs.

    The published plan is priced on the spec with its fields as pins: as fast as it can
    be here, on the GPUs and with the batch of the spec.
    """
    best = outcome.best
    if best is None or outcome.is_stopped:
        return outcome
    found: dict[str, Any] = {"published": _published_plan(spec, options)}
    highest = highest_mfu(spec, best.plan.precision)
    if highest is not None and best.mfu > highest.mfu and not spec.training.lora:
        found["highest_mfu"] = highest
    return outcome.model_copy(update=found)


def _published_plan(spec: Spec, options: Options) -> PublishedPlan | None:
    maker = options.profile.applied_to(spec).run_before.published
    if maker is None:
        return None
    plan = maker.on(spec.cluster.gpus)
    asked = Pins.model_validate(plan)
    if not _leaves(spec.pins, asked):
        return None
    other = _other_training(spec, maker)
    pinned = with_pins(spec, asked).having("training", **other)
    brief = _brief(options)
    safe = solve(pinned, replace(brief, has_near_miss=False)).best
    risky = None if safe else solve(_at_most_risk(pinned), brief)
    priced = risky.best if risky else safe
    miss = risky.near_miss if risky else None
    job = spec.cluster.gpus, spec.framework
    if priced is None and job != (maker.gpus, maker.framework):
        return None
    told = (
        f"{name}={value}"
        for name, value in plan.items()
        if name in ALWAYS or value != PLAIN.get(name, 1)
    )
    return PublishedPlan(
        source=maker.source,
        gpus=maker.gpus,
        plan=", ".join(told),
        gradients=maker.gradients,
        expert_dispatch=other.get("expert_dispatch"),
        tokens_per_s_per_gpu=maker.tokens_per_s_per_gpu,
        measured_s=_measured_s(spec, maker),
        priced=priced,
        broken_rules=miss.broken_rules if miss else (),
        is_for_job=maker.is_for(spec.cluster.gpus, spec.training.global_batch),
        is_risky=safe is None and priced is not None,
        asks_for=tuple(f"training.{name}={value}" for name, value in other.items()),
    )


def _brief(options: Options) -> Options:
    return Options(
        profile=options.profile,
        seed=options.seed,
        workers=options.workers,
        interrupt=options.interrupt,
        most_effort=PROOF_EFFORT,
        is_brief=True,
    )


def _at_most_risk(spec: Spec) -> Spec:
    """Return a spec whose plans need only be as likely to fit as to fail."""
    if not spec.limits.is_by_risk:
        return spec
    return spec.having("limits", oom_risk=MOST_RISK)


def _measured_s(spec: Spec, maker: PlanOfMaker) -> float | None:
    """Return the measured seconds of a published step, if it is the spec's."""
    rate, training = maker.tokens_per_s_per_gpu, spec.training
    published = maker.gpus, maker.global_batch
    if not rate or published != (spec.cluster.gpus, training.global_batch):
        return None
    return training.global_batch * training.seq_len / (rate * maker.gpus)


def _other_training(spec: Spec, maker: PlanOfMaker) -> dict[str, Any]:
    """Return published gradients, unless a spec says them, and another dispatch."""
    told, other = spec.training, dict[str, Any]()
    if maker.gradients and told.gradients is None:
        other["gradients"] = maker.gradients
    if maker.expert_dispatch and maker.expert_dispatch != told.expert_dispatch:
        other["expert_dispatch"] = maker.expert_dispatch
    return other


def _leaves(pins: Pins, published: Pins) -> bool:
    """Return whether pins leave what a published plan decides open, or are the same."""
    return all(
        mine is None or theirs is None or mine == theirs
        for (_, mine), (_, theirs) in zip(pins, published, strict=True)
    )
