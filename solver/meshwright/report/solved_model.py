"""The model that CP-SAT solved, as tables: `solve --show-model`."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.report.tables import Lines, Section, Table
from meshwright.results.outcome_parts import ModelDecision, SolvedModel

MOST_VALUES = 12
"""Values of a decision that are written out."""


def model_sections(model: SolvedModel | None) -> Iterator[Section]:
    """Yield the rows, variables, constraints and objectives of a model."""
    if model is None:
        return
    yield Lines(
        "The model that was solved",
        (
            f"{model.rows:,} rows, each one complete set of decisions; CP-SAT chooses "
            "one.",
            "The layers of a row are split over its stages apart, exactly; "
            f"{model.cuts:,} such results came back as cuts on the step.",
            f"Minimised, in this order: {', '.join(model.objectives)}.",
        ),
    )
    decisions = [(own.name, _values(own)) for own in model.decisions]
    yield Table("Decisions", ("variable", "values in the rows"), tuple(decisions))
    ranges = [
        (own.name, f"{own.least:,.6g}", f"{own.most:,.6g}", own.unit)
        for own in model.quantities
    ]
    heading = ("variable", "least", "most", "unit")
    yield Table("Quantities", heading, tuple(ranges))
    rules = [
        (own.name, own.sentence, own.equation, _count(own.leaves_out))
        for own in model.constraints
    ]
    heading = ("constraint", "ensures that", "equation", "rows out")
    yield Table("Constraints", heading, tuple(rules))


def _values(decision: ModelDecision) -> str:
    shown = [str(value).lower() or "none" for value in decision.values[:MOST_VALUES]]
    more = len(decision.values) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _count(rows: int | None) -> str:
    return "" if rows is None else f"{rows:,}"
