"""The cost of one kind of group by the order of a host's GPUs, and cheap orders.

Orders come from here without a solver: by swaps from a given one (`local_optimum`), or
as a list of all that symmetries tell apart, where those are few (`enumerate_orders`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Hop = tuple[int, int]
"""A sender and a receiver: two ranks, or two GPUs."""

GpuOrder = tuple[int, ...]
"""The GPU of each rank."""

UNREACHABLE = 2**62

Floats = NDArray[np.float64]

MEAN_WEIGHT = 1e-3
"""Weight of the mean link load beside the fullest link's, which decides ties."""


class Cut(NamedTuple):
    """A link that separates the GPUs: all messages across use it."""

    side: tuple[int, ...]
    """The GPUs that send over the link."""
    load: int
    """Load of every hop across."""
    base: int
    """Load of the link wherever the ranks are."""


@dataclass(frozen=True)
class GroupCost:
    """The load and the latency of one kind of group: smaller is better."""

    hops: tuple[Hop, ...]
    """Ranks that send to ranks, all at once; every rank sends to equally many."""
    loads: Ints
    """Load on each link of one GPU sending to another, (gpus, gpus, links)."""
    base: Ints
    """Load on each link wherever the ranks are, (links,)."""
    latency: Ints
    """Latency of one GPU sending to another, (gpus, gpus)."""
    most: tuple[int, int]
    """Load and latency above which an order is of no interest."""
    least: tuple[int, int] = (0, 0)
    """Load and latency that no order is known to go below."""

    @property
    def gpus(self) -> int:
        """Return the number of GPUs of the host."""
        return len(self.loads)

    @cached_property
    def arcs(self) -> list[Hop]:
        """Return the pairs of GPUs of which one may send to the other."""
        gpus = range(self.gpus)
        alone = (self.loads + self.base).max(axis=2)
        is_open = (alone <= self.most[0]) & (self.latency <= self.most[1])
        return [(i, j) for i in gpus for j in gpus if i != j and is_open[i, j]]

    @cached_property
    def is_symmetric(self) -> bool:
        """Return whether every receiver also sends back: rings of two."""
        return set(self.hops) == {(b, a) for a, b in self.hops}

    @property
    def receivers(self) -> int:
        """Return to how many others each rank sends."""
        return len(self.hops) // self.gpus

    @cached_property
    def rotations(self) -> list[list[int]]:
        """Return the ways to rotate all rings at once: the new place of each rank."""
        if self.receivers > 1:
            return []
        successor, rotations = dict(self.hops), []
        place = [successor[rank] for rank in range(len(successor))]
        while place != list(range(len(successor))):
            rotations.append(place)
            place = [successor[rank] for rank in place]
        return rotations

    def is_invariant(self, rotation: Sequence[int]) -> bool:
        """Return whether the hops are the same with the ranks in new places."""
        return {(rotation[a], rotation[b]) for a, b in self.hops} == set(self.hops)

    @property
    def group_size(self) -> int:
        """Return the number of ranks in a group."""
        return len(self.rotations) + 1 if self.receivers == 1 else self.receivers + 1

    @cached_property
    def cuts(self) -> list[Cut]:
        """Return the links that separate the GPUs and carry equal loads across."""
        return list(dict.fromkeys(self._cuts()))

    def _cuts(self) -> Iterator[Cut]:
        for link, base in enumerate(self.base.tolist()):
            loads = self.loads[:, :, link]
            senders, others = (loads > 0).any(axis=1), (loads > 0).any(axis=0)
            load = int(loads.max())
            is_cut = (senders ^ others).all()
            if is_cut and (loads == load * np.outer(senders, others)).all():
                yield Cut(tuple(np.flatnonzero(senders).tolist()), load, base)

    @cached_property
    def lower_bound(self) -> tuple[int, int]:
        """Return a load and a latency that no order goes below.

        At best every GPU sends to its nearest ones; and a link that separates the GPUs
        is crossed unless whole groups fit on either side of it.
        """
        gpus = np.arange(self.gpus)
        alone = (self.loads + self.base).max(axis=2)
        alone[gpus, gpus] = UNREACHABLE
        nearest = self.latency.copy()
        nearest[gpus, gpus] = UNREACHABLE
        load = max(int(self.base.max()), _best_worst_gpu(alone, self.receivers))
        latency = _best_worst_gpu(nearest, self.receivers)
        for cut in self.cuts:
            if len(cut.side) % self.group_size:
                load = max(load, self.receivers * cut.load + cut.base)
                across = np.delete(self.latency[list(cut.side)], cut.side, axis=1)
                latency = max(latency, int(across.min()))
        return load, latency

    @cached_property
    def possible_loads(self) -> set[int]:
        """Return the loads a link may have; empty where its hops load it unequally."""
        possible = {int(self.base.max())}
        for link, base in enumerate(self.base.tolist()):
            loads = self.loads[:, :, link]
            per_hop = np.unique(loads[loads > 0]).tolist()
            if len(per_hop) > 1:
                return set()
            hops = range(len(self.hops) + 1)
            possible |= {base + count * load for load in per_hop for count in hops}
        return possible

    def link_loads(self, orders: Ints) -> tuple[Ints, Ints]:
        """Return the loads of links that hops use, (orders, links), and the latency."""
        used = np.flatnonzero(self.loads.any(axis=(0, 1)))
        per_hop = self.loads[:, :, used]
        loads = np.tile(self.base[used], (len(orders), 1))
        longest = np.zeros(len(orders), dtype=np.int64)
        for a, b in self.hops:
            loads += per_hop[orders[:, a], orders[:, b]]
            longest = np.maximum(longest, self.latency[orders[:, a], orders[:, b]])
        return loads, longest

    def costs(self, orders: Ints) -> Ints:
        """Return the fullest link's load and the latency of orders, (orders, 2)."""
        loads, longest = self.link_loads(orders)
        fullest = loads.max(axis=1, initial=int(self.base.max()))
        return np.stack([fullest, longest], axis=1)


def _best_worst_gpu(amounts: Ints, receivers: int) -> int:
    """Return the least cost of the worst-off GPU to reach, and hear from, so many."""
    sent, heard = np.sort(amounts, axis=1), np.sort(amounts, axis=0)
    return int(max(sent[:, receivers - 1].max(), heard[receivers - 1].max()))


def local_optimum(groups: Sequence[GroupCost], start: GpuOrder) -> GpuOrder:
    """Return the order reached from `start` by always taking the best swap."""
    swaps = np.array(list(itertools.combinations(range(len(start)), 2)))
    order, lowest = np.array(start), np.inf
    while True:
        rows = np.arange(len(swaps))[:, None]
        swapped = np.tile(order, (len(swaps), 1))
        swapped[rows, swaps] = swapped[rows, swaps[:, ::-1]]
        candidates = np.concatenate([order[None], swapped])
        scores = _scores(groups, candidates)
        best = int(scores.argmin())
        if scores[best] >= lowest:
            return tuple(order.tolist())
        order, lowest = candidates[best], scores[best]


def _scores(groups: Sequence[GroupCost], orders: Ints) -> Floats:
    """Return the cost of orders: each cost as a share of the range left to it."""
    total = np.zeros(len(orders))
    for group in groups:
        loads, longest = group.link_loads(orders)
        span = np.subtract(group.most, group.least) + 1
        fullest = loads.max(axis=1) + MEAN_WEIGHT * loads.mean(axis=1)
        total += fullest / span[0]
        total += longest / span[1]
    return total


@lru_cache(maxsize=64)
def enumerate_orders(
    gpus: int,
    rank_order: tuple[tuple[int, int], ...],
    first_gpu_ranks: tuple[int, ...],
    most: int,
) -> Ints | None:
    """Return the GPU of each rank in every order, (orders, ranks); None above `most`.

    In each pair of `rank_order` the first GPU has the lower rank; GPU 0 has one of
    `first_gpu_ranks`.
    """
    lower_ranked = {gpu: {a for a, b in rank_order if b == gpu} for gpu in range(gpus)}
    found: list[list[int]] = []
    for order in _completions([], lower_ranked, set(first_gpu_ranks)):
        if len(found) == most:
            return None
        found.append(order)
    return np.array(found, dtype=np.int64)


def _completions(
    order: list[int], lower_ranked: dict[int, set[int]], first_gpu_ranks: set[int]
) -> Iterator[list[int]]:
    """Yield the full orders that begin with this one."""
    rank, taken = len(order), set(order)
    if rank == len(lower_ranked):
        yield order
        return
    if 0 not in taken and rank > max(first_gpu_ranks):
        return
    for gpu, earlier in lower_ranked.items():
        if gpu not in taken and earlier <= taken and (gpu or rank in first_gpu_ranks):
            yield from _completions([*order, gpu], lower_ranked, first_gpu_ranks)


def pareto_front(costs: Ints) -> list[int]:
    """Return the rows of `costs` that no other row dominates, the first of equals."""
    distinct, rows = np.unique(costs, axis=0, return_index=True)
    kept: list[int] = []
    for index in np.lexsort((rows, distinct.sum(axis=1))):
        dominates = (distinct[kept] <= distinct[index]).all(axis=1)
        if not dominates.any():
            kept.append(int(index))
    return [int(row) for row in rows[kept]]
