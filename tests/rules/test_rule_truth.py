"""Arithmetic and comparisons on bounds hold for all numbers within them."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.reading.expression import Comparison, Operation
from meshwright.rules.rule_truth import (
    Bounds,
    between,
    compared,
    exactly,
    joined,
    largest,
    negated,
    opposite,
    same,
    truth,
    worked_out,
)

WHOLE = st.integers(-6, 6)
SPANS = st.tuples(WHOLE, st.integers(0, 3)).map(
    lambda this: (this[0], this[0] + this[1])
)
Span = tuple[int, int]

ARITHMETIC: dict[Operation, Callable[[int, int], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": operator.mod,
}
COMPARISONS: dict[Comparison, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
EXACT: tuple[Operation, ...] = ("+", "-", "*")
"""Whose results reach both of their bounds."""

OFTEN = settings(max_examples=60, deadline=None)


def bounds(span: Span) -> Bounds:
    return exactly(span[0]) if span[0] == span[1] else between(*span)


def ends(found: Bounds) -> tuple[float, float]:
    return float(found.low), float(found.high)


def pairs(left: Span, right: Span) -> list[tuple[int, int]]:
    """Return every pair of whole numbers within two spans."""
    return [
        (one, other)
        for one in range(left[0], left[1] + 1)
        for other in range(right[0], right[1] + 1)
    ]


@OFTEN
@given(SPANS, SPANS)
@pytest.mark.parametrize("operation", ARITHMETIC)
def test_results_lie_within_their_bounds(
    operation: Operation, left: Span, right: Span
) -> None:
    found = worked_out(operation, bounds(left), bounds(right))
    divides = operation in ("/", "%")
    assert bool(found.undefined) == (divides and right == (0, 0))
    values = [
        ARITHMETIC[operation](one, other)
        for one, other in pairs(left, right)
        if other or not divides
    ]
    assert all(found.low <= value <= found.high for value in values)
    if left[0] == left[1] and right[0] == right[1] and values:
        assert found.low == found.high == values[0]


@OFTEN
@given(SPANS, SPANS)
def test_sums_and_products_reach_their_bounds(left: Span, right: Span) -> None:
    for operation in EXACT:
        found = worked_out(operation, bounds(left), bounds(right))
        values = [ARITHMETIC[operation](*pair) for pair in pairs(left, right)]
        assert ends(found) == (min(values), max(values))


@OFTEN
@given(SPANS, SPANS)
@pytest.mark.parametrize("operation", COMPARISONS)
def test_comparisons_hold_somewhere_or_everywhere(
    operation: Comparison, left: Span, right: Span
) -> None:
    found = compared(operation, bounds(left), bounds(right))
    values = [COMPARISONS[operation](*pair) for pair in pairs(left, right)]
    assert (bool(found.may), bool(found.must)) == (any(values), all(values))
    undefined = Bounds(*(bounds(left).low, bounds(left).high), np.ones((), dtype=bool))
    never = compared(operation, undefined, bounds(right))
    assert not never.may
    assert not never.must


@OFTEN
@given(SPANS, SPANS)
def test_signs_and_the_largest(left: Span, right: Span) -> None:
    turned = negated(bounds(left))
    assert ends(turned) == (-left[1], -left[0])
    most = largest([bounds(left), bounds(right)])
    values = [max(pair) for pair in pairs(left, right)]
    assert ends(most) == (min(values), max(values))


@pytest.mark.parametrize("left", [False, True, None])
@pytest.mark.parametrize("right", [False, True, None])
def test_words_of_rules_on_what_is_known_or_open(
    left: bool | None, right: bool | None
) -> None:
    """None is open: it may hold, and it may not."""
    one, other = (
        compared("==", between(0, 1), exactly(1)) if each is None else truth(each)
        for each in (left, right)
    )
    ways = [
        (first, second)
        for first in ((False, True) if left is None else (left,))
        for second in ((False, True) if right is None else (right,))
    ]
    for found, values in (
        (joined(True, [one, other]), [a and b for a, b in ways]),
        (joined(False, [one, other]), [a or b for a, b in ways]),
        (same(one, other), [a == b for a, b in ways]),
        (opposite(one), [not a for a, _ in ways]),
    ):
        assert (bool(found.may), bool(found.must)) == (any(values), all(values))
