"""Which ways to choose precision, offload and recomputation each base skeleton has.

A lattice may have tens of millions of skeletons, but few base skeletons differ in the
ways that the rules leave them. Equal sets of ways are held once, as a pattern, so that
skeletons are counted and found without a list of all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from meshwright.plans.columns import Bools, Ints, ranges, representatives
from meshwright.plans.rule import Rule, holding
from meshwright.plans.skeletons import Skeletons
from meshwright.spec.spec import Spec

BYTE = 256
"""Values of eight packed bits."""


@dataclass(frozen=True)
class LegalWays:
    """The ways of every base skeleton, and the number of each skeleton.

    The number of a skeleton is that of its base times the count of ways, plus its way.
    """

    pattern: Ints
    """Pattern of each base skeleton."""
    allowed: Bools
    """Which ways each pattern has, (patterns, ways)."""

    def __len__(self) -> int:
        """Return the number of skeletons."""
        return int(self._ends[-1]) if len(self.pattern) else 0

    @property
    def counts(self) -> Ints:
        """Return how many skeletons each base skeleton has."""
        return np.asarray(self.allowed.sum(axis=1)[self.pattern])

    def run_counts(self, size: int) -> Ints:
        """Return how many skeletons there are of each run of `size` ways, if any.

        The runs of all base skeletons stand one after another.
        """
        patterns, ways = self.allowed.shape
        by_run = self.allowed.reshape(patterns, ways // size, size).sum(axis=2)
        counts = by_run[self.pattern].ravel()
        return np.asarray(counts[counts > 0])

    def numbers(self) -> Ints:
        """Return the numbers of all skeletons, least first."""
        first, ways = self._listed
        counts = self.counts
        base = np.repeat(np.arange(len(counts)), counts) * self.allowed.shape[1]
        return np.asarray(base + ways[ranges(first[self.pattern], counts)])

    def numbers_at(self, index: Ints) -> Ints:
        """Return the numbers of the skeletons at some places of `numbers`."""
        first, ways = self._listed
        base = np.searchsorted(self._ends, index, side="right")
        start = self._ends[base] - self.counts[base]
        way = ways[first[self.pattern[base]] + index - start]
        return np.asarray(base * self.allowed.shape[1] + way)

    @cached_property
    def _ends(self) -> Ints:
        return np.cumsum(self.counts)

    @cached_property
    def _listed(self) -> tuple[Ints, Ints]:
        """Return where the ways of each pattern start, and the ways of all patterns."""
        pattern, ways = np.nonzero(self.allowed)
        return np.searchsorted(pattern, np.arange(len(self.allowed))), ways


def legal_ways(
    spec: Spec, base: Skeletons, ways: Sequence[dict[str, Ints]], rules: Sequence[Rule]
) -> LegalWays:
    """Return the ways that the rules leave to base skeletons.

    `ways` holds the codes of one choice after another, whose product the ways are. A
    rule is computed once for the choices that it looks at, and all rules once more for
    one base skeleton of each pattern.
    """
    crossed = _crossed(base, ways)
    pattern = np.zeros(len(base), dtype=np.int64)
    for rule in rules:
        holds = np.asarray(rule.holds(spec, crossed))
        if holds.shape[:1] == (len(base),):
            of_base = holds.reshape(len(base), math.prod(holds.shape[1:]))
            for byte in np.packbits(of_base, axis=1).T:
                pattern = representatives(pattern * BYTE + byte)[1]
    one_of_each, pattern = representatives(pattern)
    counts = [len(next(iter(codes.values()))) for codes in ways]
    allowed = np.empty((len(one_of_each), *counts), dtype=bool)
    allowed[:] = holding(rules, spec, _crossed(base.take(one_of_each), ways))
    return LegalWays(pattern, allowed.reshape(len(one_of_each), math.prod(counts)))


def _crossed(base: Skeletons, ways: Sequence[dict[str, Ints]]) -> Skeletons:
    """Return base skeletons along the first axis, and each choice along another."""
    others = (None,) * len(ways)
    codes: dict[str, Any] = {
        name: np.expand_dims(code, tuple(k for k in range(len(ways) + 1) if k != axis))
        for axis, choice in enumerate(ways, start=1)
        for name, code in choice.items()
    }
    return replace(base.take((slice(None), *others)), **codes)
