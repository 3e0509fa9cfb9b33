"""Degrees, meshes and ways that are listed, against plain loops."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import product
from random import Random

import numpy as np
import pytest

from meshwright.planner.degrees import (
    enumerate_degrees,
    enumerate_meshes,
    factorisations,
    first_of_equal,
)
from meshwright.planner.legal_ways import LegalWays
from meshwright.plans.columns import Bools, Ints
from meshwright.topology.groups import TP

SIZES = [(1,), (8,), (4, 2), (2, 3, 2), (6, 4), (2, 2, 2)]

AXES = 5


def every_mesh(sizes: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield all ways to split levels over axes, by level and axis."""

    def splits(size: int, parts: int) -> Iterator[tuple[int, ...]]:
        if parts == 1:
            yield (size,)
            return
        for first in range(1, size + 1):
            if size % first == 0:
                yield from ((first, *rest) for rest in splits(size // first, parts - 1))

    yield from product(*(splits(size, AXES) for size in sizes))


def is_inside(
    mesh: tuple[tuple[int, ...], ...], sizes: tuple[int, ...], inside: int | None
) -> bool:
    """Return whether tensor groups fill as much of a node as their degree may."""
    if inside is None:
        return True
    tp = math.prod(level[TP] for level in mesh)
    within = math.prod(level[TP] for level in mesh[:inside])
    return within == math.gcd(tp, math.prod(sizes[:inside]))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("inside", [None, 1, 2])
def test_degrees_and_their_meshes_are_those_of_plain_loops(
    sizes: tuple[int, ...], inside: int | None
) -> None:
    counts = Counter[tuple[int, ...]]()
    meshes: dict[tuple[int, ...], set[object]] = {}
    for mesh in every_mesh(sizes):
        if is_inside(mesh, sizes, inside):
            degrees = tuple(math.prod(axis) for axis in zip(*mesh, strict=True))
            counts[degrees] += 1
            by_axis = tuple(zip(*mesh, strict=True))
            meshes.setdefault(degrees, set()).add(by_axis)
    found, copies = enumerate_degrees(sizes, inside)
    keys = [tuple(degrees) for degrees in found.tolist()]
    assert len({*keys}) == len(keys)
    assert dict(zip(keys, copies.tolist(), strict=True)) == counts
    for degrees in found[:: max(len(found) // 40, 1)]:
        listed = enumerate_meshes(sizes, degrees, inside)
        result = [tuple(map(tuple, mesh)) for mesh in listed.tolist()]
        assert len({*result}) == len(result)
        assert {*result} == meshes[tuple(degrees.tolist())]


def test_degrees_that_grow_from_none_that_is_kept_are_left_out() -> None:
    """What holds for degrees holds for those they grow from."""
    asked = list[int]()

    def keep(degrees: Ints) -> Bools:
        asked.append(len(degrees))
        return np.asarray(degrees[:, TP] <= 2)

    every, copies = enumerate_degrees((4, 4), None)
    some, of_some = enumerate_degrees((4, 4), None, keep)
    few = every[:, TP] <= 2
    np.testing.assert_array_equal(some, every[few])
    np.testing.assert_array_equal(of_some, copies[few])
    # Four lie on one of five axes, or two on each of two.
    assert asked[0] == len(factorisations(4)) == 15
    assert asked[1] < len(every)


def test_inner_axes_have_the_largest_factors_first() -> None:
    options = [tuple(one) for one in factorisations(4).tolist()]
    assert options[:3] == [(4, 1, 1, 1, 1), (2, 2, 1, 1, 1), (2, 1, 2, 1, 1)]
    assert options[-1] == (1, 1, 1, 1, 4)
    assert options == sorted(options, reverse=True)


def test_the_first_of_equal_rows_is_kept() -> None:
    rows = np.array([[1, 2], [3, 4], [1, 2], [1, 4], [3, 4]])
    assert first_of_equal([rows]).tolist() == [0, 1, 3]
    assert first_of_equal([rows[:, :1], rows[:, :1]]).tolist() == [0, 1]


class DrawnWays:
    """Patterns of twelve ways, in runs of three or six, and the ways of some bases."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        allowed = random.random((int(random.integers(1, 5)), 12)) < 0.4
        pattern = random.integers(0, len(allowed), int(random.integers(1, 8)))
        self.legal = LegalWays(pattern, allowed)
        self.every = [
            12 * base + way
            for base, one in enumerate(pattern.tolist())
            for way in np.flatnonzero(allowed[one]).tolist()
        ]


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("size", [3, 6])
def test_skeletons_are_numbered_by_their_ways(seed: int, size: int) -> None:
    drawn_ways = DrawnWays(seed)
    legal, every = drawn_ways.legal, drawn_ways.every
    assert len(legal) == len(every)
    assert legal.numbers().tolist() == every
    at = Random(seed).sample(range(len(every)), len(every) // 2)
    assert legal.numbers_at(np.array(at, dtype=int)).tolist() == [every[n] for n in at]
    assert legal.counts.tolist() == [
        sum(number // 12 == base for number in every)
        for base in range(len(legal.pattern))
    ]
    runs = Counter(number // size for number in every)
    assert legal.run_counts(size).tolist() == [runs[run] for run in sorted(runs)]
    asked = np.arange(12 * len(legal.pattern))
    has_any = legal.has_any(asked, size)
    assert has_any.tolist() == [number // size in runs for number in asked.tolist()]
    first = legal.plainest(asked[has_any], size).tolist()
    assert first == [
        min(one for one in every if one // size == number // size)
        for number in asked[has_any].tolist()
    ]


def test_no_base_has_no_skeletons() -> None:
    legal = LegalWays(np.zeros(0, dtype=np.int64), np.zeros((0, 4), dtype=bool))
    assert len(legal) == 0
    assert legal.numbers().tolist() == []
