"""The table of unplaced skeletons, whose columns are made when they are needed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from meshwright.lattice.legal_ways import LegalWays
from meshwright.plans.columns import Bools, Ints, take
from meshwright.plans.skeletons import (
    Skeletons,
)


@dataclass(frozen=True)
class UnplacedSkeletons:
    """Skeletons without a mesh, each held as one number until its columns are needed.

    Each is a base skeleton with one of the ways to choose precision, offload and
    recomputation, and has its number by `LegalWays`.
    """

    base: Skeletons
    """The skeletons with the plainest way."""
    base_degree: Ints
    base_price_group: Ints
    ways: dict[str, Ints]
    """Codes of precision, offload and recomputation, by name, one entry per way."""
    ways_to_free: int
    """How many consecutive ways differ only in offload and recomputation."""
    recompute_ways: int
    """How many consecutive ways differ only in recomputation."""
    legal: LegalWays
    """The legal ways of each base skeleton."""
    taken: Ints | None = None
    """Numbers of the skeletons; all legal ones if None."""

    def __len__(self) -> int:
        """Return the number of skeletons."""
        return len(self.legal if self.taken is None else self.taken)

    def take(self, index: Ints) -> UnplacedSkeletons:
        """Return the skeletons of `index`."""
        known = self.taken
        taken = self.legal.numbers_at(index) if known is None else known[index]
        return replace(self, taken=taken)

    def among(self, has_degree: Bools) -> UnplacedSkeletons:
        """Return all legal skeletons of some degrees."""
        kept = np.flatnonzero(has_degree[self.base_degree])
        return replace(
            self,
            base=self.base.take(kept),
            base_degree=self.base_degree[kept],
            base_price_group=self.base_price_group[kept],
            legal=replace(self.legal, pattern=self.legal.pattern[kept]),
        )

    def places_among(self, has_degree: Bools, place: Ints) -> Ints:
        """Return the places that skeletons at a place of all have in `among`."""
        counts = self.legal.counts
        gone = np.where(has_degree[self.base_degree], 0, counts)
        base = self.take(place)._base_index
        return np.asarray(place - (np.cumsum(gone) - gone)[base])

    def plainest(self, ways: int) -> tuple[UnplacedSkeletons, Ints]:
        """Return the first skeleton of each run of ways, and the run of each skeleton.

        A run is `ways_to_free` or `recompute_ways` long.
        """
        one_of_each, run = np.unique(self.number // ways, return_inverse=True)
        plain = self.legal.plainest(one_of_each * ways, ways)
        return replace(self, taken=plain), run

    def ways_to_offload(self) -> tuple[UnplacedSkeletons, Ints]:
        """Return a skeleton of each way to offload, of the family of each skeleton.

        Comes with which of the skeletons has that family.
        """
        size, first = self.recompute_ways, self.family * self.ways_to_free
        number = first[:, None] + np.arange(0, self.ways_to_free, size)
        is_legal = self.legal.has_any(number, size)
        plain = self.legal.plainest(number[is_legal], size)
        return replace(self, taken=plain), np.nonzero(is_legal)[0]

    @property
    def state_columns(self) -> list[Ints]:
        """Return columns: families that are equal in them may hold the same state."""
        base = self._base_index
        columns = (self.base_degree, self.base.ep, self.base.zero, self.legal.pattern)
        by_base = (column[base] for column in columns)
        return [*by_base, self.ways["precision"][self._way]]

    @cached_property
    def number(self) -> Ints:
        """Return the number of each skeleton."""
        return self.legal.numbers() if self.taken is None else self.taken

    @cached_property
    def rows(self) -> Skeletons:
        """Return the columns of the skeletons."""
        codes: dict[str, Any] = take(self.ways, self._way)
        return replace(self.base.take(self._base_index), **codes)

    @cached_property
    def degree(self) -> Ints:
        """Return the index of the degrees of each skeleton."""
        return self.base_degree[self._base_index]

    @property
    def offload(self) -> Ints:
        """Return the code of offload of each skeleton."""
        return self.ways["offload"][self._way]

    @property
    def price_group(self) -> Ints:
        """Return the price group of each skeleton.

        Skeletons in one group differ only in schedule and chunks. Prices depend on
        whether there are several chunks, whose sends may hide, and on no more.
        """
        base = 2 * self.base_price_group + (self.base.vpp > 1)
        group = base[self._base_index]
        return group * self._way_count + self._way

    @property
    def family(self) -> Ints:
        """Return the family of each skeleton.

        Skeletons of one family differ only in recomputation and offload. They stand
        together, the one that frees the least memory first.
        """
        return self.number // self.ways_to_free

    @property
    def recompute_way(self) -> Ints:
        """Return which way to recompute each skeleton has."""
        return self.number % self.recompute_ways

    @property
    def _way_count(self) -> int:
        return len(next(iter(self.ways.values())))

    @cached_property
    def _way(self) -> Ints:
        return self.number % self._way_count

    @cached_property
    def _base_index(self) -> Ints:
        return self.number // self._way_count
