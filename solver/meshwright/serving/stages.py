"""Deployments in whole ticks and chunks, and what each of their stages may hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.bounds.integer_costs import capacity_chunks, chunks_of, ticks_of
from meshwright.plans.columns import Floats, Ints, Parts, take, total
from meshwright.serving.deployment import Deployments
from meshwright.serving.job import ServingJob
from meshwright.serving.memory import memory
from meshwright.serving.price import Phase, Prices, price
from meshwright.serving.rounds import wait_s
from meshwright.spec.serving import ServingSpec


@dataclass(frozen=True)
class Stages:
    """Deployments with equally many stages, a row each."""

    rows: Deployments
    before_layer: Ints
    """Ticks: what is counted once of each layer, and beside layers, (rows, stages)."""
    before_extra: Ints
    cycle_layer: Ints
    """Ticks of a round, likewise."""
    cycle_extra: Ints
    per_layer: Ints
    """Chunks."""
    room: Ints
    """Chunks that a stage has for layers, (rows, stages)."""
    most: Ints
    """Layers that memory and the wait between tokens allow, (rows, stages)."""
    least: Ints
    """Fewest layers, (stages,)."""

    @property
    def count(self) -> int:
        """Return the number of stages."""
        return len(self.least)

    def take(self, index: Ints) -> Stages:
        """Return the rows of `index`."""
        own = {name: take(value, index) for name, value in vars(self).items()}
        return Stages(**{**own, "least": self.least})

    def once(self, layers: int) -> Ints:
        """Return the ticks of one way through all stages, however layers are split."""
        per_layer = self.before_layer + self.cycle_layer
        extra = (self.before_extra + self.cycle_extra).sum(axis=1)
        return np.asarray(layers * per_layer + extra)

    def waited(self, layers: int) -> Ints:
        """Return the ticks of that which a round has to pass before it takes longer."""
        return np.asarray(layers * self.cycle_layer + self.cycle_extra.sum(axis=1))


def stages_by_count(
    job: ServingJob, rows: Deployments
) -> Iterator[tuple[Ints, Stages]]:
    """Yield the rows of each number of stages, and which they are."""
    for count in np.unique(rows.pp).tolist():
        index = np.flatnonzero(rows.pp == count)
        yield index, _stages(job, rows.take(index), count)


def _stages(job: ServingJob, rows: Deployments, count: int) -> Stages:
    prices, held = price(job, rows), memory(job, rows)
    before, cycle = prices.before(job), prices.cycle(job)
    per_layer = chunks_of(total(held.layer))
    own = [chunks_of(total(part)) for part in (held.first, held.last)]
    capacity = capacity_chunks(job.spec.usable_gib) - chunks_of(total(held.fixed))
    room = capacity[:, None].repeat(count, axis=1)
    room[:, 0] -= own[0]
    room[:, -1] -= own[1]
    fits = np.where(room >= 0, room // np.maximum(per_layer, 1)[:, None], 0)
    most = np.minimum(fits, job.model.n_layers)
    least = np.ones(count, dtype=np.int64)
    least[0] = max(1, job.model.first_dense_layers)
    return Stages(
        rows=rows,
        before_layer=ticks_of(total(before.layer)),
        before_extra=ticks_of(extra_s(before, count)),
        cycle_layer=ticks_of(total(cycle.layer)),
        cycle_extra=ticks_of(extra_s(cycle, count)),
        per_layer=per_layer,
        room=room,
        most=np.minimum(most, _quick_enough(job, rows, prices, count)),
        least=least,
    )


def extra_s(phase: Phase, count: int) -> Floats:
    """Return the seconds of stages beside their layers, (rows, stages)."""
    extra = _or_none(phase.send, phase.layer)[:, None].repeat(count, axis=1)
    extra[:, -1] = 0.0
    extra[:, 0] += _or_none(phase.first, phase.layer)
    extra[:, -1] += _or_none(phase.last, phase.layer)
    return extra


def _or_none(parts: Parts, like: Parts) -> Floats:
    return total(parts) if parts else np.zeros_like(total(like))


def way_s(phase: Phase, layers: int, count: int) -> Floats:
    """Return the seconds of one way through all stages, a row each."""
    ends = extra_s(phase, count).sum(axis=1)
    return np.asarray(layers * total(phase.layer) + ends)


def _quick_enough(
    job: ServingJob, rows: Deployments, prices: Prices, count: int
) -> Ints:
    """Return how many layers stages may have for users not to wait, (rows, stages)."""
    slo, layers = job.inference.slo, job.model.n_layers
    most = np.full((len(rows), count), layers, dtype=np.int64)
    first_s = way_s(prices.first_token, layers, count)
    most[first_s > wait_s(slo.ttft_ms)] = 0
    tpot_s = wait_s(slo.tpot_ms)
    if tpot_s < np.inf:
        most[way_s(prices.step, layers, count) > tpot_s] = 0
        left_s = tpot_s / rows.microbatches[:, None] - extra_s(prices.step, count)
        fit = np.floor(left_s / total(prices.step.layer)[:, None])
        most = np.minimum(most, np.maximum(fit, 0).astype(np.int64))
    return most


def pinned(spec: ServingSpec, stages: int) -> Ints | None:
    """Return the layers of stages that are pinned, for as many stages."""
    layers = spec.pins.layers
    if layers is None or len(layers) != stages:
        return None
    return np.array(layers, dtype=np.int64)
