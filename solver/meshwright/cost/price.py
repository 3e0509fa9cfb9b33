"""Costs of skeletons, and the time and memory of their stages under a split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from meshwright.cost.held_state import HeldState
from meshwright.cost.job import Job
from meshwright.cost.layer_kinds import (
    mean_held_state,
    mean_memory_costs,
    mean_time_costs,
)
from meshwright.cost.memory import MemoryCosts, apart_from_holes
from meshwright.cost.schedule import (
    closed_form_s,
    ends,
    heads_in_flight,
    in_flight,
    sends,
)
from meshwright.cost.timing import TimeCosts
from meshwright.plans.columns import (
    Bools,
    Columns,
    Floats,
    Ints,
    Parts,
    added,
    scaled,
    total,
    where,
)
from meshwright.plans.skeletons import Skeletons, Split, dealt
from meshwright.spec.gpu import PRECISIONS

T = TypeVar("T", bound=Columns)
Column = TypeVar("Column", Bools, Ints)


@dataclass(frozen=True)
class Prices(Columns):
    """Skeletons with their costs, one row per skeleton."""

    rows: Skeletons
    time: TimeCosts
    memory: MemoryCosts


def price(job: Job, rows: Skeletons) -> Prices:
    """Return the costs of skeletons, each in its precision."""
    return Prices(rows, price_time(job, rows), price_memory(job, rows))


def price_memory(job: Job, rows: Skeletons) -> MemoryCosts:
    """Return the memory costs of skeletons."""
    return _by_precision(job, rows, mean_memory_costs)


def price_state(job: Job, rows: Skeletons) -> HeldState:
    """Return the bytes of state of skeletons: no more than their memory costs."""
    return _by_precision(job, rows, mean_held_state)


def price_time(job: Job, rows: Skeletons) -> TimeCosts:
    """Return the time costs of skeletons."""
    return _by_precision(job, rows, mean_time_costs)


def _by_precision(job: Job, rows: Skeletons, costs: Callable[[Job, Skeletons], T]) -> T:
    """Return costs of rows, computed for each precision that occurs."""
    codes = np.unique(rows.precision).tolist()
    if len(codes) < 2:
        name = PRECISIONS[codes[0]] if codes else job.spec.training.precisions[0]
        return costs(job.at(name), rows)
    order = np.argsort(rows.precision, kind="stable")
    parts = [
        costs(job.at(PRECISIONS[code]), rows.take(order[rows.precision[order] == code]))
        for code in codes
    ]
    return type(parts[0]).joined(parts).take(np.argsort(order))


def per_row(column: Column, split: Ints) -> Column:
    """Return a column that broadcasts against a split: (stages,) or (rows, stages)."""
    return column.reshape(-1, *[1] * (split.ndim - 1))


def stage_seconds(rows: Skeletons, time: TimeCosts, split: Split) -> Parts:
    """Return seconds per micro-batch of every stage of one skeleton, by part.

    `time` has one row and each part has shape (stages,), or `time` has shape (rows, 1)
    and each part (rows, stages).
    """
    first, last = stage_ends(rows, split)
    onward, back = stage_sends(rows, split)
    return added(
        [
            scaled(time.forward, split.layers),
            scaled(time.backward, split.layers),
            {"recompute": time.recompute_s * split.recomputed},
            scaled(time.lead, leading_on_stages(time, split)),
            where(first, time.first),
            where(last, time.last),
            {"pp": time.send_s * (onward + back)},
        ]
    )


def stage_sync_seconds(rows: Skeletons, time: TimeCosts, split: Split) -> Parts:
    """Return seconds at the end of the step, in the shape of `stage_seconds`."""
    first, last = stage_ends(rows, split)
    return added(
        [
            scaled(time.sync_layer, split.layers),
            scaled(time.sync_lead, leading_on_stages(time, split)),
            where(first, time.sync_first),
            where(last, time.sync_last),
        ]
    )


def stage_weight_seconds(time: TimeCosts, split: Split) -> Floats:
    """Return seconds of weight gradients that may wait, as `stage_seconds`."""
    of_lead = time.lead_weight_s * leading_on_stages(time, split)
    return np.asarray(time.weight_s * split.layers + of_lead)


def step_seconds(rows: Skeletons, time: TimeCosts, split: Split) -> Floats:
    """Return the step time of skeletons that all have the same pp, (rows,).

    The split is (rows, stages).
    """
    column = time.take((slice(None), None))
    tau_s = total(stage_seconds(rows, column, split))
    weight_s = stage_weight_seconds(column, split)
    schedule = (rows.schedule, rows.microbatches, rows.vpp)
    sync_s = total(stage_sync_seconds(rows, column, split))
    return np.asarray(closed_form_s(tau_s, weight_s, *schedule) + sync_s.max(axis=1))


@dataclass(frozen=True)
class StageTimes:
    """The times of every stage of one skeleton, (stages,)."""

    seconds: Parts
    """Per micro-batch, by part."""
    forward: Parts
    """The forward's share of `seconds`, by part."""
    weight_s: Floats
    """The part of `seconds` in weight gradients that may wait."""
    sync: Parts
    """At the end of the step, by part."""

    @property
    def forward_s(self) -> Floats:
        """Return the seconds of the forward per micro-batch."""
        return total(self.forward)


def stage_times(rows: Skeletons, time: TimeCosts, split: Split) -> StageTimes:
    """Return the times of stages; `rows` and `time` have one row."""
    first, last = stage_ends(rows, split)
    # Sends onward belong to the forward, and so does a third of the ends.
    onward, _ = stage_sends(rows, split)
    forward = [
        scaled(time.forward, split.layers),
        scaled(where(last, time.last), 1 / 3),
        scaled(time.lead, leading_on_stages(time, split) / 3),
        scaled(where(first, time.first), 1 / 3),
        {"pp": onward * time.send_s},
    ]
    return StageTimes(
        seconds=stage_seconds(rows, time, split),
        forward=added(forward),
        weight_s=stage_weight_seconds(time, split),
        sync=stage_sync_seconds(rows, time, split),
    )


def times_on_kinds(kinds: Sequence[StageTimes], kind: Ints) -> StageTimes:
    """Return the times of stages that each lie on one kind of GPU.

    `kinds` holds the times of all stages on each kind, `kind` the kind of each stage,
    (stages,).
    """
    stages = np.arange(len(kind))

    def chosen(by_kind: Sequence[Floats]) -> Floats:
        return np.asarray(np.stack(by_kind)[kind, stages])

    def chosen_parts(by_kind: Sequence[Parts]) -> Parts:
        names = by_kind[0]
        return {name: chosen([parts[name] for parts in by_kind]) for name in names}

    return StageTimes(
        seconds=chosen_parts([times.seconds for times in kinds]),
        forward=chosen_parts([times.forward for times in kinds]),
        weight_s=chosen([times.weight_s for times in kinds]),
        sync=chosen_parts([times.sync for times in kinds]),
    )


ROUNDING = 1e-12
"""Share of a pipeline's time below which the rest that no stage takes is rounding."""


def step_parts(rows: Skeletons, times: StageTimes) -> dict[str, float]:
    """Return the step time by part: the parts of the slowest stage, and the bubble.

    The bubble is the rest. For 1F1B and even stages it is (p - 1) / (m + p - 1) of the
    time of the pipeline. `rows` has one row.
    """
    seconds, sync = total(times.seconds), total(times.sync)
    slowest, longest = int(seconds.argmax()), int(sync.argmax())
    m = int(rows.microbatches[0])
    parts = {name: m * float(part[slowest]) for name, part in times.seconds.items()}
    schedule = (rows.schedule, rows.microbatches, rows.vpp)
    pipeline_s = closed_form_s(seconds[None], times.weight_s[None], *schedule)
    bubble_s = float(pipeline_s[0]) - m * float(seconds[slowest])
    # Rounding is no bubble: a rule of the user may ask for none.
    parts["bubble"] = 0.0 if abs(bubble_s) < ROUNDING * pipeline_s[0] else bubble_s
    for name, part in times.sync.items():
        parts[name] = parts.get(name, 0.0) + float(part[longest])
    return parts


def stage_bytes(prices: Prices, split: Split) -> Parts:
    """Return the bytes on a GPU of every stage, by part, (stages,)."""
    rows, stages = prices.rows, len(split.layers)
    memory, (first, last) = prices.memory, stage_ends(rows, split)
    held = in_flight(rows.schedule, rows.microbatches, rows.vpp, stages)[0] / rows.vpp
    heads = heads_in_flight(rows.schedule, rows.microbatches)
    leading = leading_on_stages(memory, split)
    saved = memory.activations * split.layers - memory.freed * split.recomputed
    saved = saved + memory.outputs + rows.vpp * memory.part_segments
    parts = added(
        [
            scaled(memory.layer, split.layers),
            where(first, memory.first),
            where(last, memory.last),
            scaled(memory.lead, leading),
            where(leading > 0, memory.beside_lead),
            {"activations": held * (saved + leading * memory.lead_activations)},
            where(last, {"logits": heads * memory.last_activations}),
            scaled(memory.fixed, np.ones(stages)),
        ]
    )
    return apart_from_holes(parts, memory.holes)


def stage_host_bytes(prices: Prices, split: Split) -> Floats:
    """Return the bytes that a GPU of every stage has on its host, (stages,)."""
    memory, (first, last) = prices.memory, stage_ends(prices.rows, split)
    at_ends = np.where(first, memory.host_first, 0.0)
    at_ends = at_ends + np.where(last, memory.host_last, 0.0)
    of_lead = leading_on_stages(memory, split) * memory.host_lead
    return np.asarray(split.layers * memory.host_layer + of_lead + at_ends)


def leading_on_stages(costs: TimeCosts | MemoryCosts, split: Split) -> Ints:
    """Return how many leading parts stages hold, as `stage_seconds`."""
    stage = np.arange(split.layers.shape[-1])
    return dealt(costs.leading, costs.most_leading, stage)


def stage_ends(rows: Skeletons, split: Split) -> tuple[Bools, Bools]:
    """Return which stages have the embedding, and which the head."""
    stages = split.layers.shape[-1]
    return ends(per_row(rows.schedule, split.layers), stages, np.arange(stages))


def stage_sends(rows: Skeletons, split: Split) -> tuple[Ints, Ints]:
    """Return how often stages send onward and back."""
    columns = (per_row(column, split.layers) for column in (rows.vpp, rows.schedule))
    return sends(split.layers.shape[-1], *columns)
