"""What the parts of a rule are: numbers, words, or true or false."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from meshwright.reading.expression import (
    Arithmetic,
    BadExpression,
    Call,
    Compared,
    Comparison,
    Constant,
    Field,
    Joined,
    Many,
    Negative,
    Node,
    Not,
    at_character,
    parse_expression,
)
from meshwright.spec.rule_names import (
    KINDS,
    LINKS,
    OF_STAGES,
    Kind,
    near_names,
    words_of,
)


@lru_cache(maxsize=1_000)
def read_rule(text: str) -> Node:
    """Return the tree of a rule whose names and kinds go together.

    Raises:
        BadExpression: says what is wrong, where, and what is accepted.
    """
    tree = parse_expression(text)
    kind = kind_of(tree)
    if kind is not Kind.FLAG:
        raise BadExpression(
            f"at character {tree.at}: is {kind.value}; expected a comparison"
        )
    return tree


def fields_of(node: Node) -> Iterator[Field]:
    """Yield the values that an expression compares, from left to right."""
    if isinstance(node, Field):
        yield node
    for part in parts_of(node):
        yield from fields_of(part)


def parts_of(node: Node) -> tuple[Node, ...]:
    """Return the parts of an expression, from left to right."""
    match node:
        case Joined(operands=parts) | Compared(operands=parts):
            return parts
        case Many(items=parts) | Call(arguments=parts):
            return parts
        case Not(operand=part) | Negative(operand=part):
            return (part,)
        case Arithmetic(left=left, right=right):
            return (left, right)
    return ()


def kind_of(node: Node) -> Kind:
    """Return what a part of a rule is.

    Raises:
        BadExpression: it compares what cannot be compared.
    """
    match node:
        case Constant(value=value):
            is_text = Kind.WORD if isinstance(value, str) else Kind.NUMBER
            return Kind.FLAG if isinstance(value, bool) else is_text
        case Field():
            return _kind_of_name(node)
        case Negative(operand=operand):
            return _number(operand)
        case Arithmetic(left=left, right=right):
            kinds = (_number(left), _number(right))
            return Kind.MANY if Kind.MANY in kinds else Kind.NUMBER
        case Call():
            return _kind_of_call(node)
        case Many(items=items):
            for item in items:
                if not isinstance(item, Constant | Negative):
                    raise _bad(item, "expected numbers or 'text' in a list")
            return Kind.LIST
        case Not(operand=operand):
            return _flag(operand)
        case Joined(operands=operands):
            for operand in operands:
                _flag(operand)
            return Kind.FLAG
        case Compared():
            sides = [_Side(operand, kind_of(operand)) for operand in node.operands]
            for operation, pair in zip(node.operations, pairwise(sides), strict=True):
                _refuse_unlike(operation, *pair)
            return Kind.FLAG
    raise _bad(node, "expected a comparison")


def _kind_of_name(node: Field) -> Kind:
    kind, index = KINDS.get(node.name), node.index
    if kind is None:
        raise _bad(node, f"no value {node.name[:40]!r}; {near_names(node.name)}")
    if index is None:
        return kind
    if node.name == LINKS and isinstance(index, str):
        return Kind.NUMBER
    if node.name in OF_STAGES and isinstance(index, int):
        return Kind.NUMBER
    accepted = f"{OF_STAGES[0]}[0] is the first stage, {LINKS}['name'] a link"
    raise _bad(node, f"{node.text[:40]!r} is no value; {accepted}")


def _kind_of_call(node: Call) -> Kind:
    kinds = [_number(argument) for argument in node.arguments]
    if kinds == [Kind.MANY] or (len(kinds) > 1 and Kind.MANY not in kinds):
        return Kind.NUMBER
    told = f"expected {node.function} of {', '.join(OF_STAGES)} or {LINKS}, or of "
    raise _bad(node, told + "several numbers")


def _number(node: Node) -> Kind:
    kind = kind_of(node)
    if kind not in (Kind.NUMBER, Kind.MANY):
        raise _bad(node, f"{node.text[:40]} is {kind.value}; expected a number")
    return kind


def _flag(node: Node) -> Kind:
    kind = kind_of(node)
    if kind is not Kind.FLAG:
        told = f"{node.text[:40]} is {kind.value}; expected a comparison"
        raise _bad(node, told)
    return kind


class _Side(NamedTuple):
    """One side of a comparison, and what it is."""

    node: Node
    kind: Kind

    @property
    def text(self) -> str:
        return self.node.text[:40]


def _refuse_unlike(operation: Comparison, left: _Side, right: _Side) -> None:
    """Refuse a comparison of two values that do not go together."""
    for side in (left, right):
        if side.kind is Kind.MANY:
            text, told = side.text, f"{side.text} is {side.kind.value}; "
            told += f"expected max({text}), min({text}) or sum({text})"
            raise _bad(side.node, told)
    if operation in ("in", "not in"):
        if not isinstance(right.node, Many):
            raise _bad(right.node, "expected a list behind `in`, such as (1, 2, 4)")
        for item in right.node.items:
            _refuse_unlike("==", left, _Side(item, kind_of(item)))
        return
    if left.kind is not right.kind or left.kind is Kind.LIST:
        told = f"{left.text} is {left.kind.value}, {right.text} {right.kind.value}; "
        raise _bad(right.node, told + "expected two of a kind")
    if left.kind in (Kind.WORD, Kind.FLAG) and operation not in ("==", "!="):
        raise _bad(left.node, f"{left.text} is {left.kind.value}; expected == or !=")
    if left.kind is Kind.WORD:
        _refuse_unknown_words(left.node, right.node)


def _refuse_unknown_words(left: Node, right: Node) -> None:
    field, text = (left, right) if isinstance(left, Field) else (right, left)
    if not (isinstance(field, Field) and isinstance(text, Constant)):
        raise _bad(right, "expected a field on one side, 'text' on the other")
    words, asked = words_of(field.name), str(text.value)
    if asked not in words:
        close = difflib.get_close_matches(asked[:40], words, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        accepted = ", ".join(map(repr, words[:12])) + (", ..." if words[12:] else "")
        raise _bad(text, f"{field.name} is one of {accepted}{hint}")


def _bad(node: Node, problem: str) -> BadExpression:
    return BadExpression(at_character(node, problem))
