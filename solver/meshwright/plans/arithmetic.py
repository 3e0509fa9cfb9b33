"""Texts with numbers: a format whose braces hold arithmetic on a spec and a plan.

`{spec.model.n_layers} layers mod pp {pp} = {spec.model.n_layers % pp}` has fields of
plans by their names, and those of a spec after `spec`. `{tp * pp * dp:product}` writes
the factors too: `tp 8 x pp 4 x dp 2 = 64`. Factors of 1 are left out there.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator
from string import Formatter
from typing import Any

PRODUCT = "product"

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}

Value = Callable[[str], Any]
"""Returns the value of a name in an expression."""


def filled(text: str, value: Value) -> str:
    """Return a text with the values of the expressions in its braces."""
    return "".join(
        literal + (_written(expression, style or "", value) if expression else "")
        for literal, expression, style, _ in Formatter().parse(text)
    )


def fields_in(text: str) -> tuple[str, ...]:
    """Return the fields of plans that a text compares, in their order."""
    names: dict[str, None] = {}
    for _, expression, _, _ in Formatter().parse(text):
        if expression:
            names |= dict.fromkeys(_names(_parsed(expression)))
    return tuple(name for name in names if name != "spec")


def _written(expression: str, style: str, value: Value) -> str:
    tree = _parsed(expression)
    if style == PRODUCT:
        return _product(list(_factors(tree)), value)
    result = _evaluated(tree, value)
    return format(_plain(result), style)


def _product(factors: list[str], value: Value) -> str:
    """Return factors by their names with their product; those of 1 are left out."""
    values = {name: int(value(name)) for name in factors}
    shown = [f"{name} {count}" for name, count in values.items() if count != 1]
    product = math.prod(values.values())
    return " x ".join(shown) + f" = {product:,}" * (len(shown) > 1) or f"{product}"


def _plain(result: Any) -> Any:
    """Return a number as Python has it, a whole one without decimals."""
    number = result.item() if hasattr(result, "item") else result
    if isinstance(number, bool):
        return str(number).lower()
    is_whole = isinstance(number, float) and number.is_integer()
    if is_whole:
        return int(number)
    return round(number, 3) if isinstance(number, float) else number


def _parsed(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body


def _factors(tree: ast.expr) -> Iterator[str]:
    if isinstance(tree, ast.BinOp):
        yield from _factors(tree.left)
        yield from _factors(tree.right)
    elif isinstance(tree, ast.Name):
        yield tree.id


def _names(tree: ast.expr) -> Iterator[str]:
    """Yield the names of an expression from left to right."""
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return (node.id for node in sorted(names, key=lambda node: node.col_offset))


def _evaluated(tree: ast.expr, value: Value) -> Any:
    """Return the value of an expression.

    Raises:
        ValueError: the expression has more than names, numbers and arithmetic.
    """
    if isinstance(tree, ast.Constant):
        return tree.value
    if isinstance(tree, ast.Name):
        return value(tree.id)
    if isinstance(tree, ast.Attribute):
        return getattr(_evaluated(tree.value, value), tree.attr)
    if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATORS:
        left, right = _evaluated(tree.left, value), _evaluated(tree.right, value)
        return _OPERATORS[type(tree.op)](left, right)
    raise ValueError(f"{ast.unparse(tree)}: no arithmetic")
