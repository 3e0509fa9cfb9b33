"""Seconds of the host in loops over the texts of a packed sequence."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.cost.roofline import Work
from meshwright.frameworks.base.framework import Operations
from meshwright.frameworks.base.registry import (
    context_exchange_of,
    framework_of,
    fused_of,
)
from meshwright.plans.columns import Floats, Ints

LAYER_OPERATIONS = 25
"""Operations of a layer's forward in plain PyTorch, which the host starts in
`Efficiency.dispatch_s`."""


class LoopSeconds(NamedTuple):
    """Seconds of the host in the loops of a layer and micro-batch."""

    positions_s: Floats
    positions_backward_s: Floats
    exchange_s: Floats
    exchange_backward_s: Floats

    @property
    def forward_s(self) -> Floats:
        """Return the seconds of a forward."""
        return self.positions_s + self.exchange_s

    @property
    def backward_s(self) -> Floats:
        """Return the seconds of a backward."""
        return self.positions_backward_s + self.exchange_backward_s


def text_loops(share: Work) -> LoopSeconds:
    """Return the seconds of the loops over packed texts.

    Every text of a micro-batch takes as many operations as the framework's file counts,
    and an operation the time of any other: plain ones of PyTorch, which no module of
    the framework wraps.
    """
    training, model = share.spec.training, share.model
    none = np.zeros(len(share.shards))
    loops = framework_of(share.spec).text_loops
    if loops is None or not training.text_loops or model.mixer != "attention":
        return LoopSeconds(none, none, none, none)
    operation_s = share.gpu.efficiency.dispatch_s / LAYER_OPERATIONS
    texts = np.asarray(share.shards.micro_batch * training.texts)
    text_s = texts * operation_s
    is_split = share.shards.cp > 1
    turned = loops.positions if model.mla is None else loops.latent_positions
    if model.indexer is not None:
        # Its queries and its key have rotary positions, too.
        turned = Operations(
            turned.forward + loops.positions.forward,
            turned.backward + loops.positions.backward,
        )
    turns = not (model.learned_positions or model.alibi)
    turns = turns and "rope" not in fused_of(share.spec)
    exchanges = context_exchange_of(share.spec) == "ulysses"
    positions_s = text_s * turns
    ranks: Ints = np.where(is_split & exchanges, share.shards.cp, 0)
    exchange_s = text_s * ranks
    return LoopSeconds(
        positions_s * (turned.forward + loops.split_positions * is_split),
        positions_s * turned.backward,
        exchange_s * loops.exchange.forward,
        exchange_s * loops.exchange.backward,
    )
