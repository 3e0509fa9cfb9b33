"""Whether a rule of the user holds, given its values or bounds on them."""

from __future__ import annotations

from collections.abc import Callable
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
)
from meshwright.rules.rule_bounds import (
    ENDLESS,
    Bounds,
    Truth,
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
from meshwright.spec.plan_fields import FIELD
from meshwright.spec.rule_kinds import kind_of
from meshwright.spec.rule_names import Kind

FOLDS: dict[Function, Callable[[Floats], Floats]] = {
    "max": lambda many: np.asarray(many.max(axis=-1)),
    "min": lambda many: np.asarray(many.min(axis=-1)),
    "sum": lambda many: np.asarray(many.sum(axis=-1)),
}
"""What functions make of the last axis."""


class Values(Protocol):
    """The values that rules compare, known or between bounds, for some rows."""

    def codes(self, name: str) -> Ints | Bools:
        """Return the codes of a word, or a flag."""

    def number(self, name: str) -> Bounds:
        """Return a number of each row."""

    def reduced(self, function: Function, name: str) -> Bounds:
        """Return the largest, least or sum of what stages or links have."""

    def at(self, name: str, index: int | str) -> Bounds:
        """Return what one stage or link has."""

    def each(self, name: str) -> Floats | None:
        """Return what every stage has, (rows, stages), or None if that is open."""


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
