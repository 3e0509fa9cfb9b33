"""The rules of frameworks as a table, and as data."""

from __future__ import annotations

from typing import Any

from meshwright.plans.rule import ALL, Rule
from meshwright.report.tables import Section, Table


def rule_sections(rules: list[Rule]) -> list[Section]:
    """Return a table of the rules with their frameworks and sources."""
    rows = tuple(
        (rule.name, rule.sentence, _frameworks(rule), rule.source) for rule in rules
    )
    heading = ("rule", "sentence", "frameworks", "source")
    return [Table("Rules that every plan keeps, beside pins and limits", heading, rows)]


def rule_data(rules: list[Rule]) -> list[dict[str, Any]]:
    """Return the rules as data for JSON."""
    return [
        {
            "rule": rule.name,
            "sentence": rule.sentence,
            "frameworks": list(rule.frameworks),
            "source": rule.source,
        }
        for rule in rules
    ]


def _frameworks(rule: Rule) -> str:
    return "all" if set(rule.frameworks) == set(ALL) else ", ".join(rule.frameworks)
