"""What makers publish for a model on GPUs: their plan, and the highest MFU.

Both stand beside the recommended plan, which the model may flatter: the plan as a third
one, at its price here, the MFU where the recommended plan claims more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from meshwright.cost.whole_model import total_params
from meshwright.explanations.decisions import with_pins
from meshwright.frameworks.base.registry import framework
from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from meshwright.reading.yaml_and_csv import read_yaml
from meshwright.results.outcome import Outcome
from meshwright.results.outcome_parts import HighestMfu, PublishedPlan
from meshwright.spec.base import SpecModel
from meshwright.spec.plan_fields import Pins
from meshwright.spec.spec import Spec

PATH = Path(__file__).with_name("published.yaml")

SAME_MODEL = 0.01
"""Largest difference of parameters, as a share, between sizes of one model: authors pad
vocabularies, or leave out norms."""

MOST_SCALED = 4
"""How many times the published number of GPUs a plan is still named for."""

PROOF_EFFORT = 0.1
"""Deterministic seconds of CP-SAT for the split that a published plan leaves open."""


class PlanOfMaker(SpecModel):
    """The plan that a maker published for a model, a sequence and GPUs."""

    model: str
    params: int
    gpu: str
    gpus: int
    framework: str
    precision: str
    seq_len: int
    plan: dict[str, Any]
    """As `pins` of a spec; data parallelism is what is left."""
    tokens_per_s_per_gpu: float | None = None
    source: str


class Published(SpecModel):
    """The schema of `published.yaml`."""

    plans: tuple[PlanOfMaker, ...]
    highest_mfu: tuple[HighestMfu, ...]


def with_published(outcome: Outcome, spec: Spec, options: Options) -> Outcome:
    """Return an answer with what makers publish for its model and GPUs.

    The published plan is priced on the spec with its fields as pins: as fast as it can
    be here, on the GPUs and with the batch of the spec.
    """
    best = outcome.best
    if best is None or outcome.is_stopped or spec.cluster.parts or spec.training.lora:
        return outcome
    found: dict[str, Any] = {"published": _published_plan(spec, options)}
    highest = highest_mfu(spec, best.plan.precision)
    if highest is not None and best.mfu > highest.mfu:
        found["highest_mfu"] = highest
    return outcome.model_copy(update=found)


def _published_plan(spec: Spec, options: Options) -> PublishedPlan | None:
    maker = nearest_published(spec)
    if maker is None:
        return None
    plan = dict(maker.plan)
    if maker.gpus != spec.cluster.gpus:
        plan = {name: value for name, value in plan.items() if name[:3] != "dp_"}
    asked = Pins.model_validate(plan)
    if not _leaves(spec.pins, asked):
        return None
    priced = solve(
        with_pins(spec, asked),
        replace(
            Options(profile=options.profile, seed=options.seed),
            workers=options.workers,
            interrupt=options.interrupt,
            most_effort=PROOF_EFFORT,
            is_brief=True,
            has_near_miss=False,
        ),
    ).best
    if priced is None and maker.gpus != spec.cluster.gpus:
        return None
    return PublishedPlan(
        source=maker.source,
        gpus=maker.gpus,
        plan=", ".join(f"{name}={value}" for name, value in _decided(plan)),
        priced=priced,
    )


def _leaves(pins: Pins, published: Pins) -> bool:
    """Return whether pins leave what a published plan decides open, or are the same."""
    return all(
        mine is None or theirs is None or mine == theirs
        for (_, mine), (_, theirs) in zip(pins, published, strict=True)
    )


def _decided(plan: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a published plan that are not at their plainest."""
    plain = {"recompute": "none", "offload": "none", "recompute_layers": "any"}
    for name, value in plan.items():
        if value != plain.get(name, 1) or name in ("tp", "pp", "micro_batch", "zero"):
            yield name, value


def nearest_published(spec: Spec) -> PlanOfMaker | None:
    """Return the plan published for the job that is most like a spec, if one is.

    Model, sequence, precision, GPU and kind of framework are the same; the number of
    GPUs is the nearest one. Of several, it is the one with the highest throughput.
    """
    gpus, params = spec.cluster.gpus, total_params(spec.model)
    gpu, kin = spec.cluster.topology.gpu.name, framework(spec.framework).kin

    def distance(one: PlanOfMaker) -> tuple[float, float]:
        away = abs(math.log(one.gpus / gpus))
        return away, -(one.tokens_per_s_per_gpu or 0.0)

    alike = (
        one
        for one in _table().plans
        if one.gpu == gpu
        and abs(one.params / params - 1) <= SAME_MODEL
        and one.seq_len == spec.training.seq_len
        and one.precision == spec.training.precision
        and (not kin or framework(one.framework).kin == kin)
        and max(one.gpus / gpus, gpus / one.gpus) <= MOST_SCALED
        and gpus % math.prod(one.plan.get(name, 1) for name in ("tp", "pp", "cp")) == 0
    )
    return min(alike, key=distance, default=None)


def highest_mfu(spec: Spec, precision: str) -> HighestMfu | None:
    """Return the highest MFU that was published of a GPU, a precision and a kin."""
    gpu, kin = spec.cluster.topology.gpu.name, framework(spec.framework).kin
    alike = (
        one
        for one in _table().highest_mfu
        if one.gpu == gpu
        and one.precision == precision
        and (not kin or one.kin == kin)
        and one.has_experts == (spec.model.moe is not None)
    )
    return max(alike, key=lambda one: one.mfu, default=None)


@lru_cache(maxsize=1)
def _table() -> Published:
    return Published.model_validate(read_yaml(PATH).data)
