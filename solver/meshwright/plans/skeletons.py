"""Skeletons: plans without their per-stage choices, as numpy columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshwright.plans.columns import Bools, Columns, Ints, distinct
from meshwright.plans.sharding import Sharding
from meshwright.plans.shards import Shards
from meshwright.spec.plan_fields import (
    FIELDS,
    OFFLOADS,
    RECOMPUTE_MODES,
    SCHEDULES,
)
from meshwright.topology.fabric import PathCosts
from meshwright.topology.groups import EXPERT_SHARD

NONE, SELECTIVE, FULL = range(len(RECOMPUTE_MODES))
"""Codes of the recompute column."""

ONE_F_ONE_B, GPIPE, ZERO_BUBBLE_H1 = range(len(SCHEDULES))
"""Codes of the schedule column."""

KEEPS_ALL, OPTIMIZER, GRADIENTS, PARAMETERS = range(len(OFFLOADS))
"""Codes of the offload column."""


def plain_columns(count: int) -> dict[str, Any]:
    """Return the columns of rows with every field at its plainest.

    Fields without a plainest value, such as the micro-batch, are 0.
    """
    return {
        field.name: np.full(
            count, 0 if field.plain is None else field.encoded(field.plain), field.dtype
        )
        for field in FIELDS
    }


@dataclass(frozen=True)
class Skeletons(Columns):
    """Skeletons, one per row, with a column for each field of a plan."""

    tp: Ints
    cp: Ints
    dp_shard: Ints
    dp_replicate: Ints
    pp: Ints
    ep: Ints
    vpp: Ints
    micro_batch: Ints
    microbatches: Ints
    zero: Ints
    recompute: Ints
    recompute_modules: Ints
    recompute_segment: Ints
    sequence_parallel: Bools
    schedule: Ints
    offload: Ints
    precision: Ints
    paths: PathCosts
    """What each group pays on the links of the mesh, or in the best case."""
    mesh: Ints
    """Number of the mesh in the lattice's table, or -1 for unplaced skeletons."""
    kind_paths: tuple[PathCosts, ...] = ()
    """The same for each kind of GPU that stages lie on."""

    @property
    def is_placed(self) -> bool:
        """Return whether `paths` says what groups pay."""
        return bool(self.paths.s_per_byte.shape[1])

    @property
    def dp(self) -> Ints:
        """Return the data-parallel degree, replicate x shard."""
        return self.dp_shard * self.dp_replicate

    @property
    def sharding(self) -> Sharding:
        """Return how ZeRO shards the state of all parameters but those of experts."""
        return Sharding(self.zero, self.cp * self.dp_shard)

    @property
    def expert_copies(self) -> Ints:
        """Return the number of GPUs that hold the same experts."""
        result: Ints = self.tp * self.cp * self.dp // self.ep
        return result

    @property
    def expert_sharding(self) -> Sharding:
        """Return how ZeRO shards the state of experts; see `topology.groups`."""
        folds_shards = (self.dp_shard > 1) | (self.dp_replicate == 1)
        within = self.expert_copies // self.dp_replicate
        return Sharding(self.zero, np.where(folds_shards, within, 1), EXPERT_SHARD)

    @property
    def group_degrees(self) -> list[Ints]:
        """Return the members of every group, in the order of `topology.groups`."""
        shards = self.expert_sharding.members
        replicas = self.expert_copies // shards
        dense = [self.tp, self.cp, self.sharding.members, self.dp_replicate, self.pp]
        return [*dense, self.ep, shards, replicas]

    @property
    def shards(self) -> Shards:
        """Return the columns on which one GPU's share of a layer depends."""
        return Shards(
            self.tp, self.cp, self.ep, self.micro_batch, self.sequence_parallel
        )

    def distinct_in_state(self) -> tuple[Skeletons, Ints]:
        """Return rows that differ in state per GPU, and which of them each row is."""
        degrees = (self.tp, self.cp, self.dp_shard, self.dp_replicate, self.ep)
        one_of_each, inverse = distinct(
            [*degrees, self.pp > 1, self.zero, self.offload]
        )
        return self.take(one_of_each), inverse

    def on_meshes(
        self, paths: PathCosts, mesh: Ints, kind_paths: tuple[PathCosts, ...] = ()
    ) -> Skeletons:
        """Return the same skeletons placed on the given meshes."""
        return replace(self, paths=paths, mesh=mesh, kind_paths=kind_paths)
