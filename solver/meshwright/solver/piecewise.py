"""Numbers of a split that are linear in its layers, and the largest of such numbers.

The split has n layers on a stage, r of them recomputed. A line may also have what the
slowest stage adds, and the stage that finishes last; and it may be divided by the time
of the step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np

from meshwright.plans.columns import Floats

MOST_PIECES = 1_000
"""Lines of one number; one with more is left to the checker."""


@dataclass(frozen=True)
class Line:
    """fixed + sum of a_e n_e + b_e r_e + what one stage adds, perhaps over the step."""

    fixed: float
    everywhere: Floats
    """a_e and b_e, (2, stages)."""
    slowest: Floats
    """What the slowest stage adds: fixed, per layer, per recomputed; (3, stages)."""
    last: Floats
    """What the last stage to finish adds, likewise."""
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
        """Return whether the line is one number, whatever the split."""
        varies = (self.everywhere, self.slowest, self.last)
        return not self.is_share and not any(own.any() for own in varies)


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
        """Return the number, where it is one whatever the split."""
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
    folds = {own.fold for own in (left, right) if not own.is_line}
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
