"""Sharding: what ZeRO shards of the state of parameters, and over which group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.plans.columns import Bools, Ints
from meshwright.topology.groups import DP_SHARD


@dataclass(frozen=True)
class Sharding:
    """How ZeRO shards the state of some parameters, one row per skeleton.

    Stage 1 shards the optimizer, 2 gradients too, 3 weights too (Rajbhandari et al.
    2019, section 5 and figure 1).
    """

    zero: Ints
    members: Ints
    """Size of the group that shards."""
    group: int = DP_SHARD
    """Column of that group in `PathCosts`."""

    @property
    def shards_optimizer(self) -> Bools:
        """Return whether the optimizer is sharded."""
        return self.zero >= 1

    @property
    def shards_gradients(self) -> Bools:
        """Return whether gradients are sharded too: each micro-batch reduces them."""
        return self.zero >= 2

    @property
    def shards_weights(self) -> Bools:
        """Return whether weights are sharded too: each use gathers them."""
        return self.zero >= 3

    @property
    def optimizer(self) -> Ints:
        """Return over how many GPUs the optimizer is sharded."""
        return np.where(self.shards_optimizer, self.members, 1)

    @property
    def gradients(self) -> Ints:
        """Return over how many GPUs gradients are sharded."""
        return np.where(self.shards_gradients, self.members, 1)

    @property
    def weights(self) -> Ints:
        """Return over how many GPUs weights are sharded."""
        return np.where(self.shards_weights, self.members, 1)
