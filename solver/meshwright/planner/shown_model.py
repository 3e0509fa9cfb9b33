"""Tells the model of rows in words, as `solve --show-model` prints it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from meshwright.planner.integer_costs import CHUNK_BYTES, TICK_S
from meshwright.planner.model import (
    ANY_SPLIT,
    CONSTRAINTS,
    Bools,
    Ints,
    PlanModel,
    Table,
    fit_memory,
    hold_links,
    hold_pins,
    keep_rules,
)
from meshwright.results.outcome_parts import (
    ModelConstraint,
    ModelDecision,
    ModelQuantity,
    SolvedModel,
)
from meshwright.spec.plan_fields import FIELD
from meshwright.spec.units import GIB

LEAVES_OUT: dict[str, Callable[[Table], Bools]] = {
    fit_memory.__name__: Table.over_memory,
    hold_links.__name__: Table.over_links,
    hold_pins.__name__: Table.off_pins,
    keep_rules.__name__: Table.off_rules,
}
"""Which rows a constraint leaves out, by its name."""


def shown_model(model: PlanModel, criteria: Sequence[str]) -> SolvedModel:
    """Return what a model says; `criteria` are those that it minimised in turn."""
    table = model.table
    return SolvedModel(
        rows=len(table),
        decisions=tuple(
            ModelDecision(name=name, values=_values(name, column))
            for name, column in table.decisions.items()
        ),
        quantities=tuple(_quantities(table)),
        constraints=tuple(_constraints(table)),
        objectives=_objectives(table, criteria),
        cuts=model.cuts,
    )


def _objectives(table: Table, criteria: Sequence[str]) -> tuple[str, ...]:
    """Return the quantities that were minimised, first to last."""
    if table.percents is None or not criteria:
        return ("step_s", *criteria)
    return ("step_s", "doubted step_s", *criteria)


def _values(name: str, column: Ints) -> tuple[int | str | bool, ...]:
    codes = np.unique(column).tolist()
    return tuple(FIELD[name].decoded(code) if name in FIELD else code for code in codes)


def _quantities(table: Table) -> Iterator[ModelQuantity]:
    """Yield the quantities of the rows with their ranges."""

    def quantity(name: str, column: Ints, scale: float, unit: str) -> ModelQuantity:
        least, most = float(column.min()) * scale, float(column.max()) * scale
        return ModelQuantity(name=name, least=least, most=most, unit=unit)

    yield quantity("step_s, at least", table.least_ticks[ANY_SPLIT], TICK_S, "s")
    for name, needed in table.memory.items():
        yield quantity(f"memory_gib[{name}]", needed, CHUNK_BYTES / GIB, "GiB")
    for name, ticks in table.busy_ticks.items():
        yield quantity(f"busy_s[{name}]", ticks, TICK_S, "s")
    for name, values in table.criteria.items():
        yield quantity(name, values, 1.0, "")


def _constraints(table: Table) -> Iterator[ModelConstraint]:
    """Yield the constraints, with the rows that each alone leaves out."""
    for constraint in CONSTRAINTS:
        sentence, _, equation = (constraint.__doc__ or "").partition("\n\n")
        name = constraint.__name__
        count = LEAVES_OUT.get(name)
        yield ModelConstraint(
            name=name,
            sentence=sentence.removeprefix("Ensure that ").strip(),
            equation=" ".join(equation.split()),
            leaves_out=int(count(table).sum()) if count else None,
        )
