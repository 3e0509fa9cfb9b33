"""The user's rules on the split of one row, as clauses of linear inequalities.

What is not linear is left out: a split that breaks it is cut once it is found. Whole
numbers are rounded so that no split that keeps a rule is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np

from meshwright.check.check import PlanValues, Scored, score, values_of
from meshwright.cost.job import Job
from meshwright.cost.schedule import StepWeights, step_weights
from meshwright.planner.pipeline import AnyOf, LinearRule, Pipeline, StageAmount
from meshwright.planner.rows import Lattice
from meshwright.planner.split_bounds import with_all_recomputed
from meshwright.plans.columns import Floats
from meshwright.plans.skeletons import Skeletons, to_plan
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
from meshwright.spec.cluster import per_token
from meshwright.spec.plan_fields import FIELD
from meshwright.spec.user_rules import LINKS, OF_SPEC, OF_STAGES, Kind, kind_of

MOST_PIECES = 1_000
"""Lines of one number; one with more is left to the checker."""

POINTS = ((1, 0), (2, 0), (1, 1))
"""Layers and recomputed layers of all stages, at which amounts are computed."""

MOST_CLAUSES = 2_000
"""Clauses of one rule; a rule that makes more is left to the checker."""

PRECISION = 2.0**48
"""Coefficients are rounded to whole numbers of which a sum has about this size."""

NOISE = 1e-11
"""Relative error of sums in floats, generously."""

Clauses = list[tuple["Bound", ...]]
"""One bound of each clause must hold; no clause at all is true, an empty one false."""

_OPPOSITE: dict[Comparison, Comparison] = {
    "<": ">=",
    "<=": ">",
    ">": "<=",
    ">=": "<",
    "==": "!=",
    "!=": "==",
}


def with_user_rules(
    pipeline: Pipeline, job: Job, lattice: Lattice, row: Skeletons
) -> Pipeline:
    """Return the pipeline of a placed skeleton with the user's rules on its splits."""
    rules = split_dependent(job.spec)
    if not rules:
        return pipeline
    lines, layers = split_lines(job, lattice, row), job.spec.model.n_layers
    clauses = _all([RuleClauses(lines, row).of(rule.tree) for rule in rules])
    return replace(
        pipeline,
        clauses=tuple(
            AnyOf(tuple(_whole(bound, layers) for bound in clause))
            for clause in clauses
        ),
        seconds=_whole_seconds(lines.tau, layers),
        rounding=2 * layers + 2,
    )


@dataclass(frozen=True)
class Line:
    """fixed + sum of a_e n_e + b_e r_e + what one stage adds, perhaps over the step."""

    fixed: float
    everywhere: Floats
    """a_e and b_e, (2, stages)."""
    slowest: Floats
    """Amount of each stage if it is slowest: fixed, per layer, per recomputed layer."""
    last: Floats
    """Amount of each stage if it finishes last, likewise (3, stages)."""
    is_share: bool = False
    """Whether it is divided by the time of the step."""

    def times(self, factor: float) -> Line:
        """Return the line times a number."""
        return Line(
            self.fixed * factor,
            self.everywhere * factor,
            self.slowest * factor,
            self.last * factor,
            self.is_share,
        )

    def plus(self, other: Line) -> Line:
        """Return the sum of two lines, both of which are shares or neither."""
        return Line(
            self.fixed + other.fixed,
            self.everywhere + other.everywhere,
            self.slowest + other.slowest,
            self.last + other.last,
            self.is_share,
        )

    @property
    def is_constant(self) -> bool:
        """Return whether the line has the same value for every split."""
        varies = (self.everywhere, self.slowest, self.last)
        return not self.is_share and not any(map(np.any, varies))


@dataclass(frozen=True)
class Piecewise:
    """The largest or the least of some lines; of one line it is both."""

    lines: tuple[Line, ...]
    fold: Literal["max", "min"] = "max"

    @property
    def is_line(self) -> bool:
        """Return whether there is one line alone."""
        return len(self.lines) == 1

    @property
    def constant(self) -> float | None:
        """Return the value that all splits share, if there is one."""
        is_one = self.is_line and self.lines[0].is_constant
        return self.lines[0].fixed if is_one else None

    def times(self, factor: float) -> Piecewise:
        """Return it times a number; a negative one turns the largest to the least."""
        other: Literal["max", "min"] = "min" if self.fold == "max" else "max"
        fold = other if factor < 0 else self.fold
        return Piecewise(tuple(line.times(factor) for line in self.lines), fold)


def added(
    left: Piecewise, right: Piecewise, step: Piecewise | None
) -> Piecewise | None:
    """Return the sum of two numbers, or None if it is not the largest of some lines.

    `step` is the time of the step, if that is a line.
    """
    if left.lines[0].is_share != right.lines[0].is_share:
        left, right = (right, left) if right.lines[0].is_share else (left, right)
        if right.constant is None or step is None:
            return None
        share = replace(step.times(right.constant).lines[0], is_share=True)
        right = Piecewise((share,))
    folds = {side.fold for side in (left, right) if not side.is_line}
    if len(folds) > 1 or len(left.lines) * len(right.lines) > MOST_PIECES:
        return None
    sums = tuple(a.plus(b) for a, b in product(left.lines, right.lines))
    return Piecewise(sums, folds.pop() if folds else "max")


def extreme(
    fold: Literal["max", "min"], numbers: Iterable[Piecewise]
) -> Piecewise | None:
    """Return the largest or least of several numbers, if it is that of some lines."""
    lines: list[Line] = []
    for number in numbers:
        if not number.is_line and number.fold != fold:
            return None
        lines += number.lines
    if len({line.is_share for line in lines}) > 1 or len(lines) > MOST_PIECES:
        return None
    return Piecewise(tuple(lines), fold)


def constant_line(value: float, stages: int) -> Line:
    """Return a number that does not depend on the split."""
    none = np.zeros((3, stages))
    return Line(value, none[:2], none, none)


@dataclass(frozen=True)
class SplitLines:
    """The values that rules compare, each a line over splits of one skeleton.

    Amounts are (3, stages): fixed, per layer, per recomputed layer.
    """

    values: PlanValues
    """Values at one split; only those that are equal for all splits are used."""
    stages: Mapping[str, Floats]
    seconds: Mapping[str, Floats]
    """Seconds of each part of a micro-batch."""
    sync: Mapping[str, Floats]
    """Seconds of each part of the end of the step."""
    links: Floats
    """Seconds per step for which stages keep links busy, (3, stages, links)."""
    weights: StepWeights
    microbatches: int

    @property
    def count(self) -> int:
        """Return the number of stages."""
        return int(self.stages["layers"].shape[1])

    @property
    def tau(self) -> Floats:
        """Return the seconds of each stage per micro-batch."""
        return np.asarray(sum(self.seconds.values()))

    @property
    def step(self) -> Piecewise | None:
        """Return the time of the step; None if its slowest stage is another's pace."""
        if self.weights.deferred.any():
            return None
        fill = float(self.weights.fill_share[0]) * self.tau
        pace = float(self.weights.pace_count[0]) * self.tau
        ends = np.asarray(sum(self.sync.values()))
        return Piecewise((Line(float(fill[0].sum()), fill[1:], pace, ends),))

    def number(self, name: str) -> Piecewise | None:
        """Return a number of the plan, or None if it is no line."""
        if name in FIELD or name == "dp" or name in OF_SPEC:
            return self.constant(float(self.values.number(name).low[0]))
        if name == "step_s":
            return self.step
        if name == "parts.bubble":
            return self._bubble()
        if name.startswith("parts."):
            return self._part(name.removeprefix("parts."))
        training, step = self.values.spec.training, self.step
        tokens = training.seq_len * training.global_batch
        priced = per_token(self.values.spec, tokens)
        if name in priced:
            return step.times(priced[name]) if step else None
        known = self.values.numbers
        rate = constant_line(known[name] * known["step_s"], self.count)
        shared = Line(rate.fixed, rate.everywhere, rate.slowest, rate.last, True)
        return Piecewise((shared,)) if step else None

    def constant(self, value: float) -> Piecewise:
        """Return a number that no split changes."""
        return Piecewise((constant_line(value, self.count),))

    def each(self, name: str) -> list[Piecewise]:
        """Return a number of every stage."""
        return [self._of_stage(amounts) for amounts in _columns(self.stages[name])]

    def link(self, index: int) -> Piecewise | None:
        """Return the share of the step for which one link is busy."""
        if self.step is None:
            return None
        stages = _columns(self.links[:, :, index])
        return extreme(
            "max", [self._of_stage(amounts, is_share=True) for amounts in stages]
        )

    def at(self, name: str, index: int | str) -> Piecewise | None:
        """Return a number of one stage or link."""
        if name == LINKS:
            names = list(self.values.link_names)
            return self.link(names.index(str(index))) if index in names else None
        each = self.each(name)
        assert isinstance(index, int)
        return each[index] if -len(each) <= index < len(each) else None

    def _of_stage(
        self, amounts: tuple[int, Floats], is_share: bool = False
    ) -> Piecewise:
        stage, (fixed, per_layer, per_recomputed) = amounts
        everywhere, none = np.zeros((2, self.count)), np.zeros((3, self.count))
        everywhere[:, stage] = per_layer, per_recomputed
        return Piecewise((Line(float(fixed), everywhere, none, none, is_share),))

    def _part(self, name: str) -> Piecewise:
        none = np.zeros((3, self.count))
        on_slowest = self.microbatches * self.seconds.get(name, none)
        return Piecewise((Line(0.0, none[:2], on_slowest, self.sync.get(name, none)),))

    def _bubble(self) -> Piecewise | None:
        if self.weights.deferred.any():
            return None
        fill = float(self.weights.fill_share[0]) * self.tau
        none = np.zeros_like(fill)
        return Piecewise((Line(float(fill[0].sum()), fill[1:], -fill, none),))


def split_lines(job: Job, lattice: Lattice, row: Skeletons) -> SplitLines:
    """Return the values of one placed skeleton as lines over its splits."""
    place, stages, scored = lattice.place(row), int(row.pp[0]), list[Scored]()
    for layers, recomputed in POINTS:
        counts = (np.full(stages, layers), np.full(stages, recomputed))
        plan = to_plan(row, 0, with_all_recomputed(job, row, *counts), place)
        scored.append(score(job, plan))
    found = [values_of(each) for each in scored]
    times = [each.times for each in scored]
    schedule = (row.schedule, row.microbatches, row.vpp, np.array(stages))
    return SplitLines(
        values=found[0],
        stages={
            name: _amounts([values.stages[name] for values in found])
            for name in OF_STAGES
        },
        seconds={
            part: _amounts([each.seconds[part] for each in times])
            for part in times[0].seconds
        },
        sync={
            part: _amounts([each.sync[part] for each in times])
            for part in times[0].sync
        },
        links=_amounts([each.busy_s for each in scored]),
        weights=step_weights(*schedule),
        microbatches=int(row.microbatches[0]),
    )


def _amounts(points: list[Floats]) -> Floats:
    """Return amounts from `POINTS`: fixed, per layer and per recomputed layer."""
    one, two, recomputed = (np.asarray(point, dtype=np.float64) for point in points)
    return np.stack([2 * one - two, two - one, recomputed - one])


def _columns(amounts: Floats) -> list[tuple[int, Floats]]:
    return list(enumerate(amounts.T))


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
            return join([_not_above(side, not is_equal) for side in (above, below)])
        number = above if operation in ("<", "<=") else below
        return _not_above(number, operation in ("<", ">"))

    def number(self, node: Node) -> Piecewise | None:
        """Return a number as the largest or least of lines, if it is that."""
        match node:
            case Constant(value=value):
                return self.lines.constant(float(value))
            case Negative(operand=operand):
                number = self.number(operand)
                return number and number.times(-1.0)
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
        """Return the arguments of a function as numbers, if they are known."""
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
            number = self._on_stage(node.operand, stage)
            return number and number.times(-1.0)
        if isinstance(node, Arithmetic):
            sides = (self._on_stage(side, stage) for side in (node.left, node.right))
            return self._worked_out(node, *sides)
        return None


def _not_above(number: Piecewise, is_strict: bool) -> Clauses:
    bounds = [Bound(line, is_strict) for line in number.lines]
    if number.fold == "max" or number.is_line:
        return [(bound,) for bound in bounds]
    return [tuple(bounds)]


def _all(each: list[Clauses]) -> Clauses:
    clauses = [clause for clauses_of_one in each for clause in clauses_of_one]
    return [()] if () in clauses else clauses


def _any(each: list[Clauses]) -> Clauses:
    """Return all combinations of one clause from each list."""
    if not all(each):
        return []
    count = int(np.prod([float(len(clauses)) for clauses in each]))
    if count > MOST_CLAUSES:
        return []
    return [sum(pipeline, ()) for pipeline in product(*each)]


def _whole(bound: Bound, layers: int) -> LinearRule:
    """Return a bound in whole numbers, loosened by all that rounding may change."""
    line, most = bound.line, layers + 0.0
    size = abs(line.fixed) + most * float(np.abs(line.everywhere).sum())
    for coefficients in (line.slowest, line.last):
        size += float(np.abs(coefficients).sum(axis=1) @ np.array([1.0, most, most]))
    is_exact = not line.slowest.any() and not line.last.any() and _is_whole(line)
    scale = 1.0 if is_exact else PRECISION / max(size, 1e-12)
    a, b = (_rounded(coefficients, scale) for coefficients in line.everywhere)
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
    return tuple(StageAmount(*_rounded(of_stage, scale)) for of_stage in amounts.T)


def _whole_seconds(seconds: Floats, layers: int) -> tuple[StageAmount, ...]:
    """Return the time of each stage in whole numbers of a unit that fits them."""
    size = float(np.abs(seconds).sum()) * layers
    return _whole_amounts(seconds, 2.0**40 / max(size, 1e-12))
