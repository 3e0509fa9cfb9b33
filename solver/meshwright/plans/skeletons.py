"""Skeletons: plans without their per-stage choices, as numpy columns.

With a `Split` of layers over stages they are whole plans: `to_plan` and `to_row`
change one form into the other.

The parts of a layer that selective recomputation repeats are bits. A row names modules
(`spec.plan_fields`), or it names none and repeats what its framework repeats by itself.
Each tensor and each kernel of a layer knows the bits of which any one frees or repeats
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from meshwright.plans.columns import Bools, Columns, Floats, Index, Ints
from meshwright.plans.plan import Plan, Stage
from meshwright.spec.plan_fields import (
    AXES,
    BIT,
    FIELDS,
    MODULES,
    RECOMPUTE_MODES,
    REPEATS_LAYERS,
    SELECTIVE,
    SETS,
    FieldColumns,
)
from meshwright.topology.fabric import Fabric, PathCosts, Place, free_paths
from meshwright.topology.groups import DP_SHARD, EXPERT_SHARD, price_groups


class Sharding(NamedTuple):
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
        """Return the number of GPUs that shard the optimizer."""
        return np.where(self.shards_optimizer, self.members, 1)

    @property
    def gradients(self) -> Ints:
        """Return the number of GPUs that shard gradients."""
        return np.where(self.shards_gradients, self.members, 1)

    @property
    def weights(self) -> Ints:
        """Return the number of GPUs that shard weights."""
        return np.where(self.shards_weights, self.members, 1)


@dataclass(frozen=True)
class Shards(Columns):
    """The columns on which one GPU's share of a layer depends."""

    tp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    micro_batch: Ints
    sequence_parallel: Bools

    @property
    def expert_gpus(self) -> Ints:
        """Return the number of GPUs that share one copy of the experts."""
        result: Ints = self.ep * self.etp
        return result

    def tokens(self, seq_len: int) -> Floats:
        """Return the tokens of a micro-batch that a tensor-parallel group sees."""
        result: Floats = self.micro_batch * seq_len / self.cp
        return result

    @property
    def sequence_shards(self) -> Ints:
        """Return the number of GPUs that split those tokens between matmuls."""
        result: Ints = 1 + (self.tp - 1) * self.sequence_parallel
        return result


@dataclass(frozen=True)
class Split:
    """Layers and recomputed layers of every stage of one skeleton, (stages,)."""

    layers: Ints
    recomputed: Ints


def dealt(leading: Ints, most: Ints, stage: Ints) -> Ints:
    """Return how many leading parts a stage holds, of no more than `most` each."""
    return np.minimum(np.maximum(leading - stage * most, 0), most)


_REPEATS_LAYERS = np.array([mode in REPEATS_LAYERS for mode in RECOMPUTE_MODES])
"""Whether each code of the column `recompute` repeats layers whole."""


def plain_columns(count: int) -> dict[str, Any]:
    """Return the columns of rows with every field at its plainest, to read alone.

    Fields without a plainest value, such as the micro-batch, are 0. All entries of a
    column are one in memory.
    """
    plain = {
        field.name: 0 if field.plain is None else field.encoded(field.plain)
        for field in FIELDS
    }
    return {
        field.name: np.broadcast_to(np.array(plain[field.name], field.dtype), count)
        for field in FIELDS
    }


@dataclass(frozen=True)
class Skeletons(FieldColumns, Columns):
    """Skeletons, one per row, with a column for each field of a plan."""

    paths: PathCosts
    """Seconds that each group pays on the links of the mesh, or in the best case."""
    mesh: Ints
    """Number of the mesh in the lattice's table, or -1 for unplaced skeletons."""
    kind_paths: tuple[PathCosts, ...] = ()
    """The same for each kind of GPU that stages lie on."""

    @property
    def is_placed(self) -> bool:
        """Return whether `paths` has the costs of groups."""
        return bool(self.paths.s_per_byte.shape[1])

    @property
    def dp(self) -> Ints:
        """Return the data-parallel degree, replicate x shard."""
        return self.dp_shard * self.dp_replicate

    @property
    def repeats_layers(self) -> Bools:
        """Return whether recomputed layers are repeated whole, from their inputs."""
        return np.asarray(_REPEATS_LAYERS[self.recompute])

    @property
    def sharding(self) -> Sharding:
        """Return how ZeRO shards the state of all parameters but those of experts."""
        return Sharding(self.zero, self.cp * self.dp_shard)

    @property
    def expert_gpus(self) -> Ints:
        """Return the number of GPUs that share one copy of the experts."""
        result: Ints = self.ep * self.etp
        return result

    @property
    def expert_key(self) -> Ints:
        """Return ep, negative where tensor parallelism splits each expert."""
        return np.where(self.etp == 1, self.ep, -self.ep)

    @property
    def expert_copies(self) -> Ints:
        """Return the number of GPUs that hold the same experts, or the same parts."""
        result: Ints = self.tp * self.cp * self.dp // self.expert_gpus
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
            self.tp,
            self.cp,
            self.ep,
            self.etp,
            self.micro_batch,
            self.sequence_parallel,
        )

    def first_chunk(self, layers: int) -> Ints:
        """Return the most layers of a first chunk, where stages are even."""
        result: Ints = -(-layers // self.pp) // self.vpp
        return result

    def distinct_in_state(self) -> tuple[Skeletons, Index]:
        """Return rows that differ in state per GPU, and which of them each row is."""
        degrees = (self.tp, self.cp, self.dp_shard, self.dp_replicate, self.ep)
        others = (self.etp, self.pp > 1, self.zero, self.offload)
        return self.distinct_in([*degrees, *others])

    def on_meshes(
        self, paths: PathCosts, mesh: Ints, kind_paths: tuple[PathCosts, ...] = ()
    ) -> Skeletons:
        """Return the same skeletons placed on the given meshes."""
        return replace(self, paths=paths, mesh=mesh, kind_paths=kind_paths)


def to_plan(
    rows: Skeletons, row: int, split: Split, place: Place, gpus: Sequence[str] = ()
) -> Plan:
    """Return the plan of one row with its split and its place.

    `gpus` names the GPU of each stage, where stages differ in it.
    """
    values: dict[str, Any] = {
        field.name: field.decoded(int(getattr(rows, field.name)[row]))
        for field in FIELDS
    }
    counts = zip(split.layers.tolist(), split.recomputed.tolist(), strict=True)
    stages = zip(counts, gpus or [""] * len(split.layers), strict=True)
    return Plan(
        **values,
        stages=tuple(
            Stage(layers=n, recompute_layers=r, gpu=gpu) for (n, r), gpu in stages
        ),
        mesh={axis: tuple(place.mesh[i].tolist()) for i, axis in enumerate(AXES)},
        seats=place.order,
    )


def to_row(fabric: Fabric, plan: Plan) -> tuple[Skeletons, Place]:
    """Return a plan as one row, and the place of its ranks."""
    mesh = np.array([[plan.mesh[axis] for axis in AXES]], dtype=np.int64)
    row = to_unplaced_row(plan)
    paths = price_groups(fabric.placed(plan.seats), mesh, row.expert_key)
    return row.on_meshes(paths, np.array([0])), Place(mesh[0], plan.seats)


def to_unplaced_row(plan: Plan) -> Skeletons:
    """Return the fields of a plan as one row without a mesh."""
    columns: dict[str, Any] = {
        field.name: np.array([field.encoded(getattr(plan, field.name))], field.dtype)
        for field in FIELDS
    }
    return Skeletons(**columns, paths=free_paths(1, 0), mesh=np.array([-1]))


def to_split(plan: Plan) -> Split:
    """Return the layers and recomputed layers of a plan's stages."""
    return Split(
        np.array([stage.layers for stage in plan.stages]),
        np.array([stage.recompute_layers for stage in plan.stages]),
    )


CORE_ATTN = BIT["core_attn"]
LAYERNORM = BIT["layernorm"]
MLA_UP_PROJ = BIT["mla_up_proj"]
MOE_ACT = BIT["moe_act"]
MOE = BIT["moe"]
SHARED_EXPERTS = BIT["shared_experts"]
MLP = BIT["mlp"]

ALL_MODULES = sum(BIT.values())

CHEAP = 1 << len(MODULES)
"""The core of plain attention; with fused attention, the norms before matmuls and the
activation functions (Korthikanti et al. 2022, section 5, and what is left of it)."""

PER_OP = CHEAP << 1
"""All but attention, most collectives and every other matmul: see
`cost.activations`."""

SET_BITS: Ints = np.array(SETS)
"""The bits of each code of the column `recompute_modules`."""


def repeated_bits(rows: Skeletons, unnamed: int) -> Ints:
    """Return the parts that a recomputed layer repeats; 0 unless selectively.

    `unnamed` is what a row repeats that names no modules.
    """
    named = SET_BITS[rows.recompute_modules]
    repeated = np.where(named > 0, named, unnamed)
    return np.asarray(np.where(rows.recompute == SELECTIVE, repeated, 0))
