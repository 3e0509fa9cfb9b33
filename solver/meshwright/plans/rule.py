"""A rule: a named test of plans, with the sentence that explains it.

Sentences are formats whose braces hold arithmetic on a spec and a plan.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from string import Formatter
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from pydantic import Field

from meshwright.plans.columns import Bools, Ints
from meshwright.plans.skeletons import Skeletons
from meshwright.spec.base import SpecModel
from meshwright.spec.plan_fields import FIELD
from meshwright.spec.spec import Spec

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


class BrokenRule(SpecModel):
    """A rule that a plan or every plan breaks, with its numbers."""

    rule: str
    sentence: str
    have: float | None = None
    need: float | None = None
    unit: str = ""
    where: str = Field("", description="The stage or link where it is broken most.")
    arithmetic: str = Field("", description="The values that the rule compares.")
    compared: tuple[str, ...] = Field(
        (), description="The plan fields among those values."
    )
    source: str = Field("", description="Where the rule was read.")
    fails_with: str = Field("", description="What the framework says of such a plan.")

    @property
    def numbers(self) -> str:
        """Return the numbers needed and available, to be printed after the sentence."""
        if self.need is None or self.have is None:
            return ""
        told = f": needs {self.need:,.4g}, has {self.have:,.4g} {self.unit}".rstrip()
        return f"{told} ({self.where})" if self.where else told

    def __str__(self) -> str:
        """Return the rule in one line."""
        return f"{self.rule}: {self.sentence}{self.numbers}"


class Degrees(Protocol):
    """Rows that are split over GPUs, of training or serving."""

    @property
    def tp(self) -> Ints:
        """Return the tensor-parallel degrees."""

    @property
    def pp(self) -> Ints:
        """Return the pipeline stages."""


S = TypeVar("S", contravariant=True)
R = TypeVar("R", bound=Degrees, contravariant=True)


@dataclass(frozen=True)
class Words:
    """The words of one framework for a rule that other frameworks have too."""

    source: str
    fails_with: str = ""
    """Its message, empty where it silently does something else."""


@dataclass(frozen=True)
class RuleOf(Generic[S, R]):
    """A named test of rows of one type under a spec of one type."""

    name: str
    sentence: str
    source: str
    holds: Callable[[S, R], Bools]
    numbers: str = ""
    """The values compared, as `filled` reads it."""
    is_inherited: bool = False
    """Whether degrees that break it break it with any further factor too."""
    concerns: Callable[[S], bool] = lambda _spec: True
    """Whether the rule applies to a spec."""
    fails_with: str = ""
    """The framework's error message for a plan that breaks the rule.

    It is empty where the framework would silently do something else."""

    def said_by(self, words: Words | None) -> Self:
        """Return the rule with the words of a framework, if it has any."""
        if words is None:
            return self
        return replace(self, source=words.source, fails_with=words.fails_with)

    def arithmetic(self, spec: S, rows: R) -> str:
        """Return the values compared, those of the first row."""

        def value(name: str) -> Any:
            if name == "spec":
                return spec
            code = getattr(rows, name)[0]
            if name not in FIELD:
                return code
            decoded = FIELD[name].decoded(int(code))
            return "none" if decoded == "" else decoded

        return filled(self.numbers, value)

    def told(self, spec: S, rows: R) -> str:
        """Return the sentence with the values of the first row."""
        numbers = self.arithmetic(spec, rows)
        return f"{self.sentence} ({numbers})" if numbers else self.sentence

    def broken_by(self, spec: S, rows: R) -> BrokenRule:
        """Return the rule as one that the first row breaks, with the values."""
        return BrokenRule(
            rule=self.name,
            sentence=self.told(spec, rows),
            arithmetic=self.arithmetic(spec, rows),
            compared=fields_in(self.numbers),
            source=self.source,
            fails_with=self.fails_with,
        )


Rule = RuleOf[Spec, Skeletons]
"""A rule of training."""


def broken(rules: Sequence[RuleOf[S, R]], spec: S, rows: R) -> list[BrokenRule]:
    """Return the rules that the first row breaks, with the values compared."""
    return [
        rule.broken_by(spec, rows) for rule in rules if not rule.holds(spec, rows)[0]
    ]


def columns_seen(rule: RuleOf[S, Skeletons], spec: S, rows: Skeletons) -> set[str]:
    """Return the columns of rows that a rule looks at."""
    seen: set[str] = set()

    class Watched(Skeletons):
        """Skeletons that note which of their columns are looked at."""

        def __getattribute__(self, name: str) -> Any:
            seen.add(name)
            return super().__getattribute__(name)

    rule.holds(spec, Watched(**vars(rows)))
    return seen


def holding(rules: Sequence[RuleOf[S, R]], spec: S, rows: R) -> Bools:
    """Return the rows that keep every rule, in the shape of their columns."""
    result: Bools = np.ones(rows.tp.shape, dtype=bool)
    for rule in rules:
        result = result & rule.holds(spec, rows)
    return result
