"""The rules of frameworks as a table, and as data."""

from __future__ import annotations

from typing import Any

from meshwright.report.tables import Section, Table
from meshwright.rules.legality import Listed
from meshwright.spec.framework_names import framework_names


def rule_sections(rules: list[Listed]) -> list[Section]:
    """Return the rules, each with the frameworks that have it and its source."""
    rows = tuple(
        (own.rule.name, own.rule.sentence, _frameworks(own), own.rule.source)
        for own in rules
    )
    heading = ("rule", "sentence", "frameworks", "source")
    return [Table("Rules that every plan keeps, beside pins and limits", heading, rows)]


def rule_data(rules: list[Listed]) -> list[dict[str, Any]]:
    """Return the rules as JSON has them."""
    return [
        {
            "rule": own.rule.name,
            "sentence": own.rule.sentence,
            "frameworks": list(own.frameworks),
            "source": own.rule.source,
        }
        for own in rules
    ]


def _frameworks(rule: Listed) -> str:
    is_everyone_s = set(rule.frameworks) == set(framework_names())
    return "all" if is_everyone_s else ", ".join(rule.frameworks)
