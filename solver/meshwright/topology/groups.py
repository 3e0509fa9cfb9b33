"""The groups that communicate on a mesh, and the cost of the links to them.

A mesh gives each of the axes tp, cp, dp_shard, dp_replicate and pp its factor at each
level, innermost first. Two kinds of groups span several axes:

- the state is sharded over cp x dp_shard (torchtitan's `dp_shard_cp`): the column of
  dp_shard prices that group;
- the ep GPUs that share out the experts are folded out of tp x cp x data parallelism
  (Liu et al. 2025, MoE Parallel Folding, section 3). They are neighbours in the order
  of ranks, tp first, in Megatron Core (parallel_state.py, `expert_decoder_rank_
  generator`), torchtitan (parallel_dims.py, the sparse mesh) and DeepSpeed
  (auto_ep_folding.py). The remaining factors of those axes hold copies of the same
  experts, sharded over those of dp_shard and replicated over the others.

Where tensor parallelism splits each expert, the GPUs of its group stay together, and
those that share out the experts are folded out of cp x data parallelism alone. Such an
ep is given as a negative number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meshwright.topology.fabric import Fabric, Meshes, PathCosts, free_paths
from meshwright.topology.routed_fabric import RoutedFabric

TP, CP, DP_SHARD, DP_REPLICATE, PP, EP, EXPERT_SHARD, EXPERT_REPLICATE = range(8)
"""Columns of `PathCosts`; the first five are also the axes of a mesh."""

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
    data = np.where(folds_shards, shard, replicate)
    experts, rest, left = np.ones_like(tp), np.ones_like(tp), ep.copy()
    for axis in (tp, cp, data):
        for level in range(axis.shape[1]):
            taken = np.gcd(left, axis[:, level])
            left = left // taken
            experts[:, level] *= taken
            rest[:, level] *= axis[:, level] // taken
    sharded = np.where(folds_shards, rest, 1)
    replicated = np.where(folds_shards, replicate, rest)
    return np.stack([experts, sharded, replicated, pp], axis=1)


def price_groups(
    fabric: Fabric, meshes: Meshes, ep: NDArray[np.int64] | None = None
) -> PathCosts:
    """Return the cost of every group; without `ep` those of experts cost nothing."""
    shape = (len(meshes), len(GROUPS))
    s_per_byte, latency_s = np.zeros(shape), np.zeros(shape)
    for columns, view in group_meshes(meshes, ep):
        loads = _loads(fabric, columns, view)
        s_per_byte[:, columns] = loads.max(axis=2)
        latency_s[:, columns] = _latency_s(fabric, columns, view)
    return PathCosts(s_per_byte, latency_s)


def price_groups_by_gpu_kind(
    fabrics: Sequence[Fabric],
    meshes: Meshes,
    paths: PathCosts,
    ep: NDArray[np.int64] | None,
) -> tuple[PathCosts, ...]:
    """Return the cost of every group on the fabric of each kind of GPU.

    Stages on unlike GPUs send to each other, so all take the PP column of `paths`.
    """
    by_kind = tuple(price_groups(fabric, meshes, ep) for fabric in fabrics)
    for costs in by_kind:
        costs.s_per_byte[:, PP] = paths.s_per_byte[:, PP]
        costs.latency_s[:, PP] = paths.latency_s[:, PP]
    return by_kind


def least_group_prices(
    fabric: RoutedFabric, meshes: Meshes, ep: NDArray[np.int64] | None = None
) -> PathCosts:
    """Return a lower bound on the cost of every group, for any order of GPUs."""
    lowest = free_paths(len(meshes), len(GROUPS))
    for columns, view in group_meshes(meshes, ep):
        for axis, column in enumerate(columns):
            exchange = fabric.exchanging.get(GROUPS[column])
            s_per_byte, latency_s = fabric.least_on(view, axis, exchange)
            lowest.s_per_byte[:, column] = s_per_byte
            lowest.latency_s[:, column] = latency_s
    return lowest


def group_loads(
    fabric: Fabric, mesh: NDArray[np.int64], ep: int
) -> NDArray[np.float64]:
    """Return seconds per byte on every link for one mesh, (groups, links)."""
    loads: NDArray[np.float64] = loads_of_meshes(fabric, mesh[None], ep)[0]
    return loads


def loads_of_meshes(fabric: Fabric, meshes: Meshes, ep: int) -> NDArray[np.float64]:
    """Return the same for meshes of equal degrees, (meshes, groups, links)."""
    result = np.zeros((len(meshes), len(GROUPS), len(fabric.link_names)))
    for columns, view in group_meshes(meshes, np.full(len(meshes), ep)):
        result[:, columns] = _loads(fabric, columns, view)
    return result


def group_meshes(
    meshes: Meshes, ep: NDArray[np.int64] | None
) -> list[tuple[list[int], Meshes]]:
    """Return columns of `PathCosts`, and meshes whose first axes are those groups.

    Neighbouring axes are multiplied into one where a group spans both.
    """
    tp, cp, shard, replicate, pp = np.moveaxis(meshes, 1, 0)
    state = np.stack([tp, cp * shard, replicate, pp], axis=1)
    result = [([TP, DP_SHARD, DP_REPLICATE, PP], state)]
    if (cp > 1).any():
        result.append(([TP, CP], np.stack([tp, cp, shard * replicate, pp], axis=1)))
    if ep is None:
        return result
    columns, is_split = [EP, EXPERT_SHARD, EXPERT_REPLICATE], (ep < 0)[:, None]
    if not is_split.any():
        return [*result, (columns, expert_mesh(meshes, ep))]
    apart = meshes.copy()
    apart[:, TP] = np.where(is_split, 1, tp)
    experts = expert_mesh(apart, np.abs(ep))
    inside = np.where(is_split, tp, 1)[:, None]
    # The price of tp in the next view holds for all rows.
    return [([TP, *columns], np.concatenate([inside, experts], axis=1)), *result]


def _loads(fabric: Fabric, columns: list[int], view: Meshes) -> NDArray[np.float64]:
    """Return seconds per byte on the links, (meshes, columns, links)."""
    loads = fabric.loads(view)[:, : len(columns)]
    for axis, column in enumerate(columns):
        if exchange := fabric.exchanging.get(GROUPS[column]):
            loads[:, axis] = fabric.exchange_loads(view, axis, exchange)
    return loads


def _latency_s(fabric: Fabric, columns: list[int], view: Meshes) -> NDArray[np.float64]:
    """Return the latency of hops: the mean one of rings, (meshes, columns).

    All messages of an all-to-all are under way at once, and some stages of a pipeline
    are as far apart as any: the longest hop counts.
    """
    latency_s = fabric.latency_s(view)[:, : len(columns)]
    longest = [i for i, column in enumerate(columns) if is_longest(fabric, column)]
    if longest:
        latency_s[:, longest] = fabric.longest_s(view)[:, longest]
    return latency_s


def is_longest(fabric: Fabric, column: int) -> bool:
    """Return whether the longest hop of a kind of group counts, not the mean one."""
    return column == PP or GROUPS[column] in fabric.exchanging
