"""Expressions that users write: `tp <= 8 and pp in (1, 2, 4)`.

The one grammar of a sweep's `where` and a spec's `rules`. The text is parsed by
Python's parser into the nodes below; it is never executed.
"""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass
from typing import Literal

LONGEST = 1_000
"""Most characters of an expression."""

DEEPEST = 40
"""Most nested operations: a chain of + or - counts each, one of and / or once."""

LARGEST = 1e18
"""Largest number."""

ACCEPTED = (
    "expected comparisons of fields, numbers and 'text' (< <= > >= == != in), joined "
    "by and, or, not, with + - * / %, max, min, sum and parentheses"
)

Comparison = Literal["<", "<=", ">", ">=", "==", "!=", "in", "not in"]
Operation = Literal["+", "-", "*", "/", "%"]
Function = Literal["max", "min", "sum"]

FUNCTIONS: tuple[Function, ...] = ("max", "min", "sum")


@dataclass(frozen=True)
class Node:
    """A part of an expression."""

    at: int
    """The character at which it starts, counted from 1."""
    text: str
    """It as written, with plain blanks and quotes."""


@dataclass(frozen=True)
class Constant(Node):
    """A number, a text, or true or false."""

    value: float | str | bool


@dataclass(frozen=True)
class Field(Node):
    """A value that has a name: `tp`, `parts.dp`, `layers[0]`; `text` is all of it."""

    name: str
    index: int | str | None = None
    """The text in the last brackets, if the value ends with brackets."""


@dataclass(frozen=True)
class Many(Node):
    """A list of values, on the right of `in`."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class Call(Node):
    """The largest, the least or the sum of values."""

    function: Function
    arguments: tuple[Node, ...]


@dataclass(frozen=True)
class Negative(Node):
    """Minus a number."""

    operand: Node


@dataclass(frozen=True)
class Arithmetic(Node):
    """Arithmetic on two numbers."""

    operation: Operation
    left: Node
    right: Node


@dataclass(frozen=True)
class Compared(Node):
    """A chain of comparisons: `1 < tp <= 8`."""

    operands: tuple[Node, ...]
    operations: tuple[Comparison, ...]


@dataclass(frozen=True)
class Not(Node):
    """The opposite of something true or false."""

    operand: Node


@dataclass(frozen=True)
class Joined(Node):
    """Things that are true or false, joined by `and` or by `or`."""

    is_all: bool
    operands: tuple[Node, ...]


class BadExpression(ValueError):
    """Says what is wrong with an expression, and where."""


def at_character(node: Node, problem: str) -> str:
    """Return a problem with the place of the node that has it."""
    return f"at character {node.at}: {problem}"


def parse_expression(text: object) -> Node:
    """Return the tree of an expression.

    Raises:
        BadExpression: the text is no expression, too long or nested too deeply.
    """
    if not isinstance(text, str) or len(text) > LONGEST:
        raise BadExpression(f"{ACCEPTED}, in at most {LONGEST:,} characters")
    line = " ".join(text.splitlines())
    lead = len(line) - len(line.lstrip())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(line.strip(), mode="eval").body
    except SyntaxError as error:
        at = min(lead + error.offset if error.offset else len(line), len(line) + 1)
        raise BadExpression(f"at character {at}: cannot be read; {ACCEPTED}") from None
    except (ValueError, RecursionError, MemoryError):
        raise BadExpression(f"cannot be read; {ACCEPTED}") from None
    if _depth(tree) > DEEPEST:
        raise BadExpression(f"expected at most {DEEPEST} operations in each other")
    return _Reader(line.strip(), lead).node(tree)


_COMPARISONS: dict[type[ast.cmpop], Comparison] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.In: "in",
    ast.NotIn: "not in",
}
_OPERATIONS: dict[type[ast.operator], Operation] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Mod: "%",
}
_FLAGS = {"true": True, "false": False}


class _Reader:
    """Turns Python's tree of one text into nodes."""

    def __init__(self, text: str, lead: int) -> None:
        self._bytes, self._lead = text.encode(), lead

    def node(self, tree: ast.expr) -> Node:
        place = (self._at(tree), ast.unparse(tree))
        match tree:
            case ast.BoolOp(op=op, values=values):
                return Joined(*place, isinstance(op, ast.And), self._nodes(values))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return Not(*place, self.node(operand))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return Negative(*place, self.node(operand))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
                sides = self.node(left), self.node(right)
                return Arithmetic(*place, _OPERATIONS[type(op)], *sides)
            case ast.Compare(left=left, ops=ops, comparators=others) if all(
                type(op) in _COMPARISONS for op in ops
            ):
                names = tuple(_COMPARISONS[type(op)] for op in ops)
                return Compared(*place, self._nodes([left, *others]), names)
            case ast.List(elts=items) | ast.Tuple(elts=items) if items:
                return Many(*place, self._nodes(items))
            case ast.Constant(value=bool() | str() | int() | float() as value):
                return Constant(*place, self._value(tree, value))
            case ast.Name(id=name) if name in _FLAGS:
                return Constant(*place, _FLAGS[name])
            case ast.Name() | ast.Attribute() | ast.Subscript():
                return self._field(tree)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if args:
                return self._call(tree, name, args)
        raise self._error(tree, f"has {place[1][:40]!r}; {ACCEPTED}")

    def _nodes(self, trees: list[ast.expr]) -> tuple[Node, ...]:
        return tuple(self.node(tree) for tree in trees)

    def _call(self, tree: ast.expr, name: str, args: list[ast.expr]) -> Node:
        for function in FUNCTIONS:
            if name == function:
                place = (self._at(tree), ast.unparse(tree))
                return Call(*place, function, self._nodes(args))
        known = ", ".join(FUNCTIONS)
        raise self._error(tree, f"no function {name[:40]!r}; accepted: {known}")

    def _value(self, tree: ast.expr, value: float | str | bool) -> float | str | bool:
        if isinstance(value, bool | str):
            return value
        if not abs(value) <= LARGEST:
            raise self._error(tree, f"expected a number up to {LARGEST:g}")
        return value

    def _field(self, tree: ast.expr) -> Field:
        """Return a field: names with dots, and whole numbers or texts in brackets."""
        index, whole = None, tree
        if isinstance(tree, ast.Subscript):
            index, tree = self._index(tree.slice), tree.value
        part = tree
        while not isinstance(part, ast.Name):
            if isinstance(part, ast.Subscript):
                self._index(part.slice)
            elif not isinstance(part, ast.Attribute):
                raise self._error(whole, f"has {ast.unparse(part)[:40]!r}; {ACCEPTED}")
            part = part.value
        place = (self._at(whole), ast.unparse(whole))
        return Field(*place, ast.unparse(tree), index)

    def _index(self, tree: ast.expr) -> int | str:
        match tree:
            case ast.Constant(value=str() as value):
                return value
            case ast.Constant(value=int() as value) if not isinstance(value, bool):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)):
                return -value
        raise self._error(tree, "expected a whole number or 'text' in brackets")

    def _at(self, tree: ast.expr) -> int:
        before = self._bytes[: tree.col_offset].decode(errors="ignore")
        return self._lead + len(before) + 1

    def _error(self, tree: ast.expr, problem: str) -> BadExpression:
        return BadExpression(f"at character {self._at(tree)}: {problem}")


def _depth(tree: ast.expr) -> int:
    """Return how deep operations are nested, without recursion."""
    depth, level = 0, list[ast.AST]([tree])
    while any(isinstance(node, ast.expr) for node in level):
        depth += 1
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    return depth
