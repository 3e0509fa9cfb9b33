"""Bounds the step of a skeleton in which every chunk recomputes one given number."""

from __future__ import annotations

from math import inf

from meshwright.cpsat.problem import SkeletonChoice, StageChoice


def least_ticks(choice: SkeletonChoice, layers: int, number: int) -> float:
    """Return ticks that no split goes below if chunks recompute `number` of layers.

    It is infinite where the stages cannot hold all `layers`. A stage with n layers
    recomputes min(v k, n) of them, so that memory and time grow with n alone.
    """
    stages, first = choice.stages, number * choice.same_in_chunks
    most = [_most_layers(stage, first) for stage in stages]
    has_room = all(n >= own.fewest_layers for n, own in zip(most, stages, strict=True))
    if not has_room or sum(most) < layers:
        return inf
    again = [min(first, stage.fewest_layers) for stage in stages]
    fills, paces = [own.fill for own in stages], [own.pace for own in stages]
    fill, pace = (
        sum(own.of(0, r) for own, r in zip(amounts, again, strict=True))
        + layers * min(own.per_layer for own in amounts)
        for amounts in (fills, paces)
    )
    slowest = max(
        own.pace.of(own.fewest_layers, r) for own, r in zip(stages, again, strict=True)
    )
    last = max(own.sync.of(own.fewest_layers, 0) for own in stages)
    return fill + max(-(-pace // len(stages)), slowest) + last


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
