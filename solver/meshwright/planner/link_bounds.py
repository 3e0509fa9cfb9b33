"""Bounds on the steps of splits that keep a limit on links.

A stage with n layers, r of them recomputed, keeps a link busy for c + n s + r z ticks.
The step must be so much longer that this is no more than the allowed share. The pace of
the stage asks for a longer step in the same form: it adds to filling the pipeline and
to the end of the step. In a step of T ticks stage e thus has at most n_e(T) layers:

- The stages must hold all layers: the sum of n_e(T) is no less than L. It only grows
  with T, so that the least T with room is a lower bound on steps.
- No split within n_e(T) takes longer than G(T): all layers, as many recomputed as links
  allow, with the slowest stage and the last to finish as full as they may be. A split
  that keeps the limit takes T <= G(T). G only grows with T. Where all splits take at
  most T, those that keep the limit take at most G(T), then at most G(G(T)), and so on
  down. Where that leaves the stages no room, no split keeps the limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.planner.stages import Stages
from meshwright.plans.columns import Bools, Columns, Floats, Ints

NOISE = 1e-9
"""Relative error of a link's seconds from float arithmetic, generously."""

FLOAT_ERROR = 1e-6
"""Part of a layer that a quotient of floats may be off, generously."""

MOST_ROUNDS = 40
"""Rounds of a search for the most ticks. Few are needed, and each gives a bound."""

HALVINGS = 30
"""Halvings of a search for the least ticks: to a tick of a second."""

SLIGHT = 1e-3
"""Share of a bound below which another round is not worth its time."""


@dataclass(frozen=True)
class LinkUse(Columns):
    """Ticks of a step for which stages keep links busy, linear in their layers."""

    fixed: Floats
    """(rows, stages, links)."""
    per_layer: Floats
    """(rows, 1, links), as are those of a recomputed layer."""
    per_recomputed: Floats


@dataclass(frozen=True)
class _Stages(Columns):
    """What the bounds need of stages: (rows, stages), or (rows,) where it says so."""

    layer: Floats
    """Ticks that a layer adds to filling the pipeline at most, (rows,)."""
    recompute: Floats
    """The same of a recomputed layer, (rows,)."""
    extra: Floats
    """Ticks beside layers, of all stages, (rows,)."""
    pace_layer: Ints
    pace_recompute: Ints
    pace_extra: Ints
    sync_layer: Ints
    sync: Ints
    least: Ints
    most: Floats
    """Most layers that a stage may hold whatever links allow."""
    needed: LinkUse
    """Ticks of a step that links and the pace of each stage need."""


def least_ticks(
    stages: Stages, use: LinkUse, share: float, known: Floats, below: Floats
) -> Floats:
    """Return lower bounds on steps that keep the limit; infinite where none does.

    `known` are lower bounds on the steps of all splits. Steps above `below` are of no
    interest.
    """
    held, layers = _columns(stages, use, share), stages.layers
    most = _most_ticks(held, layers, below)
    return _least_ticks(held, layers, known, most)


def _most_ticks(held: _Stages, layers: int, limit: Floats) -> Floats:
    """Return upper bounds on steps within a limit; -infinity where there is none."""
    most, left = limit.copy(), np.arange(len(limit))
    for _ in range(MOST_ROUNDS):
        room, caps = _within(held, most[left])
        has_room = _has_room(held, caps, layers)
        found, before = _slowest(held, room, caps, layers), most[left]
        most[left] = np.where(has_room, np.minimum(found, before), -np.inf)
        lower = has_room & (found < (1 - SLIGHT) * before)
        if not lower.any():
            break
        held, left = held.take(np.flatnonzero(lower)), left[lower]
    return most


def _least_ticks(held: _Stages, layers: int, known: Floats, most: Floats) -> Floats:
    """Return lower bounds on steps between two bounds; infinite where none is left."""
    result = np.where(most >= known, known, np.inf)
    short = ~_has_room(held, _within(held, known)[1], layers)
    index = np.flatnonzero(short & (most >= known))
    if not len(index):
        return result
    held, low, high = held.take(index), known[index], most[index]
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        has_room = _has_room(held, _within(held, middle)[1], layers)
        low = np.where(has_room, low, middle)
        high = np.where(has_room, middle, high)
    result[index] = low
    return result


def _columns(stages: Stages, use: LinkUse, share: float) -> _Stages:
    # A stage leaves the fewest layers to each of the others.
    others = stages.least.sum(axis=1, keepdims=True) - stages.least
    amounts = use.fixed, use.per_layer, use.per_recomputed
    needed = [
        np.append(amount / share, of_pace, axis=2)
        for amount, of_pace in zip(amounts, _pace(stages), strict=True)
    ]
    return _Stages(
        layer=stages.layer.max(axis=1).astype(np.float64),
        recompute=stages.recompute.max(axis=1).astype(np.float64),
        extra=stages.extra.sum(axis=1).astype(np.float64),
        pace_layer=stages.pace_layer,
        pace_recompute=stages.pace_recompute,
        pace_extra=stages.pace_extra,
        sync_layer=stages.sync_layer,
        sync=stages.sync,
        least=stages.least,
        most=np.minimum(stages.full_cap, stages.layers - others),
        needed=LinkUse(*needed),
    )


def _pace(stages: Stages) -> tuple[Floats, Floats, Floats]:
    """Return the ticks of a step that the pace of each stage needs, as `LinkUse` does.

    A step also fills the pipeline with all layers, and ends.
    """
    fill = stages.layers * stages.layer.min(axis=1) + stages.extra.sum(axis=1)
    last = (stages.least * stages.sync_layer + stages.sync).max(axis=1)
    again = (stages.pace_recompute + stages.recompute).min(axis=1)
    return (
        ((fill + last)[:, None] + stages.pace_extra)[..., None].astype(np.float64),
        stages.pace_layer.min(axis=1)[:, None, None].astype(np.float64),
        again[:, None, None].astype(np.float64),
    )


def _within(held: _Stages, ticks: Floats) -> tuple[Floats, Floats]:
    """Return the ticks left for layers, and the most layers of each stage.

    Steps take at most so many ticks, (rows,). The first is (rows, stages, links and
    pace), the second (rows, stages): below 0 where not even no layer is possible.
    """
    room = ticks[:, None, None] * (1 + NOISE) - held.needed.fixed
    each, least = held.needed.per_layer, np.where(room >= 0, np.inf, -1.0)
    layers = np.divide(room, each, out=least, where=each > 0)
    return room, np.minimum(np.floor(layers.min(axis=2) + FLOAT_ERROR), held.most)


def _has_room(held: _Stages, caps: Floats, layers: int) -> Bools:
    """Return where stages with so many layers at most can hold all layers."""
    return np.asarray((caps >= held.least).all(axis=1) & (caps.sum(axis=1) >= layers))


def _slowest(held: _Stages, room: Floats, caps: Floats, layers: int) -> Floats:
    """Return an upper bound on the ticks of splits within a room on links."""
    pace = caps * held.pace_layer
    again = np.full(len(caps), float(layers))
    if _recomputes(held).any():
        pace = _slowest_pace(held, room, caps)
        again = _most_recomputed(held, room, layers)
    slowest = (pace + held.pace_extra).max(axis=1, initial=0.0)
    last = (caps * held.sync_layer + held.sync).max(axis=1, initial=0.0)
    fill = layers * held.layer + again * held.recompute + held.extra
    return np.asarray(fill + slowest + last + 1.0)


def _most_recomputed(held: _Stages, room: Floats, layers: int) -> Floats:
    """Return the most recomputed layers of all stages, in fractions, (rows,).

    On all stages together a link has room for all layers, and then for so many.
    """
    each, again = (amount[:, 0] for amount in (held.needed.per_layer, _again(held)))
    spare = room.sum(axis=1) - layers * each
    most = np.full(spare.shape, float(layers))
    np.divide(spare, again, out=most, where=again > 0)
    result: Floats = np.clip(most.min(axis=1) + FLOAT_ERROR, 0.0, layers)
    return result


def _slowest_pace(held: _Stages, room: Floats, caps: Floats) -> Floats:
    """Return upper bounds on the pace of stages beside their ends, (rows, stages).

    With n layers, r of them recomputed, r <= n <= cap and n s + r z <= room for every
    link. The pace is linear, and its maximum at one of two corners: all layers are
    recomputed, or the stage is as full as it may be.
    """
    each, again, layers = held.needed.per_layer, _again(held), caps[..., None]
    both = each + again
    whole = np.broadcast_to(layers, room.shape).copy()
    np.divide(room, both, out=whole, where=both > 0)
    whole = np.clip(whole, 0.0, layers)
    part = np.broadcast_to(layers, room.shape).copy()
    np.divide(room - layers * each, again, out=part, where=again > 0)
    part = np.clip(part, 0.0, layers)
    plain, more = held.pace_layer[..., None], held.pace_recompute[..., None]
    corners = np.maximum(whole * (plain + more), layers * plain + part * more)
    return np.asarray(corners.min(axis=2) * (1 + NOISE))


def _again(held: _Stages) -> Floats:
    """Return the ticks of links for a recomputed layer, where it is not part of each.

    Elsewhere recomputation takes no time of its own, whatever it sends.
    """
    return np.where(_recomputes(held)[:, None, None], held.needed.per_recomputed, 0.0)


def _recomputes(held: _Stages) -> Bools:
    """Return which skeletons take time for the layers that are recomputed, (rows,)."""
    return np.asarray((held.recompute > 0) | (held.pace_recompute > 0).any(axis=1))
