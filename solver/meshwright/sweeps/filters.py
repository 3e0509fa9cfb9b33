"""Filters of a sweep: `training.seq_len <= 8192 and model != 'llama3-70b'`.

The text is parsed as a Python expression and evaluated here; it is never executed.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meshwright.errors import SpecError
from meshwright.reading.document import Where
from meshwright.reading.messages import shown

LONGEST = 1_000
"""Most characters of a filter."""

DEEPEST = 40
"""Most nested operations: a chain of + or - counts each, one of and / or once."""

ACCEPTED = (
    "expected comparisons of fields, numbers and 'text' (< <= > >= == != in), joined "
    "by and, or, not, with + - * / % and parentheses"
)

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda value, many: value in many,
    ast.NotIn: lambda value, many: value not in many,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
_ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)

Lookup = Callable[[str], Any]
"""Returns the value of a field by its dotted name; raises KeyError if none has it."""


@dataclass(frozen=True)
class Filter:
    """One parsed filter, and where it was written."""

    text: str
    tree: ast.expr
    where: Where

    def holds(self, lookup: Lookup) -> bool:
        """Return whether a case passes the filter.

        Raises:
            SpecError: a field is unknown, or values cannot be compared.
        """
        value = self._value(self.tree, lookup)
        if not isinstance(value, bool):
            raise self._error(f"is {shown(value)}, neither true nor false; {ACCEPTED}")
        return value

    def _value(self, node: ast.expr, lookup: Lookup) -> Any:
        match node:
            case ast.BoolOp(op=op, values=values):
                each = (self._flag(operand, lookup) for operand in values)
                return all(each) if isinstance(op, ast.And) else any(each)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self._flag(operand, lookup)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._number(operand, lookup)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return self._arithmetic(left, op, right, lookup)
            case ast.Compare():
                return self._compare(node, lookup)
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return [self._value(element, lookup) for element in elements]
            case ast.Constant(value=str() | int() | float() as value):
                return value
            case ast.Name() | ast.Attribute() | ast.Subscript():
                return self._field(node, lookup)
        raise self._error(f"has {ast.unparse(node)!r}; {ACCEPTED}")

    def _flag(self, node: ast.expr, lookup: Lookup) -> bool:
        value = self._value(node, lookup)
        if not isinstance(value, bool):
            told = f"{ast.unparse(node)!r} is neither true nor false"
            raise self._error(f"{told}; {ACCEPTED}")
        return value

    def _number(self, node: ast.expr, lookup: Lookup) -> Any:
        value = self._value(node, lookup)
        if isinstance(value, bool) or not isinstance(value, int | float):
            name = ast.unparse(node)
            raise self._error(f"{name} is {shown(value)}: expected a number")
        return value

    def _arithmetic(
        self, left: ast.expr, op: ast.operator, right: ast.expr, lookup: Lookup
    ) -> Any:
        first, second = self._number(left, lookup), self._number(right, lookup)
        try:
            return _ARITHMETIC[type(op)](first, second)
        except ArithmeticError:
            told = f"{ast.unparse(left)} and {ast.unparse(right)}"
            raise self._error(f"cannot be worked out of {told}") from None

    def _compare(self, node: ast.Compare, lookup: Lookup) -> bool:
        left, name = self._value(node.left, lookup), ast.unparse(node.left)
        for op, operand in zip(node.ops, node.comparators, strict=True):
            right = self._value(operand, lookup)
            if type(op) not in _COMPARE:
                raise self._error(f"compares with `is`; {ACCEPTED}")
            if not _go_together(op, left, right):
                told = f"{name} is {shown(left)}, {ast.unparse(operand)} {shown(right)}"
                raise self._error(f"{told}: expected two of a kind")
            if not _COMPARE[type(op)](left, right):
                return False
            left, name = right, ast.unparse(operand)
        return True

    def _field(self, node: ast.expr, lookup: Lookup) -> Any:
        name = ast.unparse(node)
        try:
            return lookup(name)
        except KeyError as error:
            raise self._error(f"no field {name!r}; {error.args[0]}") from None

    def _error(self, problem: str) -> SpecError:
        return SpecError(f"{self.where}: where: {shown(self.text)}: {problem}")


def _go_together(op: ast.cmpop, left: Any, right: Any) -> bool:
    if isinstance(op, ast.In | ast.NotIn):
        return isinstance(right, list)
    both = (left, right)
    are_numbers = all(isinstance(value, int | float) for value in both)
    are_texts = all(isinstance(value, str) for value in both)
    return are_numbers or are_texts or not isinstance(op, _ORDERED)


def read_filter(text: Any, where: Where) -> Filter:
    """Return a parsed filter.

    Raises:
        SpecError: the text is no comparison.
    """
    place = f"{where}: where: {shown(text)}"
    if not isinstance(text, str) or len(text) > LONGEST:
        raise SpecError(f"{place}: {ACCEPTED}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        quotes = "; put names such as 'llama3-8b' in quotes"
        raise SpecError(f"{place}: cannot be read; {ACCEPTED}{quotes}") from None
    if _depth(tree) > DEEPEST:
        raise SpecError(f"{place}: expected at most {DEEPEST} operations in each other")
    return Filter(text, tree, where)


def _depth(tree: ast.expr) -> int:
    """Return how deep operations are nested, without recursion."""
    depth, level = 0, [tree]
    while level:
        depth += 1
        below = (child for node in level for child in ast.iter_child_nodes(node))
        level = [node for node in below if isinstance(node, ast.expr)]
    return depth
