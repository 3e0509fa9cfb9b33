"""What makers published: plans by model and GPUs, and the highest MFU of each GPU."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from pathlib import Path

from meshwright.cost.whole_model import total_params
from meshwright.frameworks.base.registry import framework
from meshwright.results.outcome_parts import HighestMfu
from meshwright.spec.base import SpecModel
from meshwright.spec.gpu import Precision
from meshwright.spec.run_before import PlanOfMaker
from meshwright.spec.spec import Spec

PATH = Path(__file__).with_name("published.json")
"""Written by `python -m benchmarks.published`; JSON is read in a millisecond."""

SAME_MODEL = 0.01
"""Largest difference of parameters, as a share, between sizes of one model: authors pad
vocabularies, or leave out norms."""

MOST_SCALED = 4
"""How many times the published number of GPUs a plan is still named for."""


class Published(SpecModel):
    """The schema of `published.json`."""

    plans: tuple[PlanOfMaker, ...]
    highest_mfu: tuple[HighestMfu, ...]


@lru_cache(maxsize=1)
def published() -> Published:
    """Return all that is known to be published."""
    return Published.model_validate(json.loads(PATH.read_text(encoding="utf-8")))


def nearest_published(spec: Spec) -> PlanOfMaker | None:
    """Return the plan published for the job that is most like a spec, if one is.

    Model, sequence, precision, GPU and kind of framework are the same; the number of
    GPUs is the nearest one. Of several, it is the one with the highest throughput.
    """
    if spec.cluster.parts or spec.training.lora:
        return None
    gpus, params = spec.cluster.gpus, total_params(spec.model)
    gpu = spec.cluster.topology.gpu.name

    def distance(one: PlanOfMaker) -> tuple[float, float]:
        away = abs(math.log(one.gpus / gpus))
        return away, -(one.tokens_per_s_per_gpu or 0.0)

    alike = (
        one
        for one in published().plans
        if one.gpu == gpu
        and abs(one.params / params - 1) <= SAME_MODEL
        and one.seq_len == spec.training.seq_len
        and one.precision == spec.training.precision
        and _is_kin(spec, framework(one.framework).kin)
        and max(one.gpus / gpus, gpus / one.gpus) <= MOST_SCALED
        and gpus % math.prod(one.plan.get(name, 1) for name in ("tp", "pp", "cp")) == 0
    )
    return min(alike, key=distance, default=None)


def highest_mfu(spec: Spec, precision: Precision) -> HighestMfu | None:
    """Return the highest MFU that was published of a GPU, a precision and a kin."""
    gpu = spec.cluster.topology.gpu.name
    alike = (
        one
        for one in published().highest_mfu
        if one.gpu == gpu
        and one.precision == precision
        and _is_kin(spec, one.kin)
        and one.has_experts == (spec.model.moe is not None)
    )
    return max(alike, key=lambda one: one.mfu, default=None)


def _is_kin(spec: Spec, kin: str) -> bool:
    """Return whether plans of a kind of framework are like those of a spec's."""
    return framework(spec.framework).kin in ("", kin)
