"""Filters of a sweep: `training.seq_len <= 8192 and model != 'llama3-70b'`."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meshwright.errors import SpecError
from meshwright.reading.document import Where, shown
from meshwright.reading.expression import (
    ACCEPTED,
    Arithmetic,
    BadExpression,
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
    at_character,
    parse_expression,
)

_COMPARE: dict[Comparison, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "in": lambda value, many: value in many,
    "not in": lambda value, many: value not in many,
}
_ARITHMETIC: dict[Operation, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": operator.mod,
}
_FUNCTIONS: dict[Function, Callable[[list[Any]], Any]] = {
    "max": max,
    "min": min,
    "sum": sum,
}
_ORDERED = ("<", "<=", ">", ">=")

Lookup = Callable[[str], Any]
"""Returns the value of a field by its dotted name; raises KeyError if none has it."""


@dataclass(frozen=True)
class Filter:
    """One parsed filter, and where it was written."""

    text: str
    tree: Node
    where: Where

    def holds(self, lookup: Lookup) -> bool:
        """Return whether a case passes the filter.

        Raises:
            SpecError: a field is unknown, or values cannot be compared.
        """
        try:
            value = _value(self.tree, lookup)
            if not isinstance(value, bool):
                told = f"is {shown(value)}, neither true nor false; {ACCEPTED}"
                raise BadExpression(told)
        except BadExpression as error:
            place = f"{self.where}: where: {shown(self.text)}"
            raise SpecError(f"{place}: {error}") from None
        return value


def read_filter(text: Any, where: Where) -> Filter:
    """Return a parsed filter.

    Raises:
        SpecError: the text is no expression.
    """
    try:
        return Filter(text, parse_expression(text), where)
    except BadExpression as error:
        quotes = "; put names such as 'llama3-8b' in quotes"
        told = f"{where}: where: {shown(text)}: {error}{quotes}"
        raise SpecError(told) from None


def _value(node: Node, lookup: Lookup) -> Any:
    match node:
        case Joined(operands=operands):
            each = (_flag(operand, lookup) for operand in operands)
            return all(each) if node.is_all else any(each)
        case Not(operand=operand):
            return not _flag(operand, lookup)
        case Negative(operand=operand):
            return -_number(operand, lookup)
        case Arithmetic():
            return _arithmetic(node, lookup)
        case Compared():
            return _compare(node, lookup)
        case Call():
            numbers = [_number(argument, lookup) for argument in node.arguments]
            return _FUNCTIONS[node.function](numbers)
        case Many(items=items):
            return [_value(item, lookup) for item in items]
        case Constant(value=value):
            return value
    return _field(node, lookup)


def _flag(node: Node, lookup: Lookup) -> bool:
    value = _value(node, lookup)
    if not isinstance(value, bool):
        told = f"{node.text!r} is neither true nor false; {ACCEPTED}"
        raise _bad(node, told)
    return value


def _number(node: Node, lookup: Lookup) -> Any:
    value = _value(node, lookup)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _bad(node, f"{node.text} is {shown(value)}: expected a number")
    return value


def _arithmetic(node: Arithmetic, lookup: Lookup) -> Any:
    first, second = _number(node.left, lookup), _number(node.right, lookup)
    try:
        return _ARITHMETIC[node.operation](first, second)
    except ArithmeticError:
        told = f"cannot be worked out of {node.left.text} and {node.right.text}"
        raise _bad(node, told) from None


def _compare(node: Compared, lookup: Lookup) -> bool:
    left, name = _value(node.operands[0], lookup), node.operands[0].text
    for operation, operand in zip(node.operations, node.operands[1:], strict=True):
        right = _value(operand, lookup)
        if not _go_together(operation, left, right):
            told = f"{name} is {shown(left)}, {operand.text} {shown(right)}"
            raise _bad(operand, f"{told}: expected two of a kind")
        if not _COMPARE[operation](left, right):
            return False
        left, name = right, operand.text
    return True


def _field(node: Node, lookup: Lookup) -> Any:
    assert isinstance(node, Field)
    try:
        return lookup(node.text)
    except KeyError as error:
        raise _bad(node, f"no field {node.text!r}; {error.args[0]}") from None


def _bad(node: Node, problem: str) -> BadExpression:
    return BadExpression(at_character(node, problem))


def _go_together(operation: Comparison, left: Any, right: Any) -> bool:
    if operation in ("in", "not in"):
        return isinstance(right, list)
    both = (left, right)
    are_numbers = all(isinstance(value, int | float) for value in both)
    are_texts = all(isinstance(value, str) for value in both)
    return are_numbers or are_texts or operation not in _ORDERED
