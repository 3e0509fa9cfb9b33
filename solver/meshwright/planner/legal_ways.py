"""The ways that rules leave to skeletons, where few skeletons differ in them.

Ways are the choices made last: chunks, precision, offload and recomputation. Equal sets
of ways are held once, as a pattern.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from meshwright.deadline import NEVER, Deadline
from meshwright.plans.columns import (
    Bools,
    Ints,
    distinct,
    ranges,
    representatives,
)
from meshwright.plans.rule import Rule, columns_seen, holding
from meshwright.plans.skeletons import Skeletons
from meshwright.spec.spec import Spec

BYTE = 256
"""Values of eight packed bits."""

MANY = 2_000_000
"""Base skeletons on which all rules together take more than a second."""


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

    @cached_property
    def counts(self) -> Ints:
        """Return how many skeletons each base skeleton has."""
        return np.asarray(self.allowed.sum(axis=1)[self.pattern])

    def run_counts(self, size: int) -> Ints:
        """Return how many skeletons there are of each run of `size` ways, if any.

        The runs of all base skeletons stand one after another.
        """
        counts = self._runs(size).sum(axis=2)[self.pattern].ravel()
        return np.asarray(counts[counts > 0])

    def plainest(self, number: Ints, size: int) -> Ints:
        """Return the least number in the run of `size` ways that each number is in."""
        first, run = self._runs(size).argmax(axis=2), number // size
        base, own = np.divmod(run, first.shape[1])
        return np.asarray(run * size + first[self.pattern[base], own])

    def has_any(self, number: Ints, size: int) -> Bools:
        """Return whether any way is legal in the run that each number is in."""
        legal = np.asarray(self._runs(size).any(axis=2))
        base, own = np.divmod(number // size, legal.shape[1])
        return np.asarray(legal[self.pattern[base], own])

    def _runs(self, size: int) -> Bools:
        """Return which ways each pattern has, (patterns, runs, `size`)."""
        patterns, ways = self.allowed.shape
        return self.allowed.reshape(patterns, ways // size, size)

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
    spec: Spec,
    base: Skeletons,
    ways: Sequence[dict[str, Ints]],
    rules: Sequence[Rule],
    deadline: Deadline = NEVER,
) -> LegalWays:
    """Return the ways that the rules leave to base skeletons.

    `ways` holds the codes of one choice after another, whose product the ways are. All
    rules are computed once more for one base skeleton of each pattern.

    Raises:
        OutOfTime: there are too many base skeletons for the time.
    """
    one_of_each, pattern = patterns(spec, base, ways, rules, deadline)
    counts = [len(next(iter(codes.values()))) for codes in ways]
    allowed = np.empty((len(one_of_each), *counts), dtype=bool)
    allowed[:] = holding(rules, spec, _crossed(base.take(one_of_each), ways))
    return LegalWays(pattern, allowed.reshape(len(one_of_each), math.prod(counts)))


def patterns(
    spec: Spec,
    base: Skeletons,
    ways: Sequence[dict[str, Ints]],
    rules: Sequence[Rule],
    deadline: Deadline = NEVER,
) -> tuple[Ints, Ints]:
    """Return a base skeleton of each pattern, and the pattern of all of them.

    Each rule leaves the same ways to all base skeletons of a pattern.
    """
    pattern = np.zeros(len(base), dtype=np.int64)
    for rule in rules:
        if len(base) > MANY:
            deadline.check()
        number = _numbered_by(rule, spec, base, ways)
        if number is not None:
            count = int(number.max(initial=0)) + 1
            pattern = representatives(pattern * count + number)[1]
    return representatives(pattern)


def _numbered_by(
    rule: Rule, spec: Spec, base: Skeletons, ways: Sequence[dict[str, Ints]]
) -> Ints | None:
    """Return a number for every base skeleton, equal if a rule leaves it equal ways.

    It is None where the rule leaves the same ways to all. A rule that looks at ways is
    computed for one of all base skeletons that are equal in what else it looks at,
    since base skeletons times ways are many.
    """
    columns, looks_at_ways = _looked_at(rule, spec, base, ways)
    if not columns:
        return None
    if not looks_at_ways:
        return np.asarray(rule.holds(spec, base)).astype(np.int64)
    one_of_each, case = distinct(columns)
    holds = np.asarray(rule.holds(spec, _crossed(base.take(one_of_each), ways)))
    number = np.zeros(len(one_of_each), dtype=np.int64)
    by_case = holds.reshape(len(holds), math.prod(holds.shape[1:]))
    for byte in np.packbits(by_case, axis=1).T:
        number = representatives(number * BYTE + byte)[1]
    return number[case]


def _looked_at(
    rule: Rule, spec: Spec, base: Skeletons, ways: Sequence[dict[str, Ints]]
) -> tuple[list[Ints | Bools], bool]:
    """Return the columns of base skeletons that a rule looks at, and if at ways too."""
    seen = columns_seen(rule, spec, base.take(slice(0, 1)))
    chosen = {name for codes in ways for name in codes}
    seen_in_base = [field.name for field in fields(base) if field.name in seen - chosen]
    return [getattr(base, name) for name in seen_in_base], bool(seen & chosen)


def _crossed(base: Skeletons, ways: Sequence[dict[str, Ints]]) -> Skeletons:
    """Return base skeletons along the first axis, and each choice along another."""
    others = (None,) * len(ways)
    codes: dict[str, Any] = {
        name: np.expand_dims(code, tuple(k for k in range(len(ways) + 1) if k != axis))
        for axis, choice in enumerate(ways, start=1)
        for name, code in choice.items()
    }
    return base.take_with((slice(None), *others), **codes)
