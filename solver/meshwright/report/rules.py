"""The rules of frameworks as a table, and as data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwright.report.tables import Lines, Section, Table
from meshwright.results.outcome_parts import ModelDecision, SolvedModel
from meshwright.rules.legality import Listed
from meshwright.spec.spec import framework_names


def rule_sections(rules: list[Listed]) -> list[Section]:
    """Return a table of the rules with their frameworks and sources."""
    rows = tuple(
        (
            listed.rule.name,
            listed.rule.sentence,
            _frameworks(listed),
            listed.rule.source,
            listed.rule.fails_with,
        )
        for listed in rules
    )
    heading = ("rule", "sentence", "frameworks", "source", "the framework says")
    return [Table("Rules that every plan keeps, beside pins and limits", heading, rows)]


def rule_data(rules: list[Listed]) -> list[dict[str, Any]]:
    """Return the rules as data for JSON."""
    return [
        {
            "rule": listed.rule.name,
            "sentence": listed.rule.sentence,
            "frameworks": list(listed.frameworks),
            "source": listed.rule.source,
            "fails_with": listed.rule.fails_with,
        }
        for listed in rules
    ]


def _frameworks(rule: Listed) -> str:
    is_everyone_s = set(rule.frameworks) == set(framework_names())
    return "all" if is_everyone_s else ", ".join(rule.frameworks)


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
    decisions = [(part.name, _values(part)) for part in model.decisions]
    yield Table("Decisions", ("variable", "values in the rows"), tuple(decisions))
    ranges = [
        (part.name, f"{part.least:,.6g}", f"{part.most:,.6g}", part.unit)
        for part in model.quantities
    ]
    heading = ("variable", "least", "most", "unit")
    yield Table("Quantities", heading, tuple(ranges))
    rules = [
        (part.name, part.sentence, part.equation, _count(part.leaves_out))
        for part in model.constraints
    ]
    heading = ("constraint", "ensures that", "equation", "rows out")
    yield Table("Constraints", heading, tuple(rules))


def _values(decision: ModelDecision) -> str:
    shown = [str(value).lower() or "none" for value in decision.values[:MOST_VALUES]]
    more = len(decision.values) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _count(rows: int | None) -> str:
    return "" if rows is None else f"{rows:,}"
