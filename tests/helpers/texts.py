"""Answers as text."""

from __future__ import annotations

from meshwright.report.screen import full_sections
from meshwright.report.tables import sections_as_text
from meshwright.results.outcome import Outcome


def whole_text(outcome: Outcome) -> str:
    """Return all that there is to say about an outcome, in wide tables."""
    return sections_as_text(full_sections(outcome))
