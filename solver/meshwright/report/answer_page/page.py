"""Writes an answer as one HTML page that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from meshwright.report.answer_page.answers import Told
from meshwright.report.answer_page.plan_data import plan_data
from meshwright.report.html_page import STRICT_POLICY, filled_page
from meshwright.report.tables import Section, Table
from meshwright.results.drawn_plan import DrawnPlan

FILES = Path(__file__).with_name("files")

SCRIPTS = (
    *("dom", "figure", "memory", "waterfall", "timeline", "playback"),
    *("cluster", "mesh", "near", "worth", "histogram", "page"),
)
"""Scripts in the order in which the page runs them."""

MOST_SPANS = 4_000
"""Most tasks that the timelines of a page draw, of all its plans together."""


def answer_page(told: Told, plans: Sequence[DrawnPlan]) -> str:
    """Return the page of an answer: what is told of it, and its plans, drawn."""
    each = MOST_SPANS // max(len(plans), 1)
    data = {
        "verdict": [line.strip() for line in told.verdict],
        "isComparison": told.is_comparison,
        "plans": [plan_data(plan, i, each) for i, plan in enumerate(plans)],
        "hasPlan": told.has_plan,
        "risk": told.risk,
        "near": told.near,
        "worth": told.worth,
        "histogram": told.histogram,
        "sections": [
            {"id": id_, "title": title, "sections": list(map(_section, sections))}
            for id_, title, sections in told.groups
            if sections
        ],
    }
    return filled_page(
        _file("page.html"),
        told.title,
        to_json(data, inf_nan_mode="null").decode(),
        [_file(f"{name}.js") for name in SCRIPTS],
        _file("page.css"),
        STRICT_POLICY,
    )


def _section(section: Section) -> dict[str, Any]:
    if isinstance(section, Table):
        table = {"heading": section.heading, "rows": section.rows}
        return {"title": section.title, **table}
    return {"title": section.title, "lines": section.lines}


def _file(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")
