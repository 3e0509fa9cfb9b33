"""Answers in notebooks: the page of an answer in a frame, and its text where none is.

The frame holds what an answer knows without its spec: no timeline, mesh, links or map.
It takes the place of the text once its script runs: some viewers run no scripts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.escape import in_html, printable_lines
from meshwright.report.pages.answer import (
    Told,
    outcome_of,
    page_of,
    priced_plans,
    serving_plan_data,
    serving_told,
    told_data,
    told_of,
)
from meshwright.report.pages.plan_data import priced_data
from meshwright.report.screen import COLUMNS, screen_text, whole_sections
from meshwright.report.tables import Lines, Section, sections_as_text
from meshwright.results.comparison import Comparison
from meshwright.results.explanation import Explanation
from meshwright.results.outcome import Outcome
from meshwright.results.result import Result
from meshwright.results.serving import ServingExplanation, ServingOutcome
from meshwright.results.simulation import Simulation

CHARTS = ("figure", "memory", "waterfall", "worth", "histogram", "answer")
"""Scripts that draw an answer in a notebook, in the order in which they run."""

TEXT = '<pre style="overflow: auto; line-height: 1.3">{}</pre>'

FRAME = (
    '<iframe title="{}" srcdoc="{}" '
    'style="width: 100%; height: 0; max-height: 1000px; border: 0"></iframe>'
)
"""Its script makes it as high as the page, which scrolls where that is higher."""


def notebook_html(answer: Result) -> str:
    """Return an answer as notebooks show it."""
    return _framed(screen_text(answer), _data(answer))


def sections_html(sections: Sequence[Section]) -> str:
    """Return sections as notebooks show them."""
    text = sections_as_text(list(sections), COLUMNS)
    return _framed(text, told_data(_told(sections), ()))


def _framed(text: str, data: dict[str, Any]) -> str:
    page = page_of(data, CHARTS)
    text = TEXT.format(in_html(printable_lines(text)))
    return f"<div>{text}{FRAME.format(in_html(data['title']), in_html(page))}</div>"


def _data(answer: Result) -> dict[str, Any]:
    """Return the page's data for an answer alone."""
    if isinstance(answer, ServingOutcome | ServingExplanation):
        best = outcome_of(answer).best
        plans = [] if best is None else [serving_plan_data(best)]
        return told_data(serving_told(answer), plans)
    if isinstance(answer, Simulation):
        return told_data(told_of(answer), ())
    if isinstance(answer, Outcome | Explanation | Comparison):
        drawn = [priced_data(*named) for named in priced_plans(answer)]
        return told_data(told_of(answer), drawn)
    return told_data(_told(whole_sections(answer)), ())


def _told(sections: Sequence[Section]) -> Told:
    """Return sections as a page tells them: the lines of the first on top."""
    first, *others = sections
    told, rest = (first.lines, others) if isinstance(first, Lines) else ((), sections)
    return Told(first.title, told, [("whole", "The answer in full", rest)])
