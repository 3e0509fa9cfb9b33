"""Answers in notebooks, in a browser: the page of an answer, or its text."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import meshwright as mw
from tests.helpers.accessible import grave_violations
from tests.helpers.browsing import OpenFile, watched
from tests.report.pages import PIPELINE, page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Frame, Locator, Page

WIDTHS = (400, 1440)

SPLIT = "llama2-13b-8xa100"


@cache
def answer(kind: str) -> mw.Outcome | mw.ServingOutcome | mw.Comparison:
    if kind == "pipeline":
        return mw.solve(mw.load(PIPELINE, mw.Spec, pins=["pp=2"]), top=3)
    if kind == "compare":
        plans = ["tp=8", "tp=4,pp=2", "zero=3,tp=1,pp=1"]
        return mw.compare(mw.load(SPLIT, mw.Spec), plans)
    return mw.solve(mw.load(kind))


KINDS = (
    *("pipeline", "compare", "llama3-8b-2x4090-pcie"),
    "serve-llama3-8b-1xa100",
)


@pytest.fixture
def open_file(browser: Browser) -> Iterator[OpenFile]:
    with watched(browser) as found:
        yield found


def shown(folder: Path, kind: str, width: int, open_file: OpenFile) -> Page:
    """Return a page with an answer as a notebook puts it between its cells."""
    file = folder / "notebook.html"
    cell = answer(kind)._repr_html_()
    body = f'<main><h1>Notebook</h1><div id="cell">{cell}</div></main>'
    head = '<html lang="en"><meta charset="utf-8"><title>Notebook</title>'
    file.write_text(f"<!doctype html>{head}{body}", encoding="utf-8")
    return open_file(file, (width, 900))


def frame_of(opened: Page) -> Frame:
    inner = opened.frames[1]
    inner.locator("nav a").first.wait_for()
    return inner


def rows(where: Page | Frame, part: str) -> list[str]:
    """Return the heading and rows of the table behind the chart of a part."""
    section: Locator = where.locator(f"section[aria-labelledby={part}]")
    section.locator("summary").first.click()
    section.locator("tbody tr").first.wait_for()
    told: list[str] = section.locator("tr").all_inner_texts()
    return told


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_page_takes_the_place_of_the_text(
    kind: str, width: int, tmp_path: Path, open_file: OpenFile
) -> None:
    opened = shown(tmp_path, kind, width, open_file)
    inner = frame_of(opened)
    assert not opened.locator("#cell pre").is_visible()
    for where in (opened, inner):
        assert where.evaluate("document.documentElement.scrollWidth <= innerWidth")
    outside = inner.evaluate(
        "[...document.querySelectorAll('svg text')].filter(e => "
        "e.getBoundingClientRect().right > innerWidth || "
        "e.getBoundingClientRect().left < 0).map(e => e.textContent)"
    )
    assert outside == []
    high = inner.evaluate("document.documentElement.offsetHeight")
    box = opened.locator("iframe").bounding_box()
    assert box is not None
    assert box["height"] == min(high, 1000)
    assert grave_violations(opened) == []


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_plan_step_and_memory_are_those_of_the_page(
    width: int, tmp_path: Path, open_file: OpenFile
) -> None:
    inner = frame_of(shown(tmp_path, "pipeline", width, open_file))
    file = tmp_path / "page.html"
    file.write_text(page("pipeline"), encoding="utf-8")
    whole = open_file(file, (width, 900))
    for told in ("#verdict", ".facts", "[aria-labelledby=time] figure .chart"):
        first, second = (one.locator(told).first for one in (inner, whole))
        assert first.inner_text() == second.inner_text() != ""
    assert rows(inner, "time") == rows(whole, "time")
    of_notebook, of_page = rows(inner, "memory"), rows(whole, "memory")
    assert len(of_notebook) == len(of_page) > 1
    # The GPU and its memory stand in the spec alone.
    cells = [row.split("\t") for row in of_page]
    names = cells[0]
    unknown = names.index("GPU"), names.index("of the GPU")
    for mine, theirs in zip(of_notebook[1:], cells[1:], strict=True):
        for place in unknown:
            theirs[place] = ""
        assert mine.split("\t") == theirs


@pytest.mark.slow
def test_a_viewer_without_scripts_shows_the_text(
    tmp_path: Path, browser: Browser
) -> None:
    context = browser.new_context(java_script_enabled=False)
    file = tmp_path / "notebook.html"
    file.write_text(answer("pipeline")._repr_html_(), encoding="utf-8")
    opened = context.new_page()
    opened.goto(file.as_uri())
    box = opened.locator("iframe").bounding_box()
    assert box is not None
    assert box["height"] == 0
    told = opened.locator("pre").inner_text()
    assert told.split() == str(answer("pipeline")).split()
    context.close()
