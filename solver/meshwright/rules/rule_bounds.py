"""What expressions of rules can be: numbers between bounds, and truths that are open.

Before layers are split over stages only bounds on some values are known. A rule that
cannot hold within them removes a plan; one that is open is looked at again later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from meshwright.plans.columns import Bools, Floats, Ints
from meshwright.reading.expression import Comparison, Operation

ENDLESS = 1e60
"""More than any quantity of a plan, and small enough to be multiplied."""


@dataclass(frozen=True)
class Bounds:
    """The least and the most that a number can be, one entry per row."""

    low: Floats
    high: Floats
    undefined: Bools
    """Where the plan surely has no such number: a stage too many, a division by 0."""

    @property
    def is_known(self) -> Bools:
        """Return where the number is known exactly."""
        return np.asarray((self.low == self.high) & ~self.undefined)


@dataclass(frozen=True)
class Truth:
    """Whether something may hold, and whether it must, one entry per row."""

    may: Bools
    must: Bools


NOWHERE = np.zeros((), dtype=bool)


def exactly(value: Floats | Ints | float) -> Bounds:
    """Return a number that is known."""
    column = np.asarray(value, dtype=np.float64)
    return Bounds(column, column, NOWHERE)


def between(low: Floats | Ints | float, high: Floats | Ints | float) -> Bounds:
    """Return a number that is only known to lie between two others."""
    least, most = np.asarray(low, np.float64), np.asarray(high, np.float64)
    return Bounds(least, most, NOWHERE)


def truth(value: Bools | bool) -> Truth:
    """Return something that is known to hold, or not to."""
    column = np.asarray(value, dtype=bool)
    return Truth(column, column)


def negated(number: Bounds) -> Bounds:
    """Return minus a number."""
    return Bounds(-number.high, -number.low, number.undefined)


def worked_out(operation: Operation, left: Bounds, right: Bounds) -> Bounds:
    """Return what arithmetic makes of two numbers."""
    undefined = left.undefined | right.undefined
    if operation in ("/", "%"):
        by_zero = right.is_known & (right.low == 0)
        undefined = undefined | by_zero
    with np.errstate(all="ignore"):
        low, high = _ARITHMETIC[operation](left, right)
    return Bounds(
        np.nan_to_num(low, nan=-ENDLESS, posinf=ENDLESS, neginf=-ENDLESS),
        np.nan_to_num(high, nan=ENDLESS, posinf=ENDLESS, neginf=-ENDLESS),
        undefined,
    )


def _sum(left: Bounds, right: Bounds) -> tuple[Floats, Floats]:
    return left.low + right.low, left.high + right.high


def _difference(left: Bounds, right: Bounds) -> tuple[Floats, Floats]:
    return left.low - right.high, left.high - right.low


def _product(left: Bounds, right: Bounds) -> tuple[Floats, Floats]:
    corners = [a * b for a in (left.low, left.high) for b in (right.low, right.high)]
    return _least(corners), _most(corners)


def _quotient(left: Bounds, right: Bounds) -> tuple[Floats, Floats]:
    corners = [a / b for a in (left.low, left.high) for b in (right.low, right.high)]
    has_zero = (right.low <= 0) & (right.high >= 0)
    return (
        np.where(has_zero, -ENDLESS, _least(corners)),
        np.where(has_zero, ENDLESS, _most(corners)),
    )


def _remainder(left: Bounds, right: Bounds) -> tuple[Floats, Floats]:
    is_known = left.is_known & right.is_known
    exact = np.mod(left.low, right.low)
    return np.where(is_known, exact, -ENDLESS), np.where(is_known, exact, ENDLESS)


def _least(columns: list[Floats]) -> Floats:
    return np.asarray(np.minimum.reduce(np.broadcast_arrays(*columns)))


def _most(columns: list[Floats]) -> Floats:
    return np.asarray(np.maximum.reduce(np.broadcast_arrays(*columns)))


_ARITHMETIC: dict[Operation, Callable[[Bounds, Bounds], tuple[Floats, Floats]]] = {
    "+": _sum,
    "-": _difference,
    "*": _product,
    "/": _quotient,
    "%": _remainder,
}


def largest(numbers: list[Bounds]) -> Bounds:
    """Return the largest of several numbers."""
    undefined = np.logical_or.reduce([number.undefined for number in numbers])
    low = _most([number.low for number in numbers])
    return Bounds(low, _most([number.high for number in numbers]), undefined)


def compared(operation: Comparison, left: Bounds, right: Bounds) -> Truth:
    """Return whether a comparison holds; one with an undefined side does not."""
    may, must = _COMPARED[operation](left, right)
    defined = ~(left.undefined | right.undefined)
    return Truth(np.asarray(may & defined), np.asarray(must & defined))


def _below(left: Bounds, right: Bounds) -> tuple[Bools, Bools]:
    return left.low < right.high, left.high < right.low


def _up_to(left: Bounds, right: Bounds) -> tuple[Bools, Bools]:
    return left.low <= right.high, left.high <= right.low


def _equal(left: Bounds, right: Bounds) -> tuple[Bools, Bools]:
    may = (left.low <= right.high) & (right.low <= left.high)
    return may, left.is_known & right.is_known & (left.low == right.low)


def _unequal(left: Bounds, right: Bounds) -> tuple[Bools, Bools]:
    may, must = _equal(left, right)
    return ~must, ~may


_COMPARED: dict[Comparison, Callable[[Bounds, Bounds], tuple[Bools, Bools]]] = {
    "<": _below,
    "<=": _up_to,
    ">": lambda left, right: _below(right, left),
    ">=": lambda left, right: _up_to(right, left),
    "==": _equal,
    "!=": _unequal,
}


def opposite(one: Truth) -> Truth:
    """Return whether something does not hold."""
    return Truth(~one.must, ~one.may)


def joined(is_all: bool, truths: list[Truth]) -> Truth:
    """Return whether all of several things hold, or any of them."""
    join = np.logical_and if is_all else np.logical_or
    may = join.reduce(np.broadcast_arrays(*(one.may for one in truths)))
    must = join.reduce(np.broadcast_arrays(*(one.must for one in truths)))
    return Truth(np.asarray(may), np.asarray(must))


def same(left: Truth, right: Truth) -> Truth:
    """Return whether two things both hold, or both do not."""
    may = (left.may & right.may) | (~left.must & ~right.must)
    return Truth(may, (left.must & right.must) | (~left.may & ~right.may))
