"""Seconds and bytes as whole numbers: the only rounding in Meshwright.

Bounds and CP-SAT see only these numbers, so that they agree exactly. Times are rounded
to the nearest tick, memory up and capacity down: what fits in chunks fits in bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from meshwright.cost.memory import MemoryCosts
from meshwright.cost.schedule import (
    ends,
    heads_in_flight,
    in_flight_before,
    step_weights,
)
from meshwright.cost.timing import TimeCosts
from meshwright.plans.columns import (
    Bools,
    Columns,
    Floats,
    Ints,
    Parts,
    added,
    take,
    total,
)
from meshwright.plans.schedules import IS_V
from meshwright.plans.skeletons import Skeletons
from meshwright.spec.plan_fields import NONE
from meshwright.spec.units import GIB

TICK_S = 1e-9
"""Seconds per tick: a nanosecond."""

CHUNK_BYTES = 1024
"""Bytes per chunk: a kibibyte."""

MOST_TICKS = 2.0**50
"""Longer times are cut off here; steps are shorter: `pipeline.LARGEST_HORIZON`."""

MOST_CHUNKS = 2.0**36
"""Larger amounts are cut off here, at 64 TiB: no GPU has as much."""


class Holding(NamedTuple):
    """Chunks that a stage holds: fixed + layers x per_layer - recomputed x freed."""

    fixed: Ints
    per_layer: Ints
    freed: Ints


@dataclass(frozen=True)
class Scaled(Columns):
    """Costs of skeletons in whole ticks and chunks, one row per skeleton."""

    rows: Skeletons
    layer: Ints
    recompute: Ints
    lead: Ints
    first: Ints
    last: Ints
    send: Ints
    """Ticks that a send adds to filling the pipeline, as the five columns above do for
    a layer, a recomputed layer, a leading part of the model beyond its layers, and the
    ends of the model: see `cost.schedule`."""
    pace_layer: Ints
    pace_recompute: Ints
    pace_lead: Ints
    pace_first: Ints
    pace_last: Ints
    pace_send: Ints
    """Ticks that a send adds to the pace of its stage."""
    sync_layer: Ints
    sync_lead: Ints
    sync_first: Ints
    sync_last: Ints
    state: Ints
    activations: Ints
    freed: Ints
    outputs: Ints
    part_segments: Ints
    lead_state: Ints
    lead_activations: Ints
    beside_lead: Ints
    first_state: Ints
    last_state: Ints
    last_activations: Ints
    fixed: Ints
    host_layer: Ints
    """Chunks of a layer on the host; the others are those beside them."""
    host_lead: Ints
    host_first: Ints
    host_last: Ints
    recompute_scope: Ints
    """Code of how many layers of each stage may be recomputed."""
    by_gpu_kind: tuple[Scaled, ...] = ()
    """The same skeletons on each kind of GPU that stages lie on; the columns above are
    then the least over all kinds."""

    def shared(self, rows: Skeletons, inverse: Ints) -> Scaled:
        """Return the costs of `rows`; `inverse` says whose costs each of them has."""
        columns = {f.name: getattr(self, f.name) for f in fields(self)[1:]}
        return Scaled(rows=rows, **take(columns, inverse))

    @classmethod
    def least(cls, kinds: Sequence[Scaled]) -> Scaled:
        """Return the least costs over kinds of GPUs, with the costs of each kind."""
        columns = {
            name: np.min([getattr(kind, name) for kind in kinds], axis=0)
            for name in AMOUNTS
        }
        return cls(rows=kinds[0].rows, by_gpu_kind=tuple(kinds), **columns)

    def in_flight(self, stages: int) -> Ints:
        """Return the most micro-batches in flight on each stage, (rows, stages)."""
        return self.in_flight_before(np.arange(stages)[::-1])

    def in_flight_before(self, after: Ints) -> Ints:
        """Return the micro-batches in flight, at most, with `after` stages behind."""
        rows = self.rows
        columns = (rows.schedule, rows.microbatches, rows.vpp, rows.pp)
        return in_flight_before(after, *(column[:, None] for column in columns))

    def ends(self, stages: int) -> tuple[Bools, Bools]:
        """Return which stages have embedding and head, (rows, stages) each."""
        return ends(self.rows.schedule[:, None], stages, np.arange(stages))

    def held(self, in_flight: Ints, chunks: Ints, count: Ints | int = 1) -> Ints:
        """Return an amount over all micro-batches in flight, (rows, stages).

        It counts `count` times on each stage.
        """
        held = in_flight * count * chunks[:, None]
        if (self.rows.vpp == 1).all():
            return held
        return -(-held // self.rows.vpp[:, None])

    def stage_extra(self, stages: int, leading: Ints) -> Ints:
        """Return the ticks of a stage beside its layers, (rows, stages).

        `leading` counts the leading parts of the first stages, (rows, some stages).
        """
        ends = self._of_ends(stages, leading, self.lead, self.first, self.last)
        return ends + self._of_sends(stages, self.send)

    def stage_pace_extra(self, stages: int, leading: Ints) -> Ints:
        """Return the ticks of pace of a stage beside its layers, (rows, stages)."""
        amounts = self.pace_lead, self.pace_first, self.pace_last
        ends = self._of_ends(stages, leading, *amounts)
        return ends + self._of_sends(stages, self.pace_send)

    def _of_sends(self, stages: int, send: Ints) -> Ints:
        extra = (send * 2 * self.rows.vpp)[:, None].repeat(stages, axis=1)
        # Both ends of a V send their two chunks to one neighbour alone.
        unsent = send * (1 + IS_V[self.rows.schedule])
        extra[:, 0] -= unsent
        extra[:, -1] -= unsent
        return extra

    def _of_ends(
        self, stages: int, leading: Ints, lead: Ints, first: Ints, last: Ints
    ) -> Ints:
        """Return the amounts that leading parts, embedding and head add to stages."""
        has_first, has_last = self.ends(stages)
        ends = has_first * first[:, None] + has_last * last[:, None]
        ends[:, : leading.shape[1]] += leading * lead[:, None]
        return np.asarray(ends)

    def stage_sync(self, stages: int, leading: Ints) -> Ints:
        """Return the ticks of the end of the step beside its layers, (rows, stages)."""
        amounts = self.sync_lead, self.sync_first, self.sync_last
        return self._of_ends(stages, leading, *amounts)

    def holding(
        self, in_flight: Ints, first: Bools, last: Bools, leading: Ints
    ) -> Holding:
        """Return the memory of stages, (rows, stages), by the formula of `MemoryCosts`.

        `first` and `last` say which stages are the ends of the pipeline, `leading` how
        many leading parts the first ones hold.
        """
        heads = heads_in_flight(self.rows.schedule, self.rows.microbatches)
        embedding = self.first_state[:, None]
        head = (self.last_state + heads * self.last_activations)[:, None]
        fixed = self.fixed[:, None] + self.held(in_flight, self.outputs)
        if self.part_segments.any():
            fixed = fixed + in_flight * self.part_segments[:, None]
        lead = leading * self.lead_state[:, None]
        lead = lead + (leading > 0) * self.beside_lead[:, None]
        few = in_flight[:, : leading.shape[1]]
        lead = lead + self.held(few, self.lead_activations, leading)
        state, recomputes = self.state[:, None], self.rows.recompute != NONE
        saved = self.held(in_flight, self.activations)
        kept = self.held(in_flight, self.activations - self.freed)
        freed = np.where(recomputes[:, None], saved - kept, 0)
        fixed = fixed + first * embedding + last * head
        fixed[:, : leading.shape[1]] += lead
        return Holding(fixed, state + saved, freed)

    def host_cap(self, stages: int, leading: Ints, capacity: int, layers: int) -> Ints:
        """Return the most layers that each stage's share of a host holds.

        `capacity` is in chunks per GPU; (rows, stages), up to all `layers`.
        """
        amounts = self.host_lead, self.host_first, self.host_last
        left = capacity - self._of_ends(stages, leading, *amounts)
        each = self.host_layer[:, None]
        most = np.maximum(left, 0) // np.maximum(each, 1)
        return np.where((left >= 0) & (each == 0), layers, most)


AMOUNTS = tuple(f.name for f in fields(Scaled) if f.name not in ("rows", "by_gpu_kind"))
"""The columns of ticks, chunks and codes."""


def zero_costs(rows: Skeletons) -> Scaled:
    """Return costs of skeletons that take no time and hold nothing."""
    zeros = np.zeros(len(rows), dtype=np.int64)
    columns: dict[str, Any] = dict.fromkeys(AMOUNTS, zeros)
    return Scaled(rows=rows, **columns)


def with_memory(costs: Scaled, memory: MemoryCosts) -> Scaled:
    """Return costs with the memory of each skeleton."""
    chunks: dict[str, Any] = _memory_chunks(memory, np.arange(len(costs)))
    return replace(costs, **chunks)


def with_time(costs: Scaled, time: TimeCosts, inverse: Ints) -> Scaled:
    """Return costs with times of distinct skeletons; `inverse` is which each has."""
    ticks: dict[str, Any] = _time_ticks(time, costs.rows, inverse)
    return replace(costs, **ticks)


def _time_ticks(time: TimeCosts, rows: Skeletons, inverse: Ints) -> dict[str, Ints]:
    """Return the columns of ticks, for filling the pipeline and for the pace."""
    weights = step_weights(rows.schedule, rows.microbatches, rows.vpp, rows.pp)
    none = np.zeros(len(rows))
    layer_s = total(added([time.forward, time.backward]))
    columns = {
        "layer": (layer_s, time.weight_s[inverse]),
        "recompute": (time.recompute_s, none),
        "lead": (_total(time.lead, time), time.lead_weight_s[inverse]),
        "first": (total(time.first), none),
        "last": (total(time.last), none),
        "send": (time.send_s, none),
    }
    ticks = {}
    for name, (amount_s, deferred_s) in columns.items():
        row_s = amount_s[inverse]
        ticks[name] = ticks_of(weights.fill_s(row_s, deferred_s))
        ticks[f"pace_{name}"] = ticks_of(weights.pace_s(row_s, deferred_s))
    for name in ("sync_layer", "sync_lead", "sync_first", "sync_last"):
        ticks[name] = ticks_of(_total(getattr(time, name), time))[inverse]
    return ticks


def _total(parts: Parts, costs: Columns) -> Floats:
    """Return the sum of the parts, of which there may be none, per row."""
    return total(parts) + np.zeros(len(costs))


def _memory_chunks(memory: MemoryCosts, inverse: Ints) -> dict[str, Ints]:
    """Return the columns of chunks."""
    amounts = {
        "state": total(memory.layer),
        "activations": memory.activations,
        "kept": memory.activations - memory.freed,
        "outputs": memory.outputs,
        "part_segments": memory.part_segments,
        "lead_state": _total(memory.lead, memory),
        "lead_activations": memory.lead_activations,
        "beside_lead": _total(memory.beside_lead, memory),
        "first_state": total(memory.first),
        "last_state": total(memory.last),
        "last_activations": memory.last_activations,
        "fixed": total(memory.fixed),
        "host_layer": memory.host_layer,
        "host_lead": memory.host_lead,
        "host_first": memory.host_first,
        "host_last": memory.host_last,
    }
    chunks = {name: chunks_of(amount)[inverse] for name, amount in amounts.items()}
    chunks["freed"] = chunks["activations"] - chunks.pop("kept")
    return chunks


def capacity_chunks(usable_gib: float) -> int:
    """Return the usable memory of a GPU in chunks, rounded down."""
    return int(usable_gib * GIB / CHUNK_BYTES)


def seconds(ticks: float) -> float:
    """Return ticks as seconds."""
    return ticks * TICK_S


def ticks_up(amount_s: float) -> int:
    """Return seconds as ticks, rounded up, for times that must keep a limit."""
    return math.ceil(amount_s / TICK_S)


def ticks_down(amount_s: float) -> float:
    """Return seconds as ticks, rounded down, for lower bounds.

    A hundredth of a tick is added, since a whole tick in float seconds may be short.
    """
    return float(math.floor(amount_s / TICK_S + 0.01))


def rounding_error_s(layers: int, stages: int, chunks: int, leading: int = 0) -> float:
    """Return the most seconds between a step time in ticks and the one in floats.

    Every layer, recomputed layer, leading part, end and send is at most half a tick off
    in filling the pipeline, in the pace, and in the end of the step.
    """
    terms = 2 * layers + leading + 2 + 2 * stages * chunks
    return 0.5 * TICK_S * 3 * terms


def ticks_of(amount_s: Floats) -> Ints:
    """Return seconds as ticks, rounded to the nearest."""
    ticks = np.rint(amount_s / TICK_S)
    return np.minimum(ticks, MOST_TICKS).astype(np.int64)


def chunks_of(amount: Floats) -> Ints:
    """Return bytes as chunks, rounded up."""
    chunks = np.ceil(amount / CHUNK_BYTES)
    return np.minimum(chunks, MOST_CHUNKS).astype(np.int64)
