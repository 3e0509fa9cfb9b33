"""Every small change to a file's code, one at a time.

Tools for this (cosmic-ray, mutmut) change annotations too, try a dozen operators of
unlike types for each, most of which no code runs with, and know no `np.maximum`.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import NamedTuple

BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}

COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}

_PAIRS = (
    ("maximum", "minimum"),
    ("max", "min"),
    ("argmax", "argmin"),
    ("any", "all"),
    ("ceil", "floor"),
)

CALLED = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}


class Change(NamedTuple):
    """One thing to change in a file."""

    path: str
    line: int
    what: str
    number: int
    """Of this change among all of its file, for `changed`."""


def changes(path: str, source: str) -> list[Change]:
    """Return all changes of a file."""
    return [
        Change(path, _line(node), f"{_short(node)} -> {_short(other)}", n)
        for n, ((*_, node), other) in enumerate(_pairs(ast.parse(source)))
    ]


def _line(node: ast.AST) -> int:
    """Return the line of a node; a comprehension has none beside its target's."""
    named = node.target if isinstance(node, ast.comprehension) else node
    return getattr(named, "lineno", 0)


def changed(source: str, change: Change) -> str:
    """Return the source of a file with one change made."""
    tree = ast.parse(source)
    pairs = list(_pairs(tree))
    (parent, field, index, _), other = pairs[change.number]
    _put(parent, field, index, other)
    return ast.unparse(tree)


Place = tuple[ast.AST, str, int | None, ast.AST]
"""A node's parent, the field it stands in, its index there, and the node."""


def _places(tree: ast.AST) -> Iterator[Place]:
    """Yield the places of all nodes that are code: no annotation, no docstring."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "type_comment"):
            continue
        many = isinstance(value, list)
        for index, node in enumerate(value if many else [value]):
            if isinstance(node, ast.AST) and not _is_text(node):
                yield tree, field, index if many else None, node
                yield from _places(node)


def _pairs(tree: ast.AST) -> Iterator[tuple[Place, ast.AST]]:
    """Yield each place with each thing that may stand there instead."""
    for place in _places(tree):
        for other in _others(place[-1]):
            yield place, other


def _is_text(node: ast.AST) -> bool:
    """Return whether a node is a docstring, an alias of types, or an import."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Assign) and isinstance(
        node.value, ast.Subscript | ast.BinOp
    ):
        # A name with lower-case letters for something at the top level is a type's.
        name = node.targets[0]
        return (
            isinstance(name, ast.Name) and not name.id.isupper() and not node.col_offset
        )
    return isinstance(node, ast.Import | ast.ImportFrom)


def _put(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 70 else text[:67] + "..."


def _others(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what a node may be changed to."""
    if isinstance(node, ast.BinOp):
        yield from _other_sums(node)
    elif isinstance(node, ast.Compare):
        yield from _other_comparisons(node)
    elif isinstance(node, ast.BoolOp):
        found = copy.copy(node)
        found.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield found
        yield from node.values
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.Constant):
        yield from _other_constants(node)
    elif isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    elif isinstance(node, ast.If | ast.While):
        own_if = copy.copy(node)
        own_if.test = ast.UnaryOp(ast.Not(), node.test)
        yield own_if
    elif isinstance(node, ast.Call):
        yield from _other_calls(node)
    elif isinstance(node, ast.comprehension) and node.ifs:
        own_for = copy.copy(node)
        own_for.ifs = []
        yield own_for
    elif isinstance(node, ast.AugAssign | ast.Break | ast.Continue) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield ast.Pass()


def _other_sums(node: ast.BinOp) -> Iterator[ast.AST]:
    if type(node.op) in BINARY:
        found = copy.copy(node)
        found.op = BINARY[type(node.op)]()
        yield found
    if isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.BitAnd | ast.BitOr):
        yield node.left
    if isinstance(node.op, ast.Add | ast.Mult | ast.BitAnd | ast.BitOr):
        yield node.right


def _other_comparisons(node: ast.Compare) -> Iterator[ast.AST]:
    for index, op in enumerate(node.ops):
        found = copy.copy(node)
        found.ops = [*node.ops[:index], COMPARED[type(op)](), *node.ops[index + 1 :]]
        yield found


def _other_constants(node: ast.Constant) -> Iterator[ast.AST]:
    if isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node.value, int | float):
        yield ast.Constant(node.value + 1)
        if node.value > 1:
            yield ast.Constant(node.value - 1)


def _other_calls(node: ast.Call) -> Iterator[ast.AST]:
    name = node.func
    known = name.attr if isinstance(name, ast.Attribute) else ""
    known = name.id if isinstance(name, ast.Name) else known
    if known in CALLED:
        found, func = copy.copy(node), copy.copy(name)
        setattr(
            func, "attr" if isinstance(func, ast.Attribute) else "id", CALLED[known]
        )
        found.func = func
        yield found
    if known == "where" and len(node.args) == 3:
        condition, yes, no = node.args
        found = copy.copy(node)
        found.args = [condition, no, yes]
        yield found
