"""How each part of memory is sharded: GiB on a GPU, divisor by axis, and copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from meshwright.cost.job import Job
from meshwright.cost.price import price, stage_bytes
from meshwright.plans.plan import Plan
from meshwright.plans.skeletons import (
    KEEPS_ALL,
    ONE_F_ONE_B,
    Skeletons,
    Split,
    to_row,
    to_split,
)
from meshwright.results.comparison import PartSharding
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.plan_fields import OFFLOADS

STATE = {"optimizer": 1, "gradients": 2, "weights": 3}
"""Parts of the state, with the lowest code of `offload` that keeps them on the host."""

SAVED = ("activations", "logits")
"""Parts that a GPU holds once for each micro-batch in flight."""

AXES = ("ep", "dp_shard", "cp", "tp", "dp_replicate")
"""Axes in the order in which their degrees are set to 1; `pp` comes last."""

MeanBytes = dict[str, float]
"""Bytes of each part of memory on a GPU, the mean over stages."""


def memory_sharding(job: Job, priced: PricedPlan) -> tuple[PartSharding, ...]:
    """Return how a plan shards each part of memory that is not empty."""
    shrunk = _with_fewer_axes(job, priced.plan)
    return tuple(
        _part_sharding(priced, name, shrunk)
        for name in priced.stages[0].parts
        if shrunk[0][1][name] > 0
    )


def _with_fewer_axes(job: Job, plan: Plan) -> list[tuple[str, MeanBytes]]:
    """Return what a GPU holds as one axis after the other is set to 1.

    Each entry names the axis that was set to 1 last; the first entry is the plan itself
    (without offload), the last is one GPU.
    """
    rows, split = to_row(job.fabric, plan)[0], to_split(plan)
    rows = replace(rows, offload=np.array([KEEPS_ALL]))
    found = [("", _mean_bytes(job, rows, split))]
    for axis in AXES:
        degree_1: dict[str, Any] = {axis: np.ones(1, dtype=np.int64)}
        rows = replace(rows, **degree_1)
        found.append((axis, _mean_bytes(job, rows, split)))
    one, schedule = np.ones(1, dtype=np.int64), np.array([ONE_F_ONE_B])
    rows = replace(rows, pp=one, vpp=one, schedule=schedule)
    alone = Split(split.layers.sum(keepdims=True), split.recomputed.sum(keepdims=True))
    return [*found, ("pp", _mean_bytes(job, rows, alone))]


def _mean_bytes(job: Job, rows: Skeletons, split: Split) -> MeanBytes:
    parts = stage_bytes(price(job, rows), split)
    return {name: float(part.mean()) for name, part in parts.items()}


def _part_sharding(
    priced: PricedPlan, part: str, shrunk: list[tuple[str, MeanBytes]]
) -> PartSharding:
    plan = priced.plan
    divisors = dict(_divisors(part, shrunk)) if part in (*STATE, *SAVED) else {}
    return PartSharding(
        part=part,
        gib=tuple(stage.parts[part] for stage in priced.stages),
        is_offloaded=OFFLOADS.index(plan.offload) >= STATE.get(part, len(OFFLOADS)),
        divided_by={axis: by for axis, by in divisors.items() if by > 1 + 1e-9},
        copies=_copies(plan, part, divisors),
    )


def _divisors(
    part: str, shrunk: list[tuple[str, MeanBytes]]
) -> Iterator[tuple[str, float]]:
    """Yield by how much each axis divides a part.

    Only the last stage has logits, so that `pp` does not divide them.
    """
    for (_, before), (axis, after) in pairwise(shrunk):
        if axis != "pp" or part != "logits":
            yield axis, after[part] / before[part]


def _copies(plan: Plan, part: str, divisors: dict[str, float]) -> float | None:
    """Return how many GPUs hold the same byte of a part, among those that share it.

    All GPUs share the state. What a micro-batch saves is shared by the GPUs that work
    on it at a time: those of one stage of one replica. None where nothing is sharded.
    """
    if not divisors:
        return None
    if part in STATE:
        return plan.world_size / float(np.prod(list(divisors.values())))
    within_stage = [by for axis, by in divisors.items() if axis != "pp"]
    return plan.tp * plan.cp / float(np.prod(within_stage))
