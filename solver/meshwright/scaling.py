"""Seconds and bytes to whole numbers: the only rounding in Meshwright.

Bounds and CP-SAT see nothing but these numbers, so that they agree exactly. Times are
rounded to the nearest tick, memory needs up and capacity down: what fits here fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from meshwright.cost.arrays import Floats, Ints, Parts, added, total
from meshwright.cost.price import Prices
from meshwright.cost.schedule import in_flight
from meshwright.skeleton import Skeletons
from meshwright.spec.units import GIB

TICK_S = 1e-9
"""Seconds per tick: a nanosecond."""

CHUNK_BYTES = 1024
"""Bytes per chunk: a kibibyte."""

MOST_TICKS = 2.0**50
"""Ticks are cut off here, above what any step may take: see `cpsat.problem`."""

MOST_CHUNKS = 2.0**36
"""Chunks are cut off here, 64 TiB: above what any GPU has."""


@dataclass(frozen=True)
class Scaled:
    """Costs of skeletons in ticks and chunks, whole numbers, a row each."""

    rows: Skeletons
    layer: Ints
    recompute: Ints
    first: Ints
    last: Ints
    send: Ints
    sync_layer: Ints
    sync_first: Ints
    sync_last: Ints
    state: Ints
    activations: Ints
    freed: Ints
    first_state: Ints
    last_state: Ints
    last_activations: Ints
    fixed: Ints

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def take(self, index: Ints) -> Scaled:
        """Return the rows of `index`."""
        taken = {f.name: getattr(self, f.name) for f in fields(self)}
        return Scaled(
            rows=taken.pop("rows").take(index),
            **{name: column[index] for name, column in taken.items()},
        )

    def held(self, stages: int) -> Ints:
        """Return the micro-batches in flight, (rows, stages)."""
        rows = self.rows
        held = in_flight(rows.schedule, rows.microbatches, stages)
        return held.astype(np.int64)

    def stage_extra(self, stages: int) -> Ints:
        """Return the ticks of a stage beside its layers, (rows, stages)."""
        extra = np.zeros((len(self), stages), dtype=np.int64)
        extra[:, 0] += self.first
        extra[:, -1] += self.last
        extra[:, :-1] += self.send[:, None]
        extra[:, 1:] += self.send[:, None]
        return extra

    def stage_sync(self, stages: int) -> Ints:
        """Return the ticks at the end of a step beside those of layers."""
        sync = np.zeros((len(self), stages), dtype=np.int64)
        sync[:, 0] += self.sync_first
        sync[:, -1] += self.sync_last
        return sync

    def stage_fixed(self, stages: int) -> Ints:
        """Return the chunks that a stage holds beside its layers, (rows, stages)."""
        fixed = np.repeat(self.fixed[:, None], stages, axis=1)
        fixed[:, 0] += self.first_state
        fixed[:, -1] += self.last_state
        fixed[:, -1] += self.held(stages)[:, -1] * self.last_activations
        return fixed


def scale(prices: Prices) -> Scaled:
    """Return the costs in whole ticks and chunks."""
    time, memory = prices.time, prices.memory
    activations = _chunks(memory.activations)
    kept = _chunks(memory.activations - memory.freed)
    return Scaled(
        rows=prices.rows,
        layer=_ticks(added([time.forward, time.backward])),
        recompute=_ticks({"": time.recompute_s}),
        first=_ticks(time.first),
        last=_ticks(time.last),
        send=_ticks({"": time.send_s}),
        sync_layer=_ticks(time.sync_layer),
        sync_first=_ticks(time.sync_first),
        sync_last=_ticks(time.sync_last),
        state=_chunks(total(memory.layer)),
        activations=activations,
        freed=activations - kept,
        first_state=_chunks(total(memory.first)),
        last_state=_chunks(total(memory.last)),
        last_activations=_chunks(memory.last_activations),
        fixed=_chunks(total(memory.fixed)),
    )


def capacity_chunks(usable_gib: float) -> int:
    """Return the usable memory of a GPU in chunks, rounded down."""
    return int(usable_gib * GIB / CHUNK_BYTES)


def seconds(ticks: float) -> float:
    """Return ticks as seconds."""
    return ticks * TICK_S


def ticks_up(amount_s: float) -> int:
    """Return seconds as ticks, rounded up: for what may not pass a limit."""
    return math.ceil(amount_s / TICK_S)


def rounding_error_s(layers: int, stages: int, microbatches: int) -> float:
    """Return how far a step time in ticks may lie from the one in floats, seconds.

    Every layer, recomputed layer and stage extra is half a tick off at most, in the
    sum over stages, in the slowest stage for every other micro-batch, and once at the
    end of the step.
    """
    terms = 2 * layers + 4 * stages
    return 0.5 * TICK_S * terms * (microbatches + 1)


def _ticks(parts: Parts) -> Ints:
    ticks = np.rint(total(parts) / TICK_S)
    return np.minimum(ticks, MOST_TICKS).astype(np.int64)


def _chunks(amount: Floats) -> Ints:
    chunks = np.ceil(amount / CHUNK_BYTES)
    return np.minimum(chunks, MOST_CHUNKS).astype(np.int64)
