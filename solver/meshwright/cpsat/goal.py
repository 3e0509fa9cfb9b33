"""What one kind of group costs on a host, by the order of its GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Hop = tuple[int, int]
Seats = tuple[int, ...]
"""The GPU of each rank."""

MOST = 2**62


class Cut(NamedTuple):
    """A link over which some GPUs reach all others, and only they."""

    side: tuple[int, ...]
    """The GPUs that send over it."""
    load: int
    """Of each hop across."""
    base: int


@dataclass(frozen=True)
class Goal:
    """What the rings of one kind of group cost: smaller is better."""

    hops: tuple[Hop, ...]
    """Ranks that send to ranks, all at once; each to equally many."""
    loads: Ints
    """Of each pair of GPUs on each link, (gpus, gpus, links)."""
    base: Ints
    """On each link whoever sits where, (links,)."""
    latency: Ints
    """Of each pair of GPUs, (gpus, gpus)."""
    most: tuple[int, int]
    """Load and latency that are of interest; both may be the most there are."""
    least: tuple[int, int] = (0, 0)
    """Load and latency that no order gets below, as far as is known."""

    @cached_property
    def arcs(self) -> list[Hop]:
        """Return the pairs of GPUs of which one may send to the other."""
        gpus = range(len(self.loads))
        alone = (self.loads + self.base).max(axis=2)
        is_open = (alone <= self.most[0]) & (self.latency <= self.most[1])
        return [(i, j) for i in gpus for j in gpus if i != j and is_open[i, j]]

    @cached_property
    def is_mutual(self) -> bool:
        """Return whether who receives also sends back: rings of two."""
        return set(self.hops) == {(b, a) for a, b in self.hops}

    @property
    def each(self) -> int:
        """Return to how many others each rank sends."""
        return len(self.hops) // len(self.loads)

    @cached_property
    def turns(self) -> list[list[int]]:
        """Return the ways to turn all rings at once: where each rank comes to lie."""
        if self.each > 1:
            return []
        step, turns = dict(self.hops), []
        own = [step[rank] for rank in range(len(step))]
        while own != list(range(len(step))):
            turns.append(own)
            own = [step[rank] for rank in own]
        return turns

    def is_kept(self, turn: Sequence[int]) -> bool:
        """Return whether the hops are the same with ranks in other places."""
        return {(turn[a], turn[b]) for a, b in self.hops} == set(self.hops)

    @property
    def members(self) -> int:
        """Return how many ranks each group has."""
        return len(self.turns) + 1 if self.each == 1 else self.each + 1

    @cached_property
    def cuts(self) -> list[Cut]:
        """Return the links that part the GPUs: all pairs across load them alike."""
        return list(dict.fromkeys(self._cuts()))

    def _cuts(self) -> Iterator[Cut]:
        for link, base in enumerate(self.base.tolist()):
            own = self.loads[:, :, link]
            side, rest = (own > 0).any(axis=1), (own > 0).any(axis=0)
            load = int(own.max())
            if (side ^ rest).all() and (own == load * np.outer(side, rest)).all():
                yield Cut(tuple(np.flatnonzero(side).tolist()), load, base)

    @cached_property
    def floor(self) -> tuple[int, int]:
        """Return load and latency that no order gets below.

        Each GPU sends to its nearest at best; and a link that parts the GPUs in two
        is crossed unless each part has room for whole groups.
        """
        each = np.arange(len(self.loads))
        alone = (self.loads + self.base).max(axis=2)
        alone[each, each] = MOST
        nearest = self.latency.copy()
        nearest[each, each] = MOST
        load = max(int(self.base.max()), _least_of_all(alone, self.each))
        latency = _least_of_all(nearest, self.each)
        for cut in self.cuts:
            if len(cut.side) % self.members:
                load = max(load, self.each * cut.load + cut.base)
                across = np.delete(self.latency[list(cut.side)], cut.side, axis=1)
                latency = max(latency, int(across.min()))
        return load, latency

    @cached_property
    def sums(self) -> set[int]:
        """Return the loads that a link may have; empty where pairs load it unlike."""
        sums = {int(self.base.max())}
        for link, base in enumerate(self.base.tolist()):
            own = self.loads[:, :, link]
            found = np.unique(own[own > 0]).tolist()
            if len(found) > 1:
                return set()
            sums |= {base + hops * load for load in found for hops in self._counts}
        return sums

    @property
    def _counts(self) -> range:
        return range(len(self.hops) + 1)

    def passed(self, seats: Ints) -> tuple[Ints, Ints]:
        """Return the load of each link in use, (., links), and the longest way."""
        links = np.flatnonzero(self.loads.any(axis=(0, 1)))
        passed = self.loads[:, :, links]
        loads = np.tile(self.base[links], (len(seats), 1))
        longest = np.zeros(len(seats), dtype=np.int64)
        for a, b in self.hops:
            loads += passed[seats[:, a], seats[:, b]]
            longest = np.maximum(longest, self.latency[seats[:, a], seats[:, b]])
        return loads, longest

    def costs(self, seats: Ints) -> Ints:
        """Return the load of the fullest link and the longest way of orders, (., 2)."""
        loads, longest = self.passed(seats)
        fullest = loads.max(axis=1, initial=int(self.base.max()))
        return np.stack([fullest, longest], axis=1)


def _least_of_all(amounts: Ints, each: int) -> int:
    """Return what some GPU pays at least to send to, and hear from, `each` others."""
    out, back = np.sort(amounts, axis=1), np.sort(amounts, axis=0)
    return int(max(out[:, each - 1].max(), back[each - 1].max()))
