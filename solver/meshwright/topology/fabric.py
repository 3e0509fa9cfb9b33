"""The interface of a cluster's network: costs of its links to the groups of a mesh.

A group sends round a ring, or all to all. Plain all-to-alls send every member an equal
part. Dispatchers of experts (DeepEP, HybridEP) send a token once to each node that has
one of its experts, and on from there, so that fewer copies cross the network.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from meshwright.spec.base import divisors
from meshwright.spec.topology import Level

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

Meshes = NDArray[np.int64]
"""Shape (meshes, axes, levels): the factor of each axis at each level."""

HostOrders = tuple[tuple[int, ...], ...]
"""For each kind of host, the GPU of each rank; empty where ranks follow the list."""


class Exchange(Protocol):
    """An all-to-all, in shares of all that a member sends to others."""

    def leaving(self, below: Floats, on_node: Ints, size: Ints) -> Floats:
        """Return the share of the bytes of members that leaves a child, (..., levels).

        Args:
            below: How many members lie below each child, (..., levels).
            on_node: How many members lie on each node, (...).
            size: The members of the group, (...).
        """


@dataclass(frozen=True)
class EvenExchange:
    """Each member sends every other an equal part, straight to it."""

    def leaving(self, below: Floats, on_node: Ints, size: Ints) -> Floats:
        """Return the share for members that are not below the same child."""
        del on_node
        others = size[..., None]
        return np.asarray((others - below) / np.maximum(others - 1, 1))


EVEN = EvenExchange()

Exchanges = tuple[tuple[str, Exchange], ...]
"""The groups that send all to all, by name, and how."""

EXPERTS_EXCHANGE: Exchanges = (("ep", EVEN),)
"""The groups that send all to all where context parallelism is no exchange too."""


class Place(NamedTuple):
    """The mesh of a plan, and the GPUs of its ranks inside hosts."""

    mesh: Meshes
    """(axes, levels)."""
    order: HostOrders = ()


class Fabric(Protocol):
    """A cluster as plans see it: the loads and latencies of its links."""

    @property
    def exchanging(self) -> Mapping[str, Exchange]:
        """Return the groups that send all to all, not round rings, by name."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the fan-out of each level, innermost first."""

    @property
    def link_names(self) -> tuple[str, ...]:
        """Return the names of the links, such as 'gpu0 -> nvlink0'."""

    @property
    def link_gb_s(self) -> tuple[float, ...]:
        """Return the bandwidth of each link per direction, 1e9 bytes/s."""

    @property
    def seats(self) -> tuple[int, ...]:
        """Return the ranks of each kind of host on which their order matters."""

    def __hash__(self) -> int:
        """Return a hash by identity: fabrics are shared, never compared."""

    def placed(self, order: HostOrders) -> Fabric:
        """Return the fabric with the ranks of each host on GPUs in another order."""

    def loads(self, meshes: Meshes) -> NDArray[np.float64]:
        """Return seconds per byte on every link, (meshes, axes, links).

        The time for which a link is busy per byte that every member of every group of
        the axis passes to its ring neighbour, while all groups do so at once.
        """

    def exchange_loads(
        self, meshes: Meshes, axis: int, exchange: Exchange = EVEN
    ) -> NDArray[np.float64]:
        """Return the loads of an all-to-all of one axis, (meshes, links).

        The time is per byte that a member sends to all others together.
        """

    def least(self, degrees: NDArray[np.int64]) -> PathCosts:
        """Return a lower bound on the costs of groups of these sizes, on any mesh.

        Column 0 is for all-to-all, column 1 for rings.
        """

    def latency_s(self, meshes: Meshes) -> NDArray[np.float64]:
        """Return the mean hop between ring neighbours, (meshes, axes)."""

    def longest_s(self, meshes: Meshes) -> NDArray[np.float64]:
        """Return the longest hop between any two members, (meshes, axes)."""


@dataclass(frozen=True)
class PathCosts:
    """The cost of the paths that groups send on, shape (meshes, groups).

    Groups of one member pay nothing.
    """

    s_per_byte: NDArray[np.float64]
    """Seconds per byte on the most loaded link: see `Fabric.loads`."""
    latency_s: NDArray[np.float64]
    """Latency of a hop, seconds: the mean one of a ring, else the longest."""

    def take(self, index: Any) -> PathCosts:
        """Return the rows of `index`."""
        return PathCosts(self.s_per_byte[index], self.latency_s[index])

    @staticmethod
    def joined(tables: Sequence[PathCosts]) -> PathCosts:
        """Return the rows of all tables, one after another."""
        return PathCosts(
            np.concatenate([table.s_per_byte for table in tables]),
            np.concatenate([table.latency_s for table in tables]),
        )


def is_inside_nodes(groups: Ints, sizes: Sequence[int], inside: int) -> Bools:
    """Return the groups of which as much as can be lies on each node.

    Args:
        groups: The factors of each at every level, (groups, levels).
        sizes: The fan-out of each level, innermost first.
        inside: How many of the levels lie inside a node.
    """
    most = np.gcd(groups.prod(axis=1), math.prod(sizes[:inside]))
    return np.asarray(groups[:, :inside].prod(axis=1) == most)


def free_paths(meshes: int, groups: int) -> PathCosts:
    """Return costs of zero, for meshes that are not priced yet."""
    # Costs are read group by group, so the columns are contiguous.
    shape = (meshes, groups)
    return PathCosts(np.zeros(shape, order="F"), np.zeros(shape, order="F"))


@dataclass(frozen=True)
class TokenExchange:
    """A token crosses the network once for each node that has experts of it.

    The GPU that gets it there passes it on to each GPU of the node that has one or more
    (DeepSeek-AI 2024, DeepSeek-V3, section 3.2.2; DeepEP, internode.cu). Tokens choose
    their experts evenly.
    """

    experts: int
    top_k: int
    groups: int = 1
    """Groups of experts that are neighbours."""
    groups_per_token: int = 1
    """Groups that the experts of a token are in, at most."""

    def leaving(self, below: Floats, on_node: Ints, size: Ints) -> Floats:
        """Return the share of `top_k` copies of each token that leaves a child."""
        nodes = size // on_node
        on_gpus = self.with_experts(size) * (1 - below / on_node[..., None])
        on_nodes = self.with_experts(nodes) * (
            1 - np.maximum(below, on_node[..., None]) / size[..., None]
        )
        is_inside = below < on_node[..., None]
        copies = self.top_k * (size - 1) / size
        return np.asarray(
            (np.where(is_inside, on_gpus, 0.0) + on_nodes)
            / np.maximum(copies, 1e-9)[..., None]
        )

    def with_experts(self, parts: Ints) -> Floats:
        """Return how many of equal parts have experts of a token, (..., 1)."""
        numbers, inverse = np.unique(parts, return_inverse=True)
        found = [self._expected(int(number)) for number in numbers]
        return np.array(found)[inverse].reshape((*parts.shape, 1))

    def _expected(self, parts: int) -> float:
        # Where experts are no whole number on each part, none are exchanged.
        if self.experts % parts:
            return float(self.top_k)
        return parts_with_experts(self, parts)


@cache
def parts_with_experts(routing: TokenExchange, parts: int) -> float:
    """Return the expected number of parts that have one or more experts of a token.

    Experts are neighbours on `parts` equal parts. A token first chooses its groups,
    then `top_k` experts in them. It passes a part by with the chance that all its
    experts are elsewhere in the chosen groups: hypergeometric.
    """
    per_part, in_group = routing.experts // parts, routing.experts // routing.groups
    chosen = in_group * routing.groups_per_token
    ways = math.comb(chosen, routing.top_k)
    result = 0.0
    for part in range(parts):
        start = part * per_part
        shared = [
            max(0, min(start + per_part, end) - max(start, end - in_group))
            for end in range(in_group, routing.experts + 1, in_group)
        ]
        missed = math.fsum(
            chance * math.comb(chosen - on_part, routing.top_k) / ways
            for on_part, chance in _experts_offered(shared, routing.groups_per_token)
        )
        result += 1 - missed
    return result


def _experts_offered(shared: list[int], choose: int) -> list[tuple[int, float]]:
    """Return how many experts of a part are in the chosen groups, with their chances.

    `shared` has the experts of the part in each group, of which `choose` are chosen.
    """
    ways: dict[tuple[int, int], int] = {(0, 0): 1}
    for experts in shared:
        grown = dict(ways)
        for (taken, offered), count in ways.items():
            if taken < choose:
                key = taken + 1, offered + experts
                grown[key] = grown.get(key, 0) + count
        ways = grown
    every = math.comb(len(shared), choose)
    return [
        (offered, count / every)
        for (taken, offered), count in ways.items()
        if taken == choose
    ]


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
        self._known_least: dict[int, tuple[Any, Any]] = {}
        """By the size of a group, its row of `least`: the same few are asked often."""
        self.sizes = tuple(level.size for level in self.levels)
        below = ("gpu", *(level.name for level in self.levels))
        self.link_names = tuple(
            f"{child}0 -> {level.name}0"
            for child, level in zip(below, self.levels, strict=False)
        )
        gpus_below = [math.prod(self.sizes[:i]) for i in range(len(self.sizes))]
        uplinks = tuple(
            (level, level.uplinks(gpus))
            for level, gpus in zip(self.levels, gpus_below, strict=True)
        )
        self.link_gb_s = tuple(level.gb_s * count for level, count in uplinks)
        effective_gb_s = [level.effective_gb_s * count for level, count in uplinks]
        self._gb_s_of_gpu = np.array(effective_gb_s) / np.array(gpus_below)
        ways_us = [2 * level.latency_us for level in self.levels]
        self._ways_s = np.cumsum([0.0, *ways_us]) * 1e-6
        """Latency up so many levels and back."""

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
        sizes = degrees.tolist()
        new = [size for size in dict.fromkeys(sizes) if size not in self._known_least]
        if new:
            found = self._find_least(np.array(new))
            pairs = zip(found.s_per_byte, found.latency_s, strict=True)
            self._known_least |= dict(zip(new, pairs, strict=True))
        rows = np.array([self._known_least[size] for size in sizes]).reshape(-1, 2, 2)
        return PathCosts(rows[:, 0], rows[:, 1])

    def _find_least(self, degrees: NDArray[np.int64]) -> PathCosts:
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
        leaves = _reach(meshes)[:, :, None] > np.arange(meshes.shape[2])
        return np.where(leaves, share / (self._gb_s_of_gpu * 1e9), 0.0)

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
        return np.asarray(self._ways_s[reach])


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
    result: NDArray[np.int64] = np.where(meshes > 1, levels, 0).max(axis=2)
    return result
