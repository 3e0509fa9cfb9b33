"""A rule: a named test of skeletons, with the sentence that explains it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.cost.arrays import Bools
from meshwright.plan import BrokenRule
from meshwright.skeleton import Skeletons
from meshwright.spec.spec import Framework, Spec

ALL: tuple[Framework, ...] = (
    "megatron", "deepspeed", "internevo", "torchtitan", "fsdp",
)  # fmt: skip

_FIELDS = (
    "tp", "pp", "cp", "ep", "vpp", "dp", "dp_replicate", "dp_shard", "zero",
    "microbatches",
)  # fmt: skip
"""Columns that the numbers of a rule may name."""


@dataclass(frozen=True)
class Rule:
    """A named test of skeletons."""

    name: str
    sentence: str
    source: str
    holds: Callable[[Spec, Skeletons], Bools]
    numbers: str = ""
    """The values compared, as a format of `spec` and the fields of a plan."""
    frameworks: tuple[Framework, ...] = ALL
    is_inherited: bool = False
    """Whether degrees that break it still do after any further factor."""

    def told(self, spec: Spec, rows: Skeletons) -> str:
        """Return the sentence with the values that it compares on the first row."""
        values = {name: getattr(rows, name)[0] for name in _FIELDS}
        numbers = self.numbers.format(spec=spec, **values)
        return f"{self.sentence} ({numbers})" if numbers else self.sentence


def broken(rules: list[Rule], spec: Spec, rows: Skeletons) -> list[BrokenRule]:
    """Return the rules that the first row breaks, with the values compared."""
    return [
        BrokenRule(rule=rule.name, sentence=rule.told(spec, rows))
        for rule in rules
        if not rule.holds(spec, rows)[0]
    ]


def holding(rules: Sequence[Rule], spec: Spec, rows: Skeletons) -> Bools:
    """Return which rows hold every rule, in the shape that their columns have."""
    result: Bools = np.ones(rows.tp.shape, dtype=bool)
    for rule in rules:
        result = result & rule.holds(spec, rows)
    return result
