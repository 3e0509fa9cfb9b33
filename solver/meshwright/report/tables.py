"""Tables and lines, which every report is made of and every renderer knows."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.plans.rule import BrokenRule
from meshwright.results.claims import seconds_text as seconds_text


@dataclass(frozen=True)
class Table:
    """A title, a heading and rows of text."""

    title: str
    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    shares: tuple[float, ...] = ()
    """How full what each row is about is; terminals draw bars of it."""


@dataclass(frozen=True)
class Lines:
    """Plain lines under a title."""

    title: str
    lines: tuple[str, ...]


Section = Table | Lines


def short_rule_text(rule: BrokenRule) -> str:
    """Return a broken rule by its numbers, or its sentence where it has none."""
    return f"{rule.rule}{rule.numbers}" if rule.need is not None else rule.sentence
