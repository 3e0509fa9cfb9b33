"""The map of all plans on a page: its dots, by pointer and by keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from meshwright.results.claims import seconds_text
from tests.helpers.browsing import OpenFile, watched
from tests.report.pages import (
    COMPARED,
    EXPLAINED,
    MIXED,
    NONE_FITS,
    RINGS,
    SIMULATED,
    SOLVED,
    data_of,
    page,
    written,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

WIDE = (1280, 900)


@pytest.fixture
def open_file(browser: Browser) -> Iterator[OpenFile]:
    with watched(browser) as found:
        yield found


def said(opened: Page) -> str:
    return opened.locator("#map-said").text_content() or ""


def drawn(opened: Page) -> Locator:
    return opened.locator("[aria-labelledby=map] circle[data-state]")


def chart(opened: Page) -> Locator:
    return opened.locator("[aria-labelledby=map] .chart")


@pytest.mark.slow
@pytest.mark.parametrize("name", [SOLVED, MIXED, RINGS, EXPLAINED, NONE_FITS])
def test_every_dot_is_drawn(name: str, tmp_path: Path, open_file: OpenFile) -> None:
    opened = open_file(written(name, tmp_path), WIDE)
    data: dict[str, Any] = data_of(page(name))["map"]
    for state in ("best", "near", "slower", "memory"):
        count = sum(dot[0] == state for dot in data["dots"])
        found = opened.locator(f"[aria-labelledby=map] circle[data-state={state}]")
        assert found.count() == count
    assert f"{len(data['dots']):,} of {len(data['dots']):,} dots" in said(opened)
    refused = opened.locator("[aria-labelledby=map] circle[data-state=refused]")
    assert (refused.count() > 0) == bool(data["refusals"])


@pytest.mark.parametrize("name", [COMPARED, SIMULATED])
def test_what_was_not_searched_has_no_map(name: str) -> None:
    assert "map" not in data_of(page(name))


@pytest.mark.slow
def test_a_dot_is_told_by_pointer(tmp_path: Path, open_file: OpenFile) -> None:
    opened = open_file(written(SOLVED, tmp_path), WIDE)
    opened.locator("[aria-labelledby=map] circle[data-state=best]").hover()
    told = said(opened)
    data = data_of(page(SOLVED))
    assert "the recommended plan" in told
    assert "at least" not in told, "its time is exact"
    assert seconds_text(data["plans"][0]["stepS"]) in told
    opened.locator("[aria-labelledby=map] circle[data-state=memory]").last.hover()
    assert "does not fit in memory; at least" in said(opened)


@pytest.mark.slow
def test_keys_walk_the_dots(tmp_path: Path, open_file: OpenFile) -> None:
    opened = open_file(written(SOLVED, tmp_path), WIDE)
    chart(opened).focus()
    opened.keyboard.press("Home")
    assert "the recommended plan" in said(opened)
    met = {said(opened)}
    for _ in range(5):
        opened.keyboard.press("ArrowRight")
        met.add(said(opened))
    assert len(met) == 6, "each key goes to another dot"
    ring = opened.locator("[aria-labelledby=map] circle[fill=none]")
    assert ring.count() == 1


@pytest.mark.slow
def test_dots_are_chosen_by_degrees(tmp_path: Path, open_file: OpenFile) -> None:
    opened = open_file(written(SOLVED, tmp_path), WIDE)
    data = data_of(page(SOLVED))["map"]
    before = drawn(opened).count()
    opened.locator("#map-tp").select_option("2")
    column = 6 + data["fields"].index("tp")
    count = sum(dot[column] == 2 for dot in data["dots"])
    assert drawn(opened).count() == count < before
    assert said(opened).startswith(f"{count:,} of ")
    opened.locator("#map-tp").select_option("all")
    opened.get_by_role("button", name="Up to 1.5 x the recommended plan").click()
    most_s = 1.5 * next(dot[1] for dot in data["dots"] if dot[0] == "best")
    near = sum(dot[1] <= most_s for dot in data["dots"])
    # Degrees that a rule refuses have no step time, and stay.
    refused = sum(len(one["examples"]) for one in data["refusals"])
    assert drawn(opened).count() == near + refused < before


def test_what_is_told_says_what_dots_stand_for() -> None:
    data = data_of(page(SOLVED))["map"]
    assert data["told"][0] == (
        f"Each of the {len(data['dots']):,} dots is a legal plan; its layers are split "
        "as is best."
    )
    assert len(page("explain gpt-1.3b-2xh100-nvlink").encode()) < 400_000
