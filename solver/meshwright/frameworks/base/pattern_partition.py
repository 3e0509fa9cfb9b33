"""Splits of models with several kinds of layers: stages hold whole patterns.

Prices of layers are means over the pattern that repeats, which are exact for a stage
that holds it a whole number of times. Layers before the pattern are the first stage's.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.frameworks.base.partition import Partition, larger_first
from meshwright.spec.model import Model


def has_pattern(model: Model) -> bool:
    """Return whether layers of several kinds alternate, beyond those that lead."""
    return model.order.period > 1


def is_whole(model: Model, layers: Sequence[int]) -> bool:
    """Return whether every stage holds whole patterns, and the first what leads."""
    order = model.order
    counts = [layers[0] - len(order.leading), *layers[1:]]
    return min(counts) > 0 and all(count % order.period == 0 for count in counts)


def whole_patterns(model: Model, stages: int) -> list[int]:
    """Return stages of as many patterns as each other; from the second on of one more.

    The first stage has leading layers, the embedding and most micro-batches in flight.
    """
    order = model.order
    if order.repeats < stages:
        # No stages hold whole patterns: the rule `whole_patterns` says so.
        return larger_first(model, stages)
    each, over = divmod(order.repeats, stages)
    counts = [(each + (0 < stage <= over)) * order.period for stage in range(stages)]
    counts[0] += len(order.leading)
    return counts


def pattern_partition(pinned: Sequence[int] | None, own: Partition | None) -> Partition:
    """Return how layers of several kinds are split: as pinned, or else evenly.

    A framework's own split may cut patterns: a rule then says so.
    """

    def layers(model: Model, stages: int) -> Sequence[int]:
        if own is not None:
            return own.layers(model, stages)
        is_pinned = pinned is not None and len(pinned) == stages
        if is_pinned and pinned is not None and is_whole(model, pinned):
            return pinned
        return whole_patterns(model, stages)

    sentence = "stages hold whole patterns of layers, as evenly as possible"
    return Partition(layers, own.sentence if own else sentence, "Meshwright's prices")
