"""Writes an answer as one HTML page that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from meshwright.report.answer_page.answers import Told
from meshwright.report.answer_page.map_data import map_data
from meshwright.report.answer_page.plan_data import plan_data
from meshwright.report.html_page import STRICT_POLICY, filled_page
from meshwright.report.tables import Section, Table
from meshwright.results.lattice_map import LatticeMap
from meshwright.results.timeline import DrawnPlan

FILES = Path(__file__).with_name("files")

CHARTS = (
    *("dom", "figure", "memory", "waterfall", "timeline", "playback"),
    *("cluster", "mesh", "near", "worth", "histogram", "map", "answer"),
)
"""Scripts that draw an answer, in the order in which a page runs them."""

SCRIPTS = (*CHARTS, "page")
"""Scripts of the page."""

MOST_SPANS = 4_000
"""Most tasks that the timelines of a page draw, of all its plans together."""


def answer_page(
    told: Told, plans: Sequence[DrawnPlan], lattice: LatticeMap | None = None
) -> str:
    """Return the page of an answer: what is told of it, its plans, and its lattice."""
    data = answer_data(told, plans)
    if lattice is not None:
        data["map"] = map_data(lattice)
    return page_of(data)


def page_of(data: dict[str, Any]) -> str:
    """Return the page that draws some data."""
    return filled_page(
        file_text("page.html"),
        data["title"],
        to_json(data, inf_nan_mode="null").decode(),
        [file_text(f"{name}.js") for name in SCRIPTS],
        file_text("page.css"),
        STRICT_POLICY,
    )


def answer_data(told: Told, plans: Sequence[DrawnPlan]) -> dict[str, Any]:
    """Return the data that the scripts of the page draw."""
    each = MOST_SPANS // max(len(plans), 1)
    drawn = [plan_data(plan, i, each) for i, plan in enumerate(plans)]
    return told_data(told, drawn)


def told_data(told: Told, drawn: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what is told of an answer, with the data of its plans."""
    return {
        "title": told.title,
        "verdict": [line.strip() for line in told.verdict],
        "isComparison": told.is_comparison,
        "plans": drawn,
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


def _section(section: Section) -> dict[str, Any]:
    if isinstance(section, Table):
        table = {"heading": section.heading, "rows": section.rows}
        return {"title": section.title, **table}
    return {"title": section.title, "lines": section.lines}


def file_text(name: str) -> str:
    """Return the text of a file of the page."""
    return (FILES / name).read_text(encoding="utf-8")
