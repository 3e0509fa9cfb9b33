"""A rule: a named test of plans, with the sentence that explains it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from string import Formatter
from typing import Generic, Protocol, Self, TypeVar

import numpy as np
from pydantic import Field

from meshwright.plans.columns import Bools, Ints
from meshwright.plans.skeletons import Skeletons
from meshwright.spec.base import SpecModel
from meshwright.spec.plan_fields import FIELD, Value
from meshwright.spec.spec import Spec


class BrokenRule(SpecModel):
    """A rule that a plan or every plan breaks, with its numbers."""

    rule: str
    sentence: str
    have: float | None = None
    need: float | None = None
    unit: str = ""
    where: str = Field("", description="The stage or link where it is broken most.")

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
    """How a framework itself puts a rule that other frameworks have too."""

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
    """The values compared, as a format of `spec` and the fields of a plan."""
    is_inherited: bool = False
    """Whether degrees that break it break it with any further factor too."""
    concerns: Callable[[S], bool] = lambda _spec: True
    """Whether the rule applies to a spec."""
    fails_with: str = ""
    """What the framework says of a plan that breaks the rule: its own message.

    It is empty where the framework would silently do something else."""

    def said_by(self, words: Words | None) -> Self:
        """Return the rule with the words of a framework, if it has any."""
        if words is None:
            return self
        return replace(self, source=words.source, fails_with=words.fails_with)

    def told(self, spec: S, rows: R) -> str:
        """Return the sentence with the values of the first row."""
        names = [name for _, name, _, _ in Formatter().parse(self.numbers) if name]
        fields = [name for name in names if not name.startswith("spec.")]
        values = {name: _value(name, getattr(rows, name)[0]) for name in fields}
        numbers = self.numbers.format(spec=spec, **values)
        return f"{self.sentence} ({numbers})" if numbers else self.sentence


def _value(name: str, code: int) -> Value:
    """Return a value of a column as plans write it: a word where it has some."""
    has_words = name in FIELD and bool(FIELD[name].words)
    return FIELD[name].decoded(int(code)) or "none" if has_words else code


Rule = RuleOf[Spec, Skeletons]
"""A rule of training."""


def broken(rules: Sequence[RuleOf[S, R]], spec: S, rows: R) -> list[BrokenRule]:
    """Return the rules that the first row breaks, with the values compared."""
    return [
        BrokenRule(rule=rule.name, sentence=rule.told(spec, rows))
        for rule in rules
        if not rule.holds(spec, rows)[0]
    ]


def holding(rules: Sequence[RuleOf[S, R]], spec: S, rows: R) -> Bools:
    """Return which rows keep every rule, in the shape of their columns."""
    result: Bools = np.ones(rows.tp.shape, dtype=bool)
    for rule in rules:
        result = result & rule.holds(spec, rows)
    return result
