"""Time and memory of the stages of deployments, in whole numbers, and as pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.planner.integer_costs import capacity_chunks, chunks_of, ticks_of
from meshwright.planner.pipeline import Pipeline, PipelineStage, StageAmount
from meshwright.plans.columns import Floats, Ints, Parts, total
from meshwright.serving.deployment import Deployments
from meshwright.serving.job import ServingJob
from meshwright.serving.memory import memory
from meshwright.serving.price import Phase, Prices, price, wait_s
from meshwright.spec.serving import ServingSpec


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
