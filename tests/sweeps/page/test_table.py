"""The table of the page: every case, filters, order, and the keyboard."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from meshwright.sweeps.cases import Row
from meshwright.sweeps.metrics import METRICS
from tests.sweeps.page.conftest import Open
from tests.sweeps.page.reading import (
    expect,
    expect_count,
    expect_shown,
    listed,
    sort_button,
)
from tests.sweeps.page.rows import many, rows

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.mark.slow
def test_every_case_has_a_row(page: Page) -> None:
    expect_count(page, len(rows()))
    assert listed(page) == list(range(len(rows())))
    names = page.locator("tbody th button").all_text_contents()
    assert names == [row.name for row in rows()]


def near(field: str, low: float, high: float) -> Callable[[Row], bool]:
    """Return whether a row has a metric from `low` to `high`."""

    def holds(row: Row) -> bool:
        value = getattr(row, field)
        return value is not None and low <= value <= high

    return holds


FILTERS: list[tuple[str, str, Callable[[Row], bool]]] = [
    ("case", "ON 2xH100", lambda row: "on 2xh100" in row.name),
    ("model", "!gpt", lambda row: "gpt" not in str(row.axes["model"])),
    ("model", "=gpt2-xl", lambda row: row.axes["model"] == "gpt2-xl"),
    ("pinned", "true", lambda row: row.axes["pinned"] is True),
    ("peak_gib", ">= 30", near("peak_gib", 30, math.inf)),
    ("peak_gib", ">20 <60", near("peak_gib", 20, 60)),
    ("tokens_per_s", "<10,000", near("tokens_per_s", 0, 10_000)),
    ("tokens_per_s", "5e3..2e4", near("tokens_per_s", 5e3, 2e4)),
    ("headroom_gib", "..5", near("headroom_gib", 0, 5)),
    ("pp", "2", lambda row: row.plan is not None and row.plan.pp == 2),
    ("pp", "!=2", lambda row: row.plan is not None and row.plan.pp != 2),
    ("why no plan", "memory", lambda row: any("memory" in one for one in row.conflict)),
]


@pytest.mark.parametrize(("name", "text", "holds"), FILTERS)
def test_filter_of_a_column(
    name: str, text: str, holds: Callable[[Row], bool], page: Page
) -> None:
    passing = [i for i, row in enumerate(rows()) if holds(row)]
    assert 0 < len(passing) < len(rows()), "the filter tells rows apart"
    page.get_by_label(f"Filter {name}", exact=True).fill(text)
    expect_count(page, len(passing))
    assert listed(page) == passing


@pytest.mark.parametrize("text", ["abc", ">", "1..2..3", "..", "> 5 x", "=="])
def test_filter_that_says_nothing_is_marked(text: str, page: Page) -> None:
    field = page.get_by_label("Filter step_s")
    field.fill("<0")
    expect_count(page, 0)
    field.fill(text)
    expect(field).to_have_attribute("aria-invalid", "true")
    expect_count(page, len(rows()))


def test_words_and_statuses_filter_together(page: Page) -> None:
    page.get_by_label("Find").fill("2x4090 gpt2")
    expected = [
        i for i, row in enumerate(rows()) if "gpt2" in row.name and "4090" in row.name
    ]
    expect_count(page, len(expected))
    assert listed(page) == expected
    page.get_by_label("Find").fill("llama3")
    page.locator("#statuses input[value=optimal]").uncheck()
    expected = [
        i for i, row in enumerate(rows()) if "llama3" in row.name and not row.plan
    ]
    expect_count(page, len(expected))
    assert listed(page) == expected
    page.get_by_role("button", name="Reset", exact=True).click()
    expect_count(page, len(rows()))
    assert listed(page) == list(range(len(rows())))


@pytest.mark.parametrize("name", ["tokens_per_s", "step_s"])
def test_sorting_puts_the_best_first_and_the_unknown_last(
    name: str, page: Page
) -> None:
    values = [getattr(row, name) for row in rows()]
    order = {i: value for i, value in enumerate(values) if value is not None}
    unknown = [i for i in range(len(rows())) if i not in order]
    is_up = METRICS[name].better == "min"
    button = sort_button(page, name)
    for up in (is_up, not is_up):
        button.click()
        sign = 1 if up else -1
        known = sorted(order, key=lambda i: (sign * order[i], i))
        assert listed(page) == known + unknown
        told = "ascending" if up else "descending"
        heading = page.locator("thead th[aria-sort]:not([aria-sort=none])")
        expect(heading).to_have_attribute("aria-sort", told)


@pytest.mark.slow
def test_text_is_sorted_as_people_do(opened: Open) -> None:
    page = opened(many(25))
    sort_button(page, "case").click()
    assert listed(page) == list(range(25)), "case 2 comes before case 10"


@pytest.mark.slow
def test_all_can_be_done_by_keyboard(page: Page) -> None:
    page.get_by_label("Front", exact=True).focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_label("Parallel coordinates")).to_be_checked()
    page.get_by_label("Filter case").focus()
    page.keyboard.type("gpt2-xl on 2xa100")
    expected = [i for i, row in enumerate(rows()) if "gpt2-xl on 2xa100" in row.name]
    expect_count(page, len(expected))
    page.locator("tbody th button").first.focus()
    page.keyboard.press("Enter")
    expect_shown(page, expected[0])
    page.locator("#details summary").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#details pre")).to_contain_text('"micro_batch"')
