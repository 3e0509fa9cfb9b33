"""The user's rules on the split of one skeleton, as clauses of linear inequalities.

What is not linear is left out: a split that breaks it is cut once it is found. Whole
numbers are rounded so that no split that keeps a rule is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np

from meshwright.cost.job import Job
from meshwright.cpsat.problem import AnyOf, LinearRule, SkeletonChoice, StageAmount
from meshwright.lattice.lattice import Lattice
from meshwright.plans.columns import Floats
from meshwright.plans.skeletons import Skeletons
from meshwright.reading.expression import (
    Arithmetic,
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
)
from meshwright.rules.rule_truth import rule_truth
from meshwright.rules.user_rules import RowValues, split_dependent
from meshwright.solver.piecewise import Line, Piecewise, added, extreme
from meshwright.solver.split_lines import SplitLines, split_lines
from meshwright.spec.rule_kinds import kind_of
from meshwright.spec.rule_names import LINKS, Kind

MOST_CLAUSES = 2_000
"""Clauses of one rule; a rule that makes more is left to the checker."""

PRECISION = 2.0**48
"""Coefficients are rounded to whole numbers of which a sum has about this size."""

NOISE = 1e-11
"""Relative error of sums in floats, generously."""

Clauses = list[tuple["Bound", ...]]
"""One bound of each clause must hold; no clause at all is true, an empty one false."""


@dataclass(frozen=True)
class Bound:
    """A line that is not above 0, or below it."""

    line: Line
    is_strict: bool = False


@dataclass(frozen=True)
class RuleClauses:
    """Makes clauses of rules, for one skeleton."""

    lines: SplitLines
    row: Skeletons

    def of(self, node: Node, wanted: bool = True) -> Clauses:
        """Return clauses that hold wherever a part of a rule is as wanted."""
        known = rule_truth(node, RowValues(self.lines.values.spec, self.row))
        if known.must.all() if wanted else not known.may.any():
            return []
        if not known.may.any() if wanted else known.must.all():
            return [()]
        match node:
            case Not(operand=operand):
                return self.of(operand, not wanted)
            case Joined(operands=operands):
                each = [self.of(operand, wanted) for operand in operands]
                return _all(each) if node.is_all == wanted else _any(each)
            case Compared(operands=operands):
                sides = zip(node.operations, operands, operands[1:], strict=False)
                each = [self._compared(*side, wanted) for side in sides]
                return _all(each) if wanted else _any(each)
        return []

    def _compared(
        self, operation: Comparison, left: Node, right: Node, wanted: bool
    ) -> Clauses:
        if isinstance(right, Many):
            is_in = (operation == "in") == wanted
            each = [self._compared("==", left, one, is_in) for one in right.items]
            return _any(each) if is_in else _all(each)
        if kind_of(left) is not Kind.NUMBER:
            return []
        operation = operation if wanted else _OPPOSITE[operation]
        first, second = self.number(left), self.number(right)
        if first is None or second is None:
            return []
        above = added(first, second.times(-1.0), self.lines.step)
        if above is None:
            return []
        below = above.times(-1.0)
        if operation in ("==", "!="):
            is_equal = operation == "=="
            join = _all if is_equal else _any
            return join([_not_above(own, not is_equal) for own in (above, below)])
        number = above if operation in ("<", "<=") else below
        return _not_above(number, operation in ("<", ">"))

    def number(self, node: Node) -> Piecewise | None:
        """Return a number as the largest or least of lines, if it is that."""
        match node:
            case Constant(value=value):
                return self.lines.constant(float(value))
            case Negative(operand=operand):
                own = self.number(operand)
                return own and own.times(-1.0)
            case Arithmetic(left=left, right=right):
                return self._worked_out(node, self.number(left), self.number(right))
            case Call():
                return self._called(node)
            case Field(name=name, index=None):
                return self.lines.number(name)
            case Field(name=name, index=index) if index is not None:
                return self.lines.at(name, index)
        return None

    def _worked_out(
        self, node: Arithmetic, left: Piecewise | None, right: Piecewise | None
    ) -> Piecewise | None:
        if left is None or right is None:
            return None
        if node.operation in ("+", "-"):
            other = right if node.operation == "+" else right.times(-1.0)
            return added(left, other, self.lines.step)
        if node.operation == "*" and left.constant is not None:
            return right.times(left.constant)
        if node.operation == "*" and right.constant is not None:
            return left.times(right.constant)
        if node.operation == "/" and right.constant:
            return left.times(1 / right.constant)
        return None

    def _called(self, node: Call) -> Piecewise | None:
        each = self._each(node)
        numbers = [number for number in each or [] if number is not None]
        if each is None or len(numbers) < len(each):
            return None
        if node.function == "sum":
            total: Piecewise | None = numbers[0]
            for number in numbers[1:]:
                total = total and added(total, number, self.lines.step)
            return total
        fold: Literal["max", "min"] = node.function
        return extreme(fold, numbers)

    def _each(self, node: Call) -> list[Piecewise | None] | None:
        """Return the numbers of which a function is asked, if they are known."""
        if len(node.arguments) > 1:
            return [self.number(argument) for argument in node.arguments]
        argument = node.arguments[0]
        if isinstance(argument, Field) and argument.name == LINKS:
            count = len(self.lines.values.link_names)
            return [self.lines.link(index) for index in range(count)]
        if LINKS in argument.text:
            return None
        return [self._on_stage(argument, e) for e in range(self.lines.count)]

    def _on_stage(self, node: Node, stage: int) -> Piecewise | None:
        """Return a number of one stage, from one that all stages have."""
        if kind_of(node) is not Kind.MANY:
            return self.number(node)
        if isinstance(node, Field):
            return self.lines.each(node.name)[stage]
        if isinstance(node, Negative):
            own = self._on_stage(node.operand, stage)
            return own and own.times(-1.0)
        if isinstance(node, Arithmetic):
            sides = (self._on_stage(own, stage) for own in (node.left, node.right))
            return self._worked_out(node, *sides)
        return None


_OPPOSITE: dict[Comparison, Comparison] = {
    "<": ">=",
    "<=": ">",
    ">": "<=",
    ">=": "<",
    "==": "!=",
    "!=": "==",
}


def _not_above(number: Piecewise, is_strict: bool) -> Clauses:
    bounds = [Bound(line, is_strict) for line in number.lines]
    if number.fold == "max" or number.is_line:
        return [(bound,) for bound in bounds]
    return [tuple(bounds)]


def _all(each: list[Clauses]) -> Clauses:
    clauses = [clause for own in each for clause in own]
    return [()] if () in clauses else clauses


def _any(each: list[Clauses]) -> Clauses:
    """Return clauses of which every choice of one from each is one."""
    if not all(each):
        return []
    count = int(np.prod([float(len(own)) for own in each]))
    if count > MOST_CLAUSES:
        return []
    return [sum(choice, ()) for choice in product(*each)]


def with_user_rules(
    choice: SkeletonChoice, job: Job, lattice: Lattice, row: Skeletons
) -> SkeletonChoice:
    """Return the choice of a placed skeleton with what rules say of its splits."""
    rules = split_dependent(job.spec)
    if not rules:
        return choice
    lines, layers = split_lines(job, lattice, row), job.spec.model.n_layers
    clauses = _all([RuleClauses(lines, row).of(rule.tree) for rule in rules])
    return replace(
        choice,
        clauses=tuple(
            AnyOf(tuple(_whole(bound, layers) for bound in clause))
            for clause in clauses
        ),
        seconds=_whole_seconds(lines.tau, layers),
        rounding=2 * layers + 2,
    )


def _whole(bound: Bound, layers: int) -> LinearRule:
    """Return a bound in whole numbers, loosened by all that rounding may change."""
    line, most = bound.line, layers + 0.0
    size = abs(line.fixed) + most * float(np.abs(line.everywhere).sum())
    for own in (line.slowest, line.last):
        size += float(np.abs(own).sum(axis=1) @ np.array([1.0, most, most]))
    is_exact = not line.slowest.any() and not line.last.any() and _is_whole(line)
    scale = 1.0 if is_exact else PRECISION / max(size, 1e-12)
    a, b = (_rounded(own, scale) for own in line.everywhere)
    loose = 0 if is_exact else int(layers + 8 + 4 * layers + size * scale * NOISE)
    limit = int(np.floor(-line.fixed * scale)) + loose
    return LinearRule(
        per_layer=a,
        per_recomputed=b,
        most=limit - int(is_exact and bound.is_strict),
        of_slowest=_whole_amounts(line.slowest, scale),
        of_last=_whole_amounts(line.last, scale),
    )


def _is_whole(line: Line) -> bool:
    numbers = np.append(line.everywhere.ravel(), line.fixed)
    return bool((numbers == np.round(numbers)).all() and np.abs(numbers).max() < 1e9)


def _rounded(numbers: Floats, scale: float) -> tuple[int, ...]:
    return tuple(int(number) for number in np.round(numbers * scale))


def _whole_amounts(amounts: Floats, scale: float) -> tuple[StageAmount, ...]:
    """Return amounts of all stages in whole numbers; none if all are 0."""
    if not amounts.any():
        return ()
    return tuple(StageAmount(*_rounded(own, scale)) for own in amounts.T)


def _whole_seconds(seconds: Floats, layers: int) -> tuple[StageAmount, ...]:
    """Return the time of each stage in whole numbers of a unit that fits them."""
    size = float(np.abs(seconds).sum()) * layers
    return _whole_amounts(seconds, 2.0**40 / max(size, 1e-12))
