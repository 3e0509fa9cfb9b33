"""The plans that are hardly slower than the fastest, as lines and a table."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.report.tables import Lines, Section, Table
from meshwright.results.outcome_parts import DecisionCost, NearDecision, NearPlans
from meshwright.spec.plan_fields import FIELD, Value

FEW = 3
"""Most values of a decision that are listed in a line; the table has all."""


def near_sections(near: NearPlans | None) -> Iterator[Section]:
    """Yield how many plans are near, what they share, and what the rest costs."""
    if near is None:
        return
    title = f"All plans within {near.within:.2%} of the fastest"
    yield Lines(title, tuple(_lines(near)))
    free = [own for own in near.decisions if not own.is_shared]
    if free:
        rows = tuple((own.name, *_cells(own)) for own in free)
        heading = ("decision", "value: loss of the fastest plan with it, and plans")
        yield Table("What is left to choose among them", heading, rows)


def cost_sections(
    costs: tuple[DecisionCost, ...], near: NearPlans | None
) -> Iterator[Section]:
    """Yield what the decisions of a plan cost that is not the fastest."""
    if near is None:
        return
    names = {own.name: own for own in near.decisions}
    told = [own for own in costs if own.loss is None or own.loss > 0]
    told.sort(key=lambda own: -(own.loss or near.within))
    rows = tuple(
        (
            f"{own.name} {_word(own.name, own.value)}",
            f"more than {near.within:.2%}" if own.loss is None else f"{own.loss:+.2%}",
            _choice(names[own.name]),
        )
        for own in told
    )
    if rows:
        title = f"What its decisions cost, by all plans within {near.within:.2%}"
        yield Table(title, ("decision", "costs", "those have"), rows)


def _lines(near: NearPlans) -> Iterator[str]:
    proven = "proven" if near.is_proven else "not proven: there may be more"
    plans = "plan" if near.count == 1 else "plans"
    yield f"{near.count:,} {plans}, meshes and splits of layers aside ({proven})."
    shared = [own for own in near.decisions if own.is_shared and _says_much(own)]
    free = [own for own in near.decisions if not own.is_shared]
    said = ", ".join(f"{own.name} {_value(own, 0)}" for own in shared)
    yield f"All: {said}." if said else "They share no decision that is not plain."
    if free:
        yield "; ".join(f"{own.name} {_choice(own)}" for own in free) + "."


def _says_much(own: NearDecision) -> bool:
    """Return whether a shared decision is not at its plainest."""
    return own.values[0].value != FIELD[own.name].plain


def _choice(own: NearDecision) -> str:
    """Return the values of a decision, or that it is free where there are many."""
    if len(own.values) > FEW:
        return "free"
    values = [_value(own, index) for index in range(len(own.values))]
    if len(values) == 1:
        return values[0]
    if not FIELD[own.name].words:
        values.sort(key=lambda value: (len(value), value))
    return ", ".join(values[:-1]) + " or " + values[-1]


def _value(own: NearDecision, index: int) -> str:
    return _word(own.name, own.values[index].value)


def _word(name: str, value: Value) -> str:
    """Return a value as a user would write it."""
    field = FIELD[name]
    return str(value if field.words else field.dtype(value)).lower() or "-"


def _cells(own: NearDecision) -> tuple[str]:
    cells = (
        f"{_value(own, index)}: {value.loss:+.2%} ({value.plans:,})"
        for index, value in enumerate(own.values)
    )
    return (" · ".join(cells),)
