"""Bounds the step of a skeleton in which every chunk recomputes one given number."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf

from meshwright.cpsat.problem import SkeletonChoice, StageAmount, StageChoice

FLOAT_ERROR = 1e-6
"""Part of a layer that a sum of fractions may be off, generously."""


def least_ticks(choice: SkeletonChoice, layers: int, number: int) -> float:
    """Return ticks that no split goes below if chunks recompute `number` of layers.

    It is infinite where the stages cannot hold all `layers`. A stage with n layers
    recomputes min(v k, n) of them, so that memory and time grow with n alone.
    """
    stages, first = choice.stages, number * choice.same_in_chunks
    most = [_most_layers(stage, first) for stage in stages]
    # A stage holds what all others together cannot.
    least = [
        max(stage.fewest_layers, layers - sum(most) + own)
        for stage, own in zip(stages, most, strict=True)
    ]
    pairs = list(zip(least, most, strict=True))
    if sum(least) > layers or any(few > many for few, many in pairs):
        return inf
    again = _least_recomputed(pairs, layers, first)
    fill = _least([stage.fill for stage in stages], layers, again)
    pace = ceil(_least([stage.pace for stage in stages], layers, again) / len(stages))
    filled = list(zip(stages, least, strict=True))
    slowest = max(stage.pace.of(n, min(first, n)) for stage, n in filled)
    last = max(stage.sync.of(n, 0) for stage, n in filled)
    return fill + max(pace, slowest) + last


def _least_recomputed(pairs: Sequence[tuple[int, int]], layers: int, first: int) -> int:
    """Return the fewest layers that stages recompute, each the `first` of its own.

    `pairs` are the fewest and the most layers of each stage. min(v k, n) is concave in
    n, and so no less than its chord: the stages with the flattest chords are filled.
    """
    again = float(sum(min(first, few) for few, _ in pairs))
    left = layers - sum(few for few, _ in pairs)
    slopes = sorted(
        ((min(first, many) - min(first, few)) / (many - few), many - few)
        for few, many in pairs
        if many > few
    )
    for slope, room in slopes:
        again += slope * min(room, left)
        left -= min(room, left)
    return ceil(again - FLOAT_ERROR)


def _least(amounts: Sequence[StageAmount], layers: int, recomputed: int) -> int:
    """Return the least sum over stages with so many layers in all."""
    fixed = sum(own.fixed for own in amounts)
    per_layer = min(own.per_layer for own in amounts)
    return (
        fixed
        + layers * per_layer
        + recomputed * min(own.per_recomputed for own in amounts)
    )


def _most_layers(stage: StageChoice, first: int) -> int:
    """Return the most layers that fit on a stage; less than its fewest if none do.

    The `first` of them are recomputed.
    """
    layers = stage.most_layers
    while layers >= stage.fewest_layers:
        if stage.memory.of(layers, min(first, layers)) <= stage.capacity:
            break
        layers -= 1
    return layers
