"""The user's rules on one plan whose times, memory and links are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.plans.columns import Bools, Floats, Ints
from meshwright.plans.rule import BrokenRule
from meshwright.plans.skeletons import Skeletons
from meshwright.reading.expression import Call, Compared, Field, Function, Node
from meshwright.rules.rule_bounds import Bounds, exactly
from meshwright.rules.rule_truth import FOLDS, number_of, rule_truth
from meshwright.rules.user_rules import SOURCE, rule_name, spec_number
from meshwright.spec.plan_fields import FIELD
from meshwright.spec.rule_kinds import kind_of, parts_of
from meshwright.spec.rule_names import LINKS, OF_SPEC, Kind
from meshwright.spec.spec import Spec
from meshwright.spec.user_rules import UserRule

UNITS = {"memory_gib": "GiB", "host_gib": "GiB", "step_s": "s", LINKS: "of the step"}
"""Units of what is compared, by its name; others have none."""


@dataclass(frozen=True)
class PlanValues:
    """The values that rules compare, of one plan."""

    spec: Spec
    row: Skeletons
    numbers: Mapping[str, float]
    """Numbers of the whole plan: `step_s`, `parts.dp`, ..."""
    stages: Mapping[str, Floats]
    """Numbers of every stage, and the share of the step that each link is busy."""
    link_names: Sequence[str]

    def codes(self, name: str) -> Ints | Bools:
        """Return the codes of a word, or a flag."""
        column: Ints = getattr(self.row, name)
        return column

    def number(self, name: str) -> Bounds:
        """Return a number of the plan; a part of the step that it lacks is 0."""
        if name in OF_SPEC:
            return exactly(np.array([spec_number(self.spec, name)]))
        if name in FIELD or name == "dp":
            return exactly(getattr(self.row, name))
        return exactly(np.array([self.numbers.get(name, 0.0)]))

    def reduced(self, function: Function, name: str) -> Bounds:
        """Return the largest, least or sum of what stages or links have."""
        return exactly(FOLDS[function](self.each(name)))

    def each(self, name: str) -> Floats:
        """Return what every stage or link has, (1, stages)."""
        return np.asarray(self.stages[name], dtype=np.float64)[None]

    def at(self, name: str, index: int | str) -> Bounds:
        """Return what one stage or link has."""
        if isinstance(index, str):
            names = list(self.link_names)
            index = names.index(index) if index in names else len(names)
        many = self.stages[name]
        if not -len(many) <= index < len(many):
            return Bounds(np.zeros(1), np.zeros(1), np.ones(1, dtype=bool))
        return exactly(np.asarray(many[index], dtype=np.float64)[None])


def keeps(rule: UserRule, values: PlanValues) -> bool:
    """Return whether a plan keeps a rule."""
    return bool(rule_truth(rule.tree, values).must.all())


def broken_user_rules(values: PlanValues) -> list[BrokenRule]:
    """Return the user's rules that a plan breaks, with the values compared."""
    return [told(rule, values) for rule in values.spec.rules if not keeps(rule, values)]


def told(rule: UserRule, values: PlanValues) -> BrokenRule:
    """Return a rule with the values of a plan, and its two sides where it has two."""
    need, have = _sides(rule.tree, values) or (None, None)
    leaves = dict.fromkeys(_leaves(rule.tree, values))
    names = [name for name in UNITS if name in rule.names]
    return BrokenRule(
        rule=rule_name(rule),
        sentence=rule.sentence,
        need=need,
        have=have,
        unit=UNITS[names[0]] if len(names) == 1 else "",
        arithmetic=", ".join(leaves),
        compared=tuple(name for name in FIELD if name in rule.names),
        source=SOURCE,
    )


def _sides(node: Node, values: PlanValues) -> tuple[float, float] | None:
    """Return what a plan needs and may have, if the rule is that one is no more."""
    if not (isinstance(node, Compared) and len(node.operands) == 2):
        return None
    if node.operations[0] not in ("<", "<=", ">", ">="):
        return None
    left, right = (number_of(operand, values) for operand in node.operands)
    if left.undefined.any() or right.undefined.any():
        return None
    sides = float(left.low.item()), float(right.low.item())
    return sides if node.operations[0] in ("<", "<=") else (sides[1], sides[0])


def _leaves(node: Node, values: PlanValues) -> Iterator[str]:
    """Yield the values that a rule compares, with their names."""
    if isinstance(node, (Call, Field)):
        yield f"{node.text} {_written(node, values)}"
        return
    for part in parts_of(node):
        yield from _leaves(part, values)


def _written(node: Node, values: PlanValues) -> str:
    if isinstance(node, Field) and kind_of(node) in (Kind.WORD, Kind.FLAG):
        code = values.codes(node.name)[0]
        return str(FIELD[node.name].decoded(int(code))).lower() or "none"
    number = number_of(node, values)
    return "missing" if number.undefined.any() else f"{number.low.item():,.4g}"
