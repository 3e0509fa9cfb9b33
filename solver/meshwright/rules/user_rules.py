"""The user's rules as rules on skeletons, before layers are split over stages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

import numpy as np

from meshwright.plans.columns import Bools, Floats, Ints
from meshwright.plans.rule import Rule
from meshwright.plans.schedules import by_schedule
from meshwright.plans.skeletons import Skeletons, plain_columns
from meshwright.reading.expression import (
    Call,
    Compared,
    Constant,
    Field,
    Function,
    Joined,
    Node,
)
from meshwright.rules.rule_truth import (
    ENDLESS,
    Bounds,
    at_least,
    between,
    exactly,
    rule_truth,
)
from meshwright.spec.cluster import per_token
from meshwright.spec.plan_fields import AXES, FIELD, FREEING, NONE
from meshwright.spec.spec import Spec
from meshwright.spec.user_rules import OF_SPEC, OF_STAGES, OF_STEP, UserRule
from meshwright.topology.fabric import free_paths

SOURCE = "the spec"

ON_DEGREES = {*AXES, "dp", *OF_SPEC, "layers"}
"""Values that degrees alone decide or bound."""

ON_STEP = {*OF_STEP, *OF_SPEC}
"""Values that the time of a step bounds, whatever the plan."""

PARTS = "parts."
"""What names of parts of a step begin with."""

BUBBLE = "parts.bubble"
"""The part of a step in which the slowest stage waits for others."""

NO_PARTS: Mapping[str, Bounds] = {}

FREED = {*FREEING, "recompute_layers"}
"""Values in which the skeletons of a family differ."""


def rule_name(rule: UserRule) -> str:
    """Return the name of a user's rule among all rules."""
    return f"rules.{rule.name}"


def user_degree_rules(spec: Spec) -> list[Rule]:
    """Return the user's rules that look at degrees alone."""
    return [_row_rule(rule) for rule in spec.rules if rule.names <= ON_DEGREES]


def user_plan_rules(spec: Spec) -> list[Rule]:
    """Return the user's other rules."""
    return [_row_rule(rule) for rule in spec.rules if not rule.names <= ON_DEGREES]


def split_dependent(spec: Spec) -> tuple[UserRule, ...]:
    """Return the user's rules that a skeleton alone does not decide."""
    return tuple(rule for rule in spec.rules if not rule.is_of_decisions)


def parts_asked(spec: Spec) -> set[str]:
    """Return the parts of a step that rules of the user look at, as `parts.NAME`."""
    asked = {name for rule in spec.rules for name in rule.names}
    return {name for name in asked if name.startswith(PARTS)}


def compares_with_step(spec: Spec) -> bool:
    """Return whether a rule of the user looks at the step and at a part of it."""
    return any(
        "step_s" in rule.names and any(name.startswith(PARTS) for name in rule.names)
        for rule in spec.rules
    )


def may_keep(
    spec: Spec,
    rows: Skeletons,
    least_step_s: Floats,
    parts_s: Mapping[str, Bounds],
    most_step_s: Floats | float = ENDLESS,
) -> Bools:
    """Return the skeletons that may keep the user's rules, given bounds on times."""
    values = RowValues(spec, rows, least_step_s, parts_s, most_step_s)
    return _may_keep(split_dependent(spec), values)


def family_may_keep(
    spec: Spec,
    first: Skeletons,
    least_step_s: Floats,
    parts_s: Mapping[str, Bounds] = NO_PARTS,
) -> Bools:
    """Return the families that may keep the user's rules, given least times.

    The skeletons of a family differ from its first one in recomputation and offload.
    """
    rules = [rule for rule in split_dependent(spec) if not rule.names & FREED]
    return _may_keep(rules, RowValues(spec, first, least_step_s, parts_s))


def step_may_keep(spec: Spec, least_step_s: float) -> bool:
    """Return whether any plan may keep the user's rules on the step alone.

    No plan takes less than `least_step_s`.
    """
    rules = [rule for rule in spec.rules if rule.names <= ON_STEP]
    one = Skeletons(**plain_columns(1), paths=free_paths(1, 0), mesh=np.array([-1]))
    values = RowValues(spec, one, np.array([least_step_s]))
    return bool(_may_keep(rules, values)[0])


def _may_keep(rules: Iterable[UserRule], values: RowValues) -> Bools:
    result = np.ones(len(values.rows), dtype=bool)
    for rule in rules:
        result &= rule_truth(rule.tree, values).may
    return result


def _row_rule(rule: UserRule) -> Rule:
    tree = rule.tree

    def holds(spec: Spec, rows: Skeletons) -> Bools:
        return np.atleast_1d(rule_truth(tree, RowValues(spec, rows)).may)

    shown = [name for name in (*FIELD, "dp") if name in rule.names]
    numbers = ", ".join(f"{name} {{{name}}}" for name in shown)
    return Rule(rule_name(rule), rule.sentence, SOURCE, holds, numbers)


@dataclass(frozen=True)
class RowValues:
    """Values that rules compare, as far as a skeleton without a split decides them."""

    spec: Spec
    rows: Skeletons
    least_step_s: Floats | float = 0.0
    """A lower bound on the time of a step."""
    parts_s: Mapping[str, Bounds] = field(default_factory=dict)
    """Bounds on its parts by name, on the bubble where nothing is deferred."""
    most_step_s: Floats | float = ENDLESS
    """An upper bound on the time of the steps that are of interest."""

    def codes(self, name: str) -> Ints | Bools:
        """Return the codes of a word, or a flag."""
        column: Ints = getattr(self.rows, name)
        return column

    def number(self, name: str) -> Bounds:
        """Return a number; times and prices are known by bounds alone."""
        if name in OF_SPEC:
            return exactly(spec_number(self.spec, name))
        if name in FIELD or name == "dp":
            return exactly(getattr(self.rows, name))
        if name == "step_s":
            return between(self.least_step_s, self.most_step_s)
        if name == BUBBLE:
            return self._bubble()
        if name.startswith(PARTS):
            return self.parts_s.get(name, at_least(0.0))
        return self._rate(name)

    def _bubble(self) -> Bounds:
        """Return bounds on the time in which the slowest stage waits for others.

        There is none without a pipeline and some with one; what a schedule defers may
        fill all of it.
        """
        rows = self.rows
        deferred = by_schedule(
            rows.schedule, lambda rules: rules.deferred(rows.microbatches, rows.pp)
        )
        is_alone = rows.pp == 1
        bound = self.parts_s.get(BUBBLE, at_least(0.0))
        some = np.maximum(bound.low, np.finfo(np.float64).tiny)
        least = np.where(deferred > 0, -ENDLESS, some)
        return between(np.where(is_alone, 0, least), np.where(is_alone, 0, ENDLESS))

    def _rate(self, name: str) -> Bounds:
        """Return bounds on a number that follows from the time of the step."""
        training, least_s = self.spec.training, self.least_step_s
        tokens = training.seq_len * training.global_batch
        priced = per_token(self.spec, tokens)
        if name in priced:
            return between(priced[name] * least_s, ENDLESS)
        if not name.startswith("tokens_per_s"):
            return between(0.0, ENDLESS)
        gpus = self.spec.cluster.gpus if name.endswith("_per_gpu") else 1
        with np.errstate(divide="ignore"):
            most = tokens / np.asarray(least_s, np.float64) / gpus
        return between(0.0, np.minimum(most, ENDLESS))

    def reduced(self, function: Function, name: str) -> Bounds:
        """Return bounds on the largest, least or sum of what stages or links have."""
        layers = self.spec.model.n_layers
        if name == "layers" and function == "sum":
            return exactly(layers)
        if name == "layers":
            even = layers / self.rows.pp
            most = np.maximum(layers - self.rows.pp + 1, 1)
            at_most = between(np.ceil(even), most)
            least = np.where(self.rows.pp == 1, layers, 1)
            return at_most if function == "max" else between(least, np.floor(even))
        if name == "recompute_layers":
            return between(0, np.where(self.rows.recompute == NONE, 0, layers))
        return between(0, ENDLESS)

    def at(self, name: str, index: int | str) -> Bounds:
        """Return bounds on the value of one stage or link."""
        if name not in OF_STAGES or isinstance(index, str):
            return between(0, ENDLESS)
        is_missing = (index >= self.rows.pp) | (-index > self.rows.pp)
        high = self.spec.model.n_layers if name.endswith("layers") else ENDLESS
        low = 1 if name == "layers" else 0
        return Bounds(np.float64(low), np.float64(high), np.asarray(is_missing))  # type: ignore[arg-type]

    def each(self, name: str) -> None:
        """Return None: the values of stages are open."""


def spec_number(spec: Spec, name: str) -> int:
    """Return a number of the spec that rules may compare."""
    training = spec.training
    numbers = {
        "gpus": spec.cluster.gpus,
        "seq_len": training.seq_len,
        "global_batch": training.global_batch,
    }
    return numbers[name]


ROUNDING = 1e-5
"""Share of a cap, and GiB, by which it is raised: memory is rounded up before it."""


def memory_cap_gib(spec: Spec) -> float:
    """Return the most memory that every plan may use by rules alone; else infinity.

    Rules that say so beside other things (`or zero >= 1`) leave it open.
    """
    caps = [cap for rule in spec.rules for cap in _caps(rule.tree)]
    return min(caps, default=inf) * (1 + ROUNDING) + ROUNDING


def _caps(node: Node) -> Iterator[float]:
    if isinstance(node, Joined) and node.is_all:
        for operand in node.operands:
            yield from _caps(operand)
    if not (isinstance(node, Compared) and len(node.operands) == 2):
        return
    left, right = node.operands
    if node.operations[0] in (">", ">="):
        left, right = right, left
    elif node.operations[0] not in ("<", "<="):
        return
    if _is_fullest(left) and isinstance(right, Constant):
        yield float(right.value)


def _is_fullest(node: Node) -> bool:
    match node:
        case Call(function="max", arguments=(Field(name="memory_gib", index=None),)):
            return True
    return False
