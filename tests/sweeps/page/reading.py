"""What a reader does with the page of a search, and sees there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tests.sweeps.page.rows import rows

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

WIDE = (1280, 800)
NARROW = (420, 800)


def expect(locator: Locator) -> Any:
    """Return Playwright's assertions, which wait."""
    from playwright.sync_api import expect

    return expect(locator)


def expect_count(page: Page, count: int, of: int | None = None) -> None:
    """Expect to be told how many cases are shown, by default of all."""
    told = f"{count:,} of {len(rows()) if of is None else of:,} cases"
    expect(page.locator("#count")).to_have_text(told)


def expect_shown(page: Page, row: int) -> None:
    """Expect all there is to say of a row."""
    expect(page.locator("#details h2")).to_have_text(rows()[row].name)
    expect(row_of(page, row)).to_have_attribute("aria-current", "true")


def listed(page: Page) -> list[int]:
    """Return which rows stand in the table, in order."""
    found = page.locator("tbody tr").evaluate_all("all => all.map(e => e.dataset.row)")
    return [int(row) for row in found]


def row_of(page: Page, row: int) -> Locator:
    return page.locator(f"tbody tr[data-row='{row}']")


def sort_button(page: Page, name: str) -> Locator:
    """Return the button of a heading; once it has sorted, an arrow follows the name."""
    return page.locator("thead button").get_by_text(re.compile(rf"^{name}\b"))


def choose_view(page: Page, name: str) -> None:
    page.get_by_label(name, exact=True).check()
    expect(page.locator("#chart .main-svg").first).to_be_visible()


def of_chart(page: Page, what: str) -> Any:
    """Return a part of the chart as it is drawn."""
    return page.evaluate(f"document.getElementById('chart').{what}")
