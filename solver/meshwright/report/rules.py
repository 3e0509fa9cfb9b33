"""The rules of frameworks as a table, and as data."""

from __future__ import annotations

from typing import Any

from meshwright.plans.rule import ALL, Rule
from meshwright.report.tables import Section, Table


def rule_sections(rules: list[Rule]) -> list[Section]:
    """Return the rules, each with the frameworks that have it and its source."""
    rows = tuple(
        (own.name, own.sentence, _frameworks(own), own.source) for own in rules
    )
    heading = ("rule", "sentence", "frameworks", "source")
    return [Table("Rules that every plan keeps, beside pins and limits", heading, rows)]


def rule_data(rules: list[Rule]) -> list[dict[str, Any]]:
    """Return the rules as JSON has them."""
    return [
        {
            "rule": own.name,
            "sentence": own.sentence,
            "frameworks": list(own.frameworks),
            "source": own.source,
        }
        for own in rules
    ]


def _frameworks(rule: Rule) -> str:
    return "all" if set(rule.frameworks) == set(ALL) else ", ".join(rule.frameworks)
