"""What GPUs hold of each part of memory: split by which axes, and how often."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from meshwright.cost.job import Job
from meshwright.cost.price import price, stage_bytes
from meshwright.plans.encoding import to_row, to_split
from meshwright.plans.plan import Plan
from meshwright.plans.skeletons import KEEPS_ALL, ONE_F_ONE_B, Skeletons
from meshwright.plans.split import Split
from meshwright.results.comparison import Holding
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.plan_fields import OFFLOADS

STATE = {"optimizer": 1, "gradients": 2, "weights": 3}
"""Parts of the state, and from which code of `offload` on they live on the host."""

SAVED = ("activations", "logits")
"""Parts that every micro-batch has of its own."""

AXES = ("ep", "dp_shard", "cp", "tp", "dp_replicate")
"""In the order in which they are taken away; the stages go last."""


def holdings(job: Job, priced: PricedPlan) -> tuple[Holding, ...]:
    """Return what GPUs hold of every part that there is any of."""
    shrunk = _without_axes(job, priced.plan)
    return tuple(
        _holding(priced, name, shrunk)
        for name in priced.stages[0].parts
        if shrunk[0][1][name] > 0
    )


Mean = dict[str, float]


def _without_axes(job: Job, plan: Plan) -> list[tuple[str, Mean]]:
    """Return what a GPU holds, taking one axis away after the other, down to one GPU.

    Each comes with the axis that was taken last; it is the mean over stages, in bytes.
    """
    rows, split = to_row(job.fabric, plan)[0], to_split(plan)
    rows = replace(rows, offload=np.array([KEEPS_ALL]))
    found = [("", _mean(job, rows, split))]
    for axis in AXES:
        one: dict[str, Any] = {axis: np.ones(1, dtype=np.int64)}
        rows = replace(rows, **one)
        found.append((axis, _mean(job, rows, split)))
    stage, schedule = np.ones(1, dtype=np.int64), np.array([ONE_F_ONE_B])
    rows = replace(rows, pp=stage, vpp=stage, schedule=schedule)
    alone = Split(split.layers.sum(keepdims=True), split.recomputed.sum(keepdims=True))
    return [*found, ("pp", _mean(job, rows, alone))]


def _mean(job: Job, rows: Skeletons, split: Split) -> Mean:
    parts = stage_bytes(price(job, rows), split)
    return {name: float(part.mean()) for name, part in parts.items()}


def _holding(priced: PricedPlan, part: str, shrunk: list[tuple[str, Mean]]) -> Holding:
    plan = priced.plan
    factors = dict(_factors(part, shrunk)) if part in (*STATE, *SAVED) else {}
    return Holding(
        part=part,
        gib=tuple(stage.parts[part] for stage in priced.stages),
        is_offloaded=OFFLOADS.index(plan.offload) >= STATE.get(part, len(OFFLOADS)),
        divided_by={axis: own for axis, own in factors.items() if own > 1 + 1e-9},
        copies=_copies(plan, part, factors),
    )


def _factors(part: str, shrunk: list[tuple[str, Mean]]) -> Iterator[tuple[str, float]]:
    """Yield by how much each axis divides a part.

    Logits are on the last stage alone, which no number of stages makes smaller.
    """
    for (_, before), (axis, after) in pairwise(shrunk):
        if axis != "pp" or part != "logits":
            yield axis, after[part] / before[part]


def _copies(plan: Plan, part: str, factors: dict[str, float]) -> float | None:
    """Return how often the GPUs that share a part hold each byte of it.

    All share the state; what micro-batches save, the GPUs that work on the same one,
    each stage on its own layers.
    """
    if not factors:
        return None
    if part in STATE:
        return plan.world_size / float(np.prod(list(factors.values())))
    within = [own for axis, own in factors.items() if axis != "pp"]
    return plan.tp * plan.cp / float(np.prod(within))
