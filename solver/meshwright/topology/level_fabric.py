"""Costs of groups on a tree of switches, in closed form: 16,384 GPUs take no longer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from meshwright.spec.base import divisors
from meshwright.spec.topology import Level
from meshwright.topology.fabric import (
    EVEN,
    EXPERTS_EXCHANGE,
    Exchange,
    Exchanges,
    HostOrders,
    Meshes,
    PathCosts,
)


class LevelFabric:
    """A regular cluster: every switch of a level has the same children.

    One link stands for all uplinks of a level, since they carry equal loads.
    """

    def __init__(
        self,
        levels: Sequence[Level],
        exchanging: Exchanges = EXPERTS_EXCHANGE,
        levels_of_node: int = 1,
    ) -> None:
        """Keep the levels, innermost first, and the groups that send all to all."""
        self.levels, self.exchanging = tuple(levels), dict(exchanging)
        self._levels_of_node = levels_of_node
        self.seats: tuple[int, ...] = ()
        self.sizes = tuple(level.size for level in self.levels)
        below = ("gpu", *(level.name for level in self.levels))
        self.link_names = tuple(
            f"{child}0 -> {level.name}0"
            for child, level in zip(below, self.levels, strict=False)
        )
        self._gpus_below = [math.prod(self.sizes[:i]) for i in range(len(self.sizes))]
        uplinks = tuple(
            (level, level.uplinks(gpus))
            for level, gpus in zip(self.levels, self._gpus_below, strict=True)
        )
        self.link_gb_s = tuple(level.gb_s * count for level, count in uplinks)
        self._effective_gb_s = tuple(
            level.effective_gb_s * count for level, count in uplinks
        )

    def placed(self, order: HostOrders) -> LevelFabric:
        """Return the fabric itself: the order of equal GPUs does not matter."""
        assert not order
        return self

    def loads(self, meshes: Meshes) -> NDArray[np.float64]:
        """Return seconds per byte on the uplinks of each level.

        A ring that leaves a child passes each byte over the child's uplinks once.
        Below that child sit C GPUs, M of them in the group, so C / M groups load its
        uplinks at once: (C / M) / gb_s per byte, where gb_s is that of all uplinks.
        """
        return self._loads(meshes, 1 / _members_below(meshes))

    def exchange_loads(
        self, meshes: Meshes, axis: int, exchange: Exchange = EVEN
    ) -> NDArray[np.float64]:
        """Return seconds per byte on the uplinks, for an all-to-all of one axis."""
        group = meshes[:, [axis]]
        on_node = group[:, :, : self._levels_of_node].prod(axis=2)
        share = exchange.leaving(_members_below(group), on_node, group.prod(axis=2))
        return self._loads(group, share)[:, 0]

    def least(self, degrees: NDArray[np.int64]) -> PathCosts:
        """Return the least costs of groups of these sizes, over all meshes."""
        found = [
            list(_factorisations(degree, self.sizes)) for degree in degrees.tolist()
        ]
        count = np.array([len(factors) for factors in found], dtype=np.int64)
        assert count.all(), "some group has a size that no mesh has"
        meshes = np.array(
            [mesh for factors in found for mesh in factors], dtype=np.int64
        )
        meshes = meshes.reshape(-1, 1, len(self.sizes))
        exchanges = [
            self.exchange_loads(meshes, 0, exchange).max(axis=1)
            for exchange in self.exchanging.values()
        ]
        columns = [
            np.min(exchanges, axis=0),
            self.loads(meshes).max(axis=2)[:, 0],
            self.longest_s(meshes)[:, 0],
            self.latency_s(meshes)[:, 0],
        ]
        first = np.cumsum(count) - count
        least = np.stack(
            [np.minimum.reduceat(column, first) for column in columns], axis=1
        )
        return PathCosts(least[:, :2], least[:, 2:])

    def _loads(self, meshes: Meshes, share: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return seconds per byte if every GPU sends this share out of each child."""
        gb_s = np.array(self._effective_gb_s) / np.array(self._gpus_below)
        leaves = _reach(meshes)[:, :, None] > np.arange(meshes.shape[2])
        return np.where(leaves, share / (gb_s * 1e9), 0.0)

    def latency_s(self, meshes: Meshes) -> NDArray[np.float64]:
        """Return the mean latency of the hops of a ring, s: few of them leave nodes."""
        on_node = meshes[:, :, : self._levels_of_node]
        members = on_node.prod(axis=2)
        inside_s = self._way_s(_reach(on_node))
        sizes = meshes.prod(axis=2)
        return mean_hop_s(members, sizes, inside_s, self._way_s(_reach(meshes)))

    def longest_s(self, meshes: Meshes) -> NDArray[np.float64]:
        """Return the latency up to the highest level an axis spans and back, s."""
        return self._way_s(_reach(meshes))

    def _way_s(self, reach: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the latency up so many levels and back, s."""
        hops_us = np.cumsum([0.0, *(2 * level.latency_us for level in self.levels)])
        return np.asarray(hops_us[reach] * 1e-6)


def mean_hop_s(
    members: NDArray[np.int64],
    sizes: NDArray[np.int64],
    inside_s: NDArray[np.float64],
    outside_s: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the mean latency of the n - 1 hops that a byte makes in a ring, s.

    Of a group with `members` on each of k nodes k - 1 hops go from node to node and
    n - k stay inside one (NCCL, src/graph/tuning.cc: nInterSteps).
    """
    nodes = sizes // members
    total_s = (sizes - nodes) * inside_s + (nodes - 1) * outside_s
    return np.asarray(total_s / np.maximum(sizes - 1, 1))


def _members_below(meshes: Meshes) -> NDArray[np.float64]:
    """Return how many members of a group lie below a child of each level."""
    below = np.ones(meshes.shape)
    below[:, :, 1:] = meshes[:, :, :-1].cumprod(axis=2)
    return below


def _factorisations(degree: int, sizes: tuple[int, ...]) -> Iterator[list[int]]:
    """Yield all factorisations of a degree into divisors of the sizes."""
    if not sizes:
        yield from [[]] * (degree == 1)
        return
    for factor in divisors(math.gcd(degree, sizes[0])):
        for rest in _factorisations(degree // factor, sizes[1:]):
            yield [factor, *rest]


def _reach(meshes: Meshes) -> NDArray[np.int64]:
    """Return the number of levels each axis spans: 0 if it has one member."""
    levels = np.arange(1, meshes.shape[2] + 1)
    result: NDArray[np.int64] = np.max(np.where(meshes > 1, levels, 0), axis=2)
    return result
