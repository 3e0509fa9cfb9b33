"""All costs of skeletons, and what a split of layers over stages makes of them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np

from meshwright.cost.arrays import Floats, Ints, Parts, added, scaled, total, where
from meshwright.cost.memory import MemoryCosts, memory_costs
from meshwright.cost.schedule import closed_form_s, in_flight
from meshwright.cost.timing import TimeCosts, time_costs
from meshwright.job import Job
from meshwright.skeleton import Skeletons
from meshwright.spec.cluster import PRECISIONS, Precision

Costs = TypeVar("Costs", TimeCosts, MemoryCosts)


@dataclass(frozen=True)
class Prices:
    """Skeletons with their costs, a row each."""

    rows: Skeletons
    time: TimeCosts
    memory: MemoryCosts


def price(job: Job, rows: Skeletons) -> Prices:
    """Return the costs of skeletons, each at its own precision."""
    codes = np.unique(rows.precision)
    if len(codes) <= 1:
        known = job.spec.training.precisions
        return _price_at(job, rows, PRECISIONS[codes[0]] if len(codes) else known[0])
    order = np.argsort(rows.precision, kind="stable")
    parts = [
        _price_at(job, rows.take(index), PRECISIONS[code])
        for code in codes
        for index in [np.flatnonzero(rows.precision == code)]
    ]
    back = np.argsort(order)
    return Prices(
        rows,
        _interleaved([part.time for part in parts], back),
        _interleaved([part.memory for part in parts], back),
    )


def _price_at(job: Job, rows: Skeletons, precision: Precision) -> Prices:
    """Return the costs of skeletons of one precision."""
    own = job.at(precision)
    return Prices(rows, time_costs(own, rows), memory_costs(own, rows))


def _interleaved(parts: list[Costs], back: Ints) -> Costs:
    """Return the rows of all parts, in the order `back` of those one after another."""

    def merged(columns: list[Any]) -> Any:
        if not isinstance(columns[0], dict):
            return np.concatenate(columns)[back]
        names = columns[0]
        return {name: merged([column[name] for column in columns]) for name in names}

    kind = type(parts[0])
    names = [f.name for f in fields(kind)]
    return kind(**{n: merged([getattr(part, n) for part in parts]) for n in names})


@dataclass(frozen=True)
class Split:
    """Layers and recomputed layers of every stage of one skeleton, (stages,)."""

    layers: Ints
    recomputed: Ints


def stage_seconds(time: TimeCosts, split: Split, vpp: int) -> Parts:
    """Return seconds per micro-batch of every stage of one skeleton, by part.

    `time` has one row; each part has shape (stages,).
    """
    ends = _Ends(len(split.layers))
    sends = ends.neighbours + 2.0 * (vpp - 1) * (len(split.layers) > 1)
    return added(
        [
            scaled(time.forward, split.layers),
            scaled(time.backward, split.layers),
            {"recompute": time.recompute_s * split.recomputed},
            where(ends.first, time.first),
            where(ends.last, time.last),
            {"pp": time.send_s * sends},
        ]
    )


def stage_sync_seconds(time: TimeCosts, split: Split) -> Parts:
    """Return seconds at the end of the step of every stage, by part, (stages,)."""
    ends = _Ends(len(split.layers))
    return added(
        [
            scaled(time.sync_layer, split.layers),
            where(ends.first, time.sync_first),
            where(ends.last, time.sync_last),
        ]
    )


def step_parts(rows: Skeletons, time: TimeCosts, split: Split) -> dict[str, float]:
    """Return the step time by part; the parts of the slowest stage, and the rest.

    The rest is the bubble: of 1F1B and even stages (p - 1) / (m + p - 1) of the
    pipeline's time. `rows` and `time` have one row.
    """
    stages = stage_seconds(time, split, int(rows.vpp[0]))
    ends = stage_sync_seconds(time, split)
    seconds, sync = total(stages), total(ends)
    slowest, longest = int(seconds.argmax()), int(sync.argmax())
    m = int(rows.microbatches[0])
    parts = {name: m * float(part[slowest]) for name, part in stages.items()}
    weight_s = time.weight_s * split.layers
    schedule = (rows.schedule, rows.microbatches, rows.vpp)
    pipeline_s = float(closed_form_s(seconds[None], weight_s[None], *schedule)[0])
    parts["bubble"] = pipeline_s - m * float(seconds[slowest])
    for name, part in ends.items():
        parts[name] = parts.get(name, 0.0) + float(part[longest])
    return parts


def stage_bytes(prices: Prices, split: Split) -> Parts:
    """Return bytes on a GPU of every stage, by part, (stages,)."""
    rows, stages = prices.rows, len(split.layers)
    memory, ends = prices.memory, _Ends(stages)
    held = in_flight(rows.schedule, rows.microbatches, rows.vpp, stages)[0] / rows.vpp
    saved = memory.activations * split.layers - memory.freed * split.recomputed
    return added(
        [
            scaled(memory.layer, split.layers),
            where(ends.first, memory.first),
            where(ends.last, memory.last),
            {"activations": held * saved},
            where(ends.first, {"activations": held * memory.first_activations}),
            where(ends.last, {"logits": memory.last_activations}),
            scaled(memory.fixed, np.ones(stages)),
        ]
    )


def stage_host_bytes(prices: Prices, split: Split) -> Floats:
    """Return the bytes that a GPU of every stage has on its host, (stages,)."""
    memory, ends = prices.memory, _Ends(len(split.layers))
    at_ends = np.where(ends.first, memory.host_first, 0.0)
    at_ends = at_ends + np.where(ends.last, memory.host_last, 0.0)
    return np.asarray(split.layers * memory.host_layer + at_ends)


class _Ends:
    """Which stages are first and last, and how many neighbours each sends to."""

    def __init__(self, stages: int) -> None:
        index = np.arange(stages)
        self.first = index == 0
        self.last = index == stages - 1
        self.neighbours: Floats = 2.0 - self.first - self.last
