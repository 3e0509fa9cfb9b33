"""Whether a rule of the user holds, given values or bounds on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from meshwright.plans.columns import Bools, Floats, Ints
from meshwright.reading.expression import (
    Arithmetic,
    Call,
    Compared,
    Comparison,
    Constant,
    Field,
    Function,
    Joined,
    Many,
    Negative,
    Node,
    Not,
    Operation,
)
from meshwright.spec.plan_fields import FIELD
from meshwright.spec.user_rules import Kind, kind_of

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


def at_least(low: Floats | float) -> Bounds:
    """Return a number of which nothing else is known."""
    return between(low, ENDLESS)


def truth(value: Bools | bool) -> Truth:
    """Return something that is known to hold, or not to."""
    column = np.asarray(value, dtype=bool)
    return Truth(column, column)


def negated(number: Bounds) -> Bounds:
    """Return minus a number."""
    return Bounds(-number.high, -number.low, number.undefined)


def worked_out(operation: Operation, left: Bounds, right: Bounds) -> Bounds:
    """Return the result of arithmetic on two numbers."""
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
    columns = np.broadcast_arrays(*(number.undefined for number in numbers))
    undefined = np.logical_or.reduce(columns)
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


FOLDS: dict[Function, Callable[[Floats], Floats]] = {
    "max": lambda many: np.asarray(many.max(axis=-1)),
    "min": lambda many: np.asarray(many.min(axis=-1)),
    "sum": lambda many: np.asarray(many.sum(axis=-1)),
}
"""Functions that fold the last axis to one number."""


class Values(Protocol):
    """The values that rules compare, known or between bounds, for some rows."""

    def codes(self, name: str) -> Ints | Bools:
        """Return the codes of a word, or a flag."""

    def number(self, name: str) -> Bounds:
        """Return a number of each row."""

    def reduced(self, function: Function, name: str) -> Bounds:
        """Return the largest, least or sum of what stages or links have."""

    def at(self, name: str, index: int | str) -> Bounds:
        """Return the value of one stage or link."""

    def each(self, name: str) -> Floats | None:
        """Return the value of every stage, (rows, stages), or None if that is open."""


def rule_truth(node: Node, values: Values) -> Truth:
    """Return where a part of a rule that is true or false holds."""
    match node:
        case Joined(operands=operands):
            truths = [rule_truth(operand, values) for operand in operands]
            return joined(node.is_all, truths)
        case Not(operand=operand):
            return opposite(rule_truth(operand, values))
        case Compared(operands=operands):
            sides = zip(node.operations, operands, operands[1:], strict=False)
            return joined(True, [_comparison(*side, values) for side in sides])
        case Field(name=name):
            return truth(np.asarray(values.codes(name), dtype=bool))
        case Constant(value=value):
            return truth(bool(value))
    raise AssertionError(node)


def _comparison(
    operation: Comparison, left: Node, right: Node, values: Values
) -> Truth:
    if isinstance(right, Many):
        found = [_comparison("==", left, item, values) for item in right.items]
        is_in = joined(False, found)
        return is_in if operation == "in" else opposite(is_in)
    kind = kind_of(left)
    if kind is Kind.FLAG:
        equal = same(rule_truth(left, values), rule_truth(right, values))
        return equal if operation == "==" else opposite(equal)
    if kind is Kind.WORD:
        equal = truth(_has_word(left, right, values))
        return equal if operation == "==" else opposite(equal)
    return compared(operation, number_of(left, values), number_of(right, values))


def _has_word(left: Node, right: Node, values: Values) -> Bools:
    field, text = (left, right) if isinstance(left, Field) else (right, left)
    assert isinstance(field, Field)
    assert isinstance(text, Constant)
    code = FIELD[field.name].encoded(str(text.value))
    return np.asarray(values.codes(field.name) == code)


def number_of(node: Node, values: Values) -> Bounds:
    """Return the number that a part of a rule is."""
    match node:
        case Constant(value=value):
            return exactly(float(value))
        case Negative(operand=operand):
            return negated(number_of(operand, values))
        case Arithmetic(left=left, right=right):
            sides = number_of(left, values), number_of(right, values)
            return worked_out(node.operation, *sides)
        case Call(function=function, arguments=(Field(name=name, index=None),)):
            return values.reduced(function, name)
        case Call(function=function, arguments=(argument,)):
            each = _each(argument, values)
            return between(-ENDLESS, ENDLESS) if each is None else _over(function, each)
        case Call(function=function, arguments=arguments):
            return _of_several(function, [number_of(one, values) for one in arguments])
        case Field(name=name, index=None):
            return values.number(name)
        case Field(name=name, index=index) if index is not None:
            return values.at(name, index)
    raise AssertionError(node)


def _of_several(function: Function, numbers: list[Bounds]) -> Bounds:
    if function == "max":
        return largest(numbers)
    if function == "min":
        return negated(largest([negated(number) for number in numbers]))
    total = numbers[0]
    for number in numbers[1:]:
        total = worked_out("+", total, number)
    return total


def _over(function: Function, each: Bounds) -> Bounds:
    """Return the largest, least or sum over the last axis."""
    low, high = np.broadcast_arrays(each.low, each.high)
    undefined = np.broadcast_to(each.undefined, low.shape).any(axis=-1)
    fold = FOLDS[function]
    return Bounds(fold(low), fold(high), np.asarray(undefined))


def _each(node: Node, values: Values) -> Bounds | None:
    """Return numbers of every stage, (rows, stages); None if they are open."""
    if isinstance(node, Field) and kind_of(node) is Kind.MANY:
        each = values.each(node.name)
        return None if each is None else exactly(each)
    if isinstance(node, Arithmetic):
        left, right = _each(node.left, values), _each(node.right, values)
        is_open = left is None or right is None
        return None if is_open else worked_out(node.operation, left, right)  # type: ignore[arg-type]
    if isinstance(node, Negative):
        each_of = _each(node.operand, values)
        return None if each_of is None else negated(each_of)
    number = number_of(node, values)
    low, high = np.asarray(number.low)[..., None], np.asarray(number.high)[..., None]
    return Bounds(low, high, np.asarray(number.undefined)[..., None])
