"""One solved case of a search, as it is stored, listed and drawn, and filters of cases.

A filter is an expression: `training.seq_len <= 8192 and model != 'llama3-70b'`.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, create_model

from meshwright import __version__
from meshwright.cost.profile import Profile
from meshwright.errors import SpecError
from meshwright.plans.plan import Plan
from meshwright.reading.document import Where, shown
from meshwright.reading.expression import (
    ACCEPTED,
    Arithmetic,
    BadExpression,
    Call,
    Compared,
    Comparison,
    Constant,
    Function,
    Joined,
    Many,
    Negative,
    Node,
    Not,
    Operation,
    at_character,
    parse_expression,
)
from meshwright.reading.expression import (
    Field as NamedField,
)
from meshwright.results.outcome import Certificate
from meshwright.results.priced_plan import StageMemory
from meshwright.results.result import Status
from meshwright.spec.base import SpecModel
from meshwright.spec.spec import Spec
from meshwright.sweeps.metrics import METRICS, Metric

Value = str | int | float | bool | None


class _Case(SpecModel):
    """Where a case lies on the axes of the sweep, and why it has no plan."""

    key: str = Field(description="Hash of the spec, the profile and the code.")
    name: str = Field(description="The spec in one line.")
    axes: dict[str, Value] = Field(description="Of each axis, the value of this case.")
    status: Status | Literal["failed"]
    error: str = Field("", description="Why the case failed; empty for all others.")
    conflict: tuple[str, ...] = Field(
        (), description="Names of the rules that leave no plan."
    )
    sentence: str = Field("", description="Why no plan fits, in one line.")


def _described(metric: Metric) -> str:
    unit = f", {metric.unit}" if metric.unit else ""
    return f"{metric.description.rstrip('.')}{unit}."


if TYPE_CHECKING:

    class _Measured(_Case):
        """A case with its metrics."""

        def __getattr__(self, name: str) -> float | None: ...

else:
    _Measured = create_model(
        "_Measured",
        __base__=_Case,
        **{
            name: (
                metric.number | None,
                Field(None, description=_described(metric)),
            )
            for name, metric in sorted(
                METRICS.items(), key=lambda named: named[1].needs_plan
            )
        },
    )


class Row(_Measured):
    """A case: where it lies on the axes of the sweep, and its best plan, or why none.

    Metrics are None where no plan fits, or where the spec does not say enough.
    """

    plan: Plan | None = None
    time_parts: dict[str, float] = Field(default_factory=dict)
    memory: StageMemory | None = Field(None, description="Of the fullest GPU.")
    certificate: Certificate | None = None


@cache
def fingerprint() -> str:
    """Return a hash of the code of Meshwright.

    A row depends on all of the code: on costs, solver and metrics. With this hash in
    its keys a store never serves rows of other code, and no version has to be counted.
    """
    package = Path(__file__).parents[1]
    digest = hashlib.sha256(__version__.encode())
    for path in sorted(package.rglob("*.py")):
        digest.update(f"\n{path.relative_to(package).as_posix()}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Case:
    """One spec of a search, or the reason why its settings make no spec."""

    name: str
    axes: dict[str, Value]
    """By axis of the sweep, the value that this case has."""
    spec: Spec | None
    error: str = ""
    """Why there is no spec."""

    def row(self, key: str) -> Row:
        """Return the row of a case that cannot be solved."""
        return Row(
            key=key, name=self.name, axes=self.axes, status="failed", error=self.error
        )


@dataclass(frozen=True)
class SolveSettings:
    """The settings with which all cases of a search are solved."""

    profile: Profile = field(default_factory=Profile)
    seed: int = 0
    time_limit_s: float | None = None
    memory_limit_gib: float | None = None
    version: str = __version__
    code: str = field(default_factory=fingerprint)

    @property
    def limits(self) -> str:
        """Return the limits that an unproven answer depends on, as text."""
        return f"{self.time_limit_s} s"

    def keys(self, cases: list[Case]) -> list[str]:
        """Return the key of each case: a hash of everything its answer depends on."""
        common = f"{self.code}\n{self.version}\n{self.seed}\n" + _json(self.profile)
        texts = [f"{common}\n{_question(case)}" for case in cases]
        return [hashlib.sha256(text.encode()).hexdigest() for text in texts]


def _question(case: Case) -> str:
    return _json(case.spec) if case.spec else f"{case.name}\n{case.error}"


def _json(model: Spec | Profile) -> str:
    return model.model_dump_json()


_COMPARE: dict[Comparison, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "in": lambda value, many: value in many,
    "not in": lambda value, many: value not in many,
}
_ARITHMETIC: dict[Operation, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": operator.mod,
}
_FUNCTIONS: dict[Function, Callable[[list[Any]], Any]] = {
    "max": max,
    "min": min,
    "sum": sum,
}
_ORDERED = ("<", "<=", ">", ">=")

Lookup = Callable[[str], Any]
"""Returns the value of a field by its dotted name; raises KeyError if none has it."""


@dataclass(frozen=True)
class Filter:
    """One parsed filter, and where it was written."""

    text: str
    tree: Node
    where: Where

    def holds(self, lookup: Lookup) -> bool:
        """Return whether a case passes the filter.

        Raises:
            SpecError: a field is unknown, or values cannot be compared.
        """
        try:
            value = _value(self.tree, lookup)
            if not isinstance(value, bool):
                told = f"is {shown(value)}, neither true nor false; {ACCEPTED}"
                raise BadExpression(told)
        except BadExpression as error:
            place = f"{self.where}: where: {shown(self.text)}"
            raise SpecError(f"{place}: {error}") from None
        return value


def read_filter(text: Any, where: Where) -> Filter:
    """Return a parsed filter.

    Raises:
        SpecError: the text is no expression.
    """
    try:
        return Filter(text, parse_expression(text), where)
    except BadExpression as error:
        quotes = "; put names such as 'llama3-8b' in quotes"
        told = f"{where}: where: {shown(text)}: {error}{quotes}"
        raise SpecError(told) from None


def _value(node: Node, lookup: Lookup) -> Any:
    match node:
        case Joined(operands=operands):
            each = (_flag(operand, lookup) for operand in operands)
            return all(each) if node.is_all else any(each)
        case Not(operand=operand):
            return not _flag(operand, lookup)
        case Negative(operand=operand):
            return -_number(operand, lookup)
        case Arithmetic():
            return _arithmetic(node, lookup)
        case Compared():
            return _compare(node, lookup)
        case Call():
            numbers = [_number(argument, lookup) for argument in node.arguments]
            return _FUNCTIONS[node.function](numbers)
        case Many(items=items):
            return [_value(item, lookup) for item in items]
        case Constant(value=value):
            return value
    return _field(node, lookup)


def _flag(node: Node, lookup: Lookup) -> bool:
    value = _value(node, lookup)
    if not isinstance(value, bool):
        told = f"{node.text!r} is neither true nor false; {ACCEPTED}"
        raise _bad(node, told)
    return value


def _number(node: Node, lookup: Lookup) -> Any:
    value = _value(node, lookup)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _bad(node, f"{node.text} is {shown(value)}: expected a number")
    return value


def _arithmetic(node: Arithmetic, lookup: Lookup) -> Any:
    first, second = _number(node.left, lookup), _number(node.right, lookup)
    try:
        return _ARITHMETIC[node.operation](first, second)
    except ArithmeticError:
        told = f"cannot be worked out of {node.left.text} and {node.right.text}"
        raise _bad(node, told) from None


def _compare(node: Compared, lookup: Lookup) -> bool:
    left, name = _value(node.operands[0], lookup), node.operands[0].text
    for operation, operand in zip(node.operations, node.operands[1:], strict=True):
        right = _value(operand, lookup)
        if not _go_together(operation, left, right):
            told = f"{name} is {shown(left)}, {operand.text} {shown(right)}"
            raise _bad(operand, f"{told}: expected two of a kind")
        if not _COMPARE[operation](left, right):
            return False
        left, name = right, operand.text
    return True


def _field(node: Node, lookup: Lookup) -> Any:
    assert isinstance(node, NamedField)
    try:
        return lookup(node.text)
    except KeyError as error:
        raise _bad(node, f"no field {node.text!r}; {error.args[0]}") from None


def _bad(node: Node, problem: str) -> BadExpression:
    return BadExpression(at_character(node, problem))


def _go_together(operation: Comparison, left: Any, right: Any) -> bool:
    if operation in ("in", "not in"):
        return isinstance(right, list)
    both = (left, right)
    are_numbers = all(isinstance(value, int | float) for value in both)
    are_texts = all(isinstance(value, str) for value in both)
    return are_numbers or are_texts or operation not in _ORDERED
