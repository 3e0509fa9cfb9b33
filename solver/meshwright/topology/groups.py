"""The groups that talk on a mesh, and what they pay on the links.

A mesh gives each of the axes tp, cp, dp_shard, dp_replicate and pp its factor at each
level, innermost first. Two axes have more to say than their own group:

- the state is sharded over cp x dp_shard (torchtitan's `dp_shard_cp`): the column of
  dp_shard prices that group;
- the ep GPUs that share out the experts are folded out of tp x cp x data parallelism,
  from the innermost level on (Megatron Core's parallel folding, Liu et al. 2025, MoE
  Parallel Folding, section 3). What is left of those axes holds copies of the same
  experts: they are sharded over the part of shards, replicated over the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meshwright.topology.paths import Fabric, Meshes, Paths, free_paths
from meshwright.topology.routed import RoutedFabric

TP, CP, DP_SHARD, DP_REPLICATE, PP, EP, EXPERT_SHARD, EXPERT_REPLICATE = range(8)
"""Columns of `Paths`. The first five are the axes of a mesh too."""

GROUPS = (
    "tp", "cp", "dp_shard", "dp_replicate", "pp", "ep", "expert_shard",
    "expert_replicate",
)  # fmt: skip


def expert_mesh(meshes: Meshes, ep: NDArray[np.int64]) -> Meshes:
    """Return the mesh of experts: ep, shards, replicas and pp, (meshes, 4, levels).

    ep must divide tp x cp x dp_shard, or tp x cp x dp_replicate without shards.
    """
    tp, cp, shard, replicate, pp = np.moveaxis(meshes, 1, 0)
    has_shards = shard.prod(axis=1) > 1
    is_alone = replicate.prod(axis=1) == 1
    folds_shards = (has_shards | is_alone)[:, None]
    room = tp * cp * np.where(folds_shards, shard, replicate)
    own, left = np.ones_like(room), ep.copy()
    for level in range(room.shape[1]):
        own[:, level] = np.gcd(left, room[:, level])
        left = left // own[:, level]
    rest = room // own
    sharded = np.where(folds_shards, rest, 1)
    replicated = np.where(folds_shards, replicate, rest)
    return np.stack([own, sharded, replicated, pp], axis=1)


def price_groups(
    fabric: Fabric, meshes: Meshes, ep: NDArray[np.int64] | None = None
) -> Paths:
    """Return what every group pays; without `ep` those of experts pay nothing."""
    shape = (len(meshes), len(GROUPS))
    s_per_byte, latency_s = np.zeros(shape), np.zeros(shape)
    for columns, view in views(meshes, ep):
        loads = _loads(fabric, columns, view)
        s_per_byte[:, columns] = loads.max(axis=2)
        latency_s[:, columns] = _latency_s(fabric, columns, view)
    return Paths(s_per_byte, latency_s)


def seen_by_kinds(
    fabrics: Sequence[Fabric],
    meshes: Meshes,
    paths: Paths,
    ep: NDArray[np.int64] | None,
) -> tuple[Paths, ...]:
    """Return what groups pay on meshes as each kind of GPU sees them.

    Stages of unlike kinds send to each other: that costs what `paths` has, for all.
    """
    seen = tuple(price_groups(fabric, meshes, ep) for fabric in fabrics)
    for own in seen:
        own.s_per_byte[:, PP] = paths.s_per_byte[:, PP]
        own.latency_s[:, PP] = paths.latency_s[:, PP]
    return seen


def floor_of_groups(
    fabric: RoutedFabric, meshes: Meshes, ep: NDArray[np.int64] | None = None
) -> Paths:
    """Return what groups pay at least, in whichever order of GPUs."""
    result = free_paths(len(meshes), len(GROUPS))
    for columns, view in views(meshes, ep):
        for axis, column in enumerate(columns):
            floor = fabric.floor(view, column == EP)
            result.s_per_byte[:, column] = floor.s_per_byte[:, axis]
            result.latency_s[:, column] = floor.latency_s[:, axis]
    return result


def group_loads(
    fabric: Fabric, mesh: NDArray[np.int64], ep: int
) -> NDArray[np.float64]:
    """Return seconds per byte on every link for one mesh, (groups, links)."""
    result = np.zeros((len(GROUPS), len(fabric.link_names)))
    for columns, view in views(mesh[None], np.array([ep])):
        result[columns] = _loads(fabric, columns, view)[0]
    return result


def views(
    meshes: Meshes, ep: NDArray[np.int64] | None
) -> list[tuple[list[int], Meshes]]:
    """Return columns of `Paths`, and meshes whose first axes are their groups.

    Axes that stand next to each other may be taken as one: a group of both.
    """
    tp, cp, shard, replicate, pp = np.moveaxis(meshes, 1, 0)
    state = np.stack([tp, cp * shard, replicate, pp], axis=1)
    views = [([TP, DP_SHARD, DP_REPLICATE, PP], state)]
    if (cp > 1).any():
        views.append(([TP, CP], np.stack([tp, cp, shard * replicate, pp], axis=1)))
    if ep is not None:
        experts = expert_mesh(meshes, ep)
        views.append(([EP, EXPERT_SHARD, EXPERT_REPLICATE], experts))
    return views


def _loads(fabric: Fabric, columns: list[int], view: Meshes) -> NDArray[np.float64]:
    """Return seconds per byte on the links, (meshes, columns, links)."""
    loads = fabric.loads(view)[:, : len(columns)]
    if columns[0] == EP:
        loads[:, 0] = fabric.exchange_loads(view)[:, 0]
    return loads


def _latency_s(fabric: Fabric, columns: list[int], view: Meshes) -> NDArray[np.float64]:
    """Return the longest hops, (meshes, columns)."""
    latency_s = fabric.latency_s(view)[:, : len(columns)]
    if columns[0] == EP:
        latency_s[:, 0] = fabric.exchange_latency_s(view)[:, 0]
    return latency_s
