"""The rules of frameworks as a table, and as data."""

from __future__ import annotations

from typing import Any

from meshwright.report.tables import Section, Table
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
