"""Partitions: frameworks that split layers over pipeline stages by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.plans.columns import Bools
from meshwright.plans.rule import Rule
from meshwright.plans.skeletons import Skeletons
from meshwright.spec.model import Model
from meshwright.spec.spec import Spec

STAGE_LAYERS = "stage_layers"
"""Name of the rules on how a framework splits layers over stages."""


@dataclass(frozen=True)
class Partition:
    """How a framework splits the layers of a model over a number of stages."""

    layers: Callable[[Model, int], Sequence[int]]
    """The layers of each stage, for no more stages than layers."""
    sentence: str
    source: str
    """File and version of the framework in which this was read."""

    @property
    def rule(self) -> Rule:
        """Return the rule that the partition gives every stage what it needs."""
        return Rule(
            STAGE_LAYERS,
            f"{self.sentence}: every stage has one, and the first all that lead",
            self.source,
            self._covers,
            "{spec.model.n_layers} layers, pp {pp}",
        )

    def _covers(self, spec: Spec, rows: Skeletons) -> Bools:
        counts, inverse = np.unique(rows.pp, return_inverse=True)
        covers = [self._covers_stages(spec.model, pp) for pp in counts.tolist()]
        return np.array(covers, dtype=bool)[inverse].reshape(rows.pp.shape)

    def _covers_stages(self, model: Model, stages: int) -> bool:
        """Return whether each stage has a layer; more stages break another rule."""
        if stages > model.n_layers:
            return True
        layers = self.layers(model, stages)
        return min(layers) >= 1 and layers[0] >= model.leading_layers


def larger_first(model: Model, stages: int) -> list[int]:
    """Return stages as even as possible, the first ones with a layer more."""
    each, over = divmod(model.n_layers, stages)
    return [each + (stage < over) for stage in range(stages)]


def larger_last(model: Model, stages: int) -> list[int]:
    """Return stages as even as possible, the last ones with a layer more."""
    return larger_first(model, stages)[::-1]
