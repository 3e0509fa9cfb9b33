"""Tables and lines, which every report is made of and every renderer knows."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.plans.rule import BrokenRule


@dataclass(frozen=True)
class Table:
    """A title, a heading and rows of text."""

    title: str
    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Lines:
    """Plain lines under a title."""

    title: str
    lines: tuple[str, ...]


Section = Table | Lines


def seconds_text(seconds: float) -> str:
    """Return seconds with three or four digits."""
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def rule_text(rule: BrokenRule) -> str:
    """Return a broken rule in one line."""
    return f"{rule.rule}: {rule.sentence}{_numbers(rule)}"


def short_rule_text(rule: BrokenRule) -> str:
    """Return a broken rule by its numbers, or its sentence where it has none."""
    return f"{rule.rule}{_numbers(rule)}" if rule.need is not None else rule.sentence


def _numbers(rule: BrokenRule) -> str:
    if rule.need is None or rule.have is None:
        return ""
    numbers = f": needs {rule.need:,.4g}, has {rule.have:,.4g} {rule.unit}".rstrip()
    return f"{numbers} ({rule.where})" if rule.where else numbers
