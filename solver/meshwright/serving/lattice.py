"""The legal deployments of a spec, with bounds on their objective.

Time and memory of their stages are whole numbers, which pipelines of CP-SAT have too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshwright.planner.degrees import enumerate_degrees, enumerate_meshes
from meshwright.planner.integer_costs import capacity_chunks, chunks_of, ticks_of
from meshwright.planner.pipeline import Pipeline, PipelineStage, StageAmount
from meshwright.plans.columns import Bools, Floats, Ints, Parts, total
from meshwright.plans.rule import holding
from meshwright.results.serving import ServingPlan
from meshwright.serving.deployment import (
    Deployments,
    ServingJob,
    on_meshes,
    serving_rules,
)
from meshwright.serving.price import Phase, Prices, memory, price, wait_s
from meshwright.spec.base import divisors
from meshwright.spec.plan_fields import AXES
from meshwright.spec.serving import ServingSpec
from meshwright.topology.fabric import Meshes


@dataclass(frozen=True)
class StageCosts:
    """Deployments with equally many stages, in whole numbers.

    Ticks count either once or in every round: see `Prices.once` and `Prices.cycle`.
    """

    rows: Deployments
    once_layer: Ints
    """Ticks of a layer that count once, (rows,)."""
    once_extra: Ints
    """Ticks of a stage beside its layers that count once, (rows, stages)."""
    cycle_layer: Ints
    """Ticks of a layer in a round, (rows,)."""
    cycle_extra: Ints
    """Ticks of a stage beside its layers in a round, (rows, stages)."""
    per_layer: Ints
    """Chunks of a layer, (rows,)."""
    room: Ints
    """Chunks that a stage has for its layers, (rows, stages)."""
    most: Ints
    """Most layers that memory and the wait between tokens allow, (rows, stages)."""
    least: Ints
    """Fewest layers, (stages,)."""

    @property
    def count(self) -> int:
        """Return the number of stages."""
        return len(self.least)

    def pass_ticks(self, layers: int) -> Ints:
        """Return the ticks of one pass through all stages, for any split of layers."""
        per_layer = self.once_layer + self.cycle_layer
        extra = (self.once_extra + self.cycle_extra).sum(axis=1)
        return np.asarray(layers * per_layer + extra)

    def cycle_ticks(self, layers: int) -> Ints:
        """Return the ticks of one pass in a round: no round is shorter."""
        return np.asarray(layers * self.cycle_layer + self.cycle_extra.sum(axis=1))


def costs_by_stage_count(
    job: ServingJob, rows: Deployments
) -> Iterator[tuple[Ints, StageCosts]]:
    """Yield the indices and the costs of the rows of each number of stages."""
    for count in np.unique(rows.pp).tolist():
        index = np.flatnonzero(rows.pp == count)
        yield index, _stage_costs(job, rows.take(index), count)


def _stage_costs(job: ServingJob, rows: Deployments, count: int) -> StageCosts:
    prices, held = price(job, rows), memory(job, rows)
    once, cycle = prices.once(job), prices.cycle(job)
    per_layer = chunks_of(total(held.layer))
    capacity = capacity_chunks(job.spec.usable_gib) - chunks_of(total(held.fixed))
    room = capacity[:, None].repeat(count, axis=1)
    room[:, 0] -= chunks_of(total(held.first))
    room[:, -1] -= chunks_of(total(held.last))
    fit = np.where(room >= 0, room // np.maximum(per_layer, 1)[:, None], 0)
    most = np.minimum(fit, job.model.n_layers)
    least = np.ones(count, dtype=np.int64)
    least[0] = max(1, job.model.first_dense_layers)
    return StageCosts(
        rows=rows,
        once_layer=ticks_of(total(once.layer)),
        once_extra=ticks_of(_extra_s(once, count)),
        cycle_layer=ticks_of(total(cycle.layer)),
        cycle_extra=ticks_of(_extra_s(cycle, count)),
        per_layer=per_layer,
        room=room,
        most=np.minimum(most, _layers_in_time(job, rows, prices, count)),
        least=least,
    )


def _extra_s(phase: Phase, count: int) -> Floats:
    """Return the seconds of stages beside their layers, (rows, stages)."""
    extra = _total_or_zero(phase.send, phase.layer)[:, None].repeat(count, axis=1)
    extra[:, -1] = 0.0
    extra[:, 0] += _total_or_zero(phase.first, phase.layer)
    extra[:, -1] += _total_or_zero(phase.last, phase.layer)
    return extra


def _total_or_zero(parts: Parts, like: Parts) -> Floats:
    return total(parts) if parts else np.zeros_like(total(like))


def _pass_s(phase: Phase, layers: int, count: int) -> Floats:
    """Return the seconds of one pass through all stages, (rows,)."""
    ends = _extra_s(phase, count).sum(axis=1)
    return np.asarray(layers * total(phase.layer) + ends)


def _layers_in_time(
    job: ServingJob, rows: Deployments, prices: Prices, count: int
) -> Ints:
    """Return the most layers of stages within the latency limits, (rows, stages)."""
    slo, layers = job.inference.slo, job.model.n_layers
    most = np.full((len(rows), count), layers, dtype=np.int64)
    first_s = _pass_s(prices.first_token, layers, count)
    most[first_s > wait_s(slo.ttft_ms)] = 0
    tpot_s = wait_s(slo.tpot_ms)
    if tpot_s < np.inf:
        most[_pass_s(prices.step, layers, count) > tpot_s] = 0
        left_s = tpot_s / rows.microbatches[:, None] - _extra_s(prices.step, count)
        fit = np.floor(left_s / total(prices.step.layer)[:, None])
        most = np.minimum(most, np.maximum(fit, 0).astype(np.int64))
    return most


def pinned(spec: ServingSpec, stages: int) -> Ints | None:
    """Return the pinned layers of stages; None where this many are not pinned."""
    layers = spec.pins.layers
    if layers is None or len(layers) != stages:
        return None
    return np.array(layers, dtype=np.int64)


def make_pipeline(job: ServingJob, one: Deployments) -> Pipeline:
    """Return a deployment that stands alone as a pipeline: see `bounds`.

    Its fill is one pass through all stages; its pace is the m times of the slowest
    stage less the pass of a round, and at least 0.
    """
    ((_, stages),) = costs_by_stage_count(job, one)
    layers, groups = job.model.n_layers, int(one.microbatches[0])
    cycle = int(stages.cycle_ticks(layers)[0])
    fill_layer: Ints = stages.once_layer + stages.cycle_layer
    fill_extra: Ints = stages.once_extra + stages.cycle_extra
    held = pinned(job.spec, stages.count)
    return Pipeline(
        layers=layers,
        pinned_layers=None if held is None else tuple(held.tolist()),
        stages=tuple(
            PipelineStage(
                fill=StageAmount(int(fill_extra[0, e]), int(fill_layer[0])),
                pace=StageAmount(
                    fixed=groups * int(stages.cycle_extra[0, e]) - cycle,
                    per_layer=groups * int(stages.cycle_layer[0]),
                ),
                sync=StageAmount(0, 0),
                memory=StageAmount(0, int(stages.per_layer[0])),
                capacity=int(np.maximum(stages.room[0, e], 0)),
                fewest_layers=int(stages.least[e]),
                most_layers=int(stages.most[0, e]),
            )
            for e in range(stages.count)
        ),
    )


NEVER = 2**60
"""Ticks of rows that cannot hold the model, or exceed a latency limit."""

IDLE_AXES = [AXES.index("cp"), AXES.index("dp_shard")]
"""Axes of a mesh that serving does not use."""


@dataclass(frozen=True)
class Lattice:
    """Deployments, the preferred ones first, with bounds in ticks."""

    job: ServingJob
    rows: Deployments
    meshes: Meshes
    lower: Ints
    """`NEVER` where no split fits in memory and within the latency limits."""
    upper: Ints
    """Ticks of the split in `layers`; `NEVER` likewise."""
    layers: tuple[Ints, ...]
    """The layers of each stage, for every row."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    @property
    def possible(self) -> Bools:
        """Return which rows have a plan that fits."""
        return self.upper < NEVER

    def best(self, among: Bools) -> int | None:
        """Return the best row among some, the first of equals; None if none fits."""
        possible = np.flatnonzero(among & self.possible)
        if not len(possible):
            return None
        return int(possible[self.upper[possible].argmin()])

    def plan(self, row: int, layers: Ints) -> ServingPlan:
        """Return the plan of a row with a split of layers."""
        rows = self.rows
        mesh = self.meshes[rows.mesh[row]]
        return ServingPlan(
            tp=int(rows.tp[row]),
            pp=int(rows.pp[row]),
            dp_replicate=int(rows.dp_replicate[row]),
            microbatches=int(rows.microbatches[row]),
            attention_dp=int(rows.attention_dp[row]),
            layers=tuple(layers.tolist()),
            mesh={axis: tuple(mesh[i].tolist()) for i, axis in enumerate(AXES)},
        )


def build_lattice(job: ServingJob) -> Lattice:
    """Return the deployments that the rules allow, with their bounds."""
    rows, meshes = enumerate_deployments(job)
    legal = holding(serving_rules(job.spec, meshes), job.spec, rows)
    return bounded(job, rows.take(np.flatnonzero(legal)), meshes)


def bounded(job: ServingJob, rows: Deployments, meshes: Meshes) -> Lattice:
    """Return rows with their bounds."""
    lower = np.full(len(rows), NEVER, dtype=np.int64)
    upper, layers = lower.copy(), [np.zeros(0, dtype=np.int64)] * len(rows)
    for index, stages in costs_by_stage_count(job, rows):
        found = bounds(stages, job.model.n_layers, pinned(job.spec, stages.count))
        lower[index], upper[index] = found.lower, found.upper
        for row, split in zip(index.tolist(), found.layers, strict=True):
            layers[row] = split
    return Lattice(job, rows, meshes, lower, upper, tuple(layers))


class Bounds(NamedTuple):
    """The bounds of rows, and the split that attains the upper one."""

    lower: Ints
    upper: Ints
    layers: Ints
    """(rows, stages)"""


def bounds(stages: StageCosts, layers: int, pinned: Ints | None) -> Bounds:
    """Return the bounds of rows, for the pinned split if there is one."""
    once, cycle = stages.pass_ticks(layers), stages.cycle_ticks(layers)
    groups = stages.rows.microbatches
    even = -(-groups * cycle // stages.count)
    lower = once + np.maximum(even - cycle, 0)
    split = _best_split(stages, layers) if pinned is None else _repeated(stages, pinned)
    slowest = _stage_ticks(stages, split).max(axis=1)
    upper = once + np.maximum(groups * slowest - cycle, 0)
    fits = _fits(stages, split, layers)
    lower, upper = np.where(fits, lower, NEVER), np.where(fits, upper, NEVER)
    return Bounds(lower, upper, split)


def _stage_ticks(stages: StageCosts, split: Ints) -> Ints:
    """Return the ticks of every stage in a round, (rows, stages)."""
    return np.asarray(split * stages.cycle_layer[:, None] + stages.cycle_extra)


def _fits(stages: StageCosts, split: Ints, layers: int) -> Bools:
    inside = (split >= stages.least) & (split <= stages.most)
    return np.asarray(inside.all(axis=1) & (split.sum(axis=1) == layers))


def _repeated(stages: StageCosts, pinned: Ints) -> Ints:
    return np.tile(pinned, (len(stages.rows), 1))


def _best_split(stages: StageCosts, layers: int) -> Ints:
    """Return splits whose slowest stage is as fast as possible.

    The limit on its ticks is bisected: within a limit every stage takes the most layers
    it can. Where no limit is enough, the split has too few layers.
    """
    low = np.zeros(len(stages.rows), dtype=np.int64)
    high = _stage_ticks(stages, stages.most).max(axis=1)
    while (low < high).any():
        middle = (low + high) // 2
        is_enough = _most_within(stages, middle).sum(axis=1) >= layers
        high = np.where(is_enough, middle, high)
        low = np.where(is_enough, low, np.minimum(middle + 1, high))
    return _trimmed(_most_within(stages, high), stages.least, layers)


def _most_within(stages: StageCosts, ticks: Ints) -> Ints:
    """Return the most layers of stages within some ticks; 0 if below the fewest."""
    per_layer = stages.cycle_layer[:, None]
    left = ticks[:, None] - stages.cycle_extra
    fit = np.where(per_layer > 0, left // np.maximum(per_layer, 1), stages.most)
    most = np.where(left < 0, -1, np.minimum(fit, stages.most))
    is_enough = np.asarray((most >= stages.least).all(axis=1))
    return np.where(is_enough[:, None], most, 0)


def _trimmed(split: Ints, least: Ints, layers: int) -> Ints:
    """Return splits without their surplus layers, taken from the last stages first."""
    surplus = np.maximum(split.sum(axis=1) - layers, 0)
    split = split.copy()
    for stage in reversed(range(split.shape[1])):
        removed = np.minimum(surplus, np.maximum(split[:, stage] - least[stage], 0))
        split[:, stage] -= removed
        surplus = surplus - removed
    return split


def enumerate_deployments(job: ServingJob) -> tuple[Deployments, Meshes]:
    """Return every deployment, and the table of meshes that its rows index.

    The preferred ones come first: few stages, low tensor parallelism, few groups.
    Without experts attention is of all requests: others would break a rule.
    """
    sizes = job.fabric.sizes
    degrees, _ = enumerate_degrees(sizes)
    degrees = degrees[(degrees[:, IDLE_AXES] == 1).all(axis=1)]
    meshes = np.concatenate([enumerate_meshes(sizes, axes) for axes in degrees])
    ones = np.ones(len(meshes), dtype=np.int64)
    rows = on_meshes(job, meshes, ones, ones.copy())
    rows = _varied(rows, "microbatches", map(group_counts, rows.requests.tolist()))
    if job.model.moe is not None:
        rows = _varied(rows, "attention_dp", map(divisors, rows.tp.tolist()))
    keys = (rows.mesh, rows.microbatches, rows.attention_dp, rows.tp, rows.pp)
    return rows.take(np.lexsort(keys)), meshes


def _varied(
    rows: Deployments, name: str, values: Iterable[Ints | list[int]]
) -> Deployments:
    """Return every row with each of its values of a column."""
    lists = [np.asarray(each, dtype=np.int64) for each in values]
    rows = rows.take(np.repeat(np.arange(len(rows)), [len(each) for each in lists]))
    getattr(rows, name)[:] = np.concatenate(lists)
    return rows


def group_counts(requests: int) -> Ints:
    """Return the numbers of groups to try: for each group size, the least number."""
    counts = np.arange(1, requests + 1)
    _, first = np.unique(-(-requests // counts), return_index=True)
    return np.sort(counts[first])


def distinct_rows(rows: Deployments, among: Ints) -> Ints:
    """Return the first row of each set whose columns all agree but for the mesh."""
    names = [name for name in vars(rows) if name != "mesh"]
    columns = np.stack([getattr(rows, name)[among] for name in names], axis=1)
    _, first = np.unique(columns, axis=0, return_index=True)
    return among[np.sort(first)]
