"""What the page tells of a case, and how it stands in its window."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshwright.sweeps.export import TITLE
from tests.sweeps.page.conftest import Open
from tests.sweeps.page.reading import (
    NARROW,
    WIDE,
    choose_view,
    expect,
    expect_count,
    expect_shown,
    listed,
    row_of,
    sort_button,
)
from tests.sweeps.page.rows import HOSTILE, many, planned, rows

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.mark.slow
def test_html_of_users_is_shown_as_text(page: Page) -> None:
    expect(page.locator("h1")).to_have_text(TITLE)
    assert page.title() == TITLE
    choose_view(page, "Heat map")
    marks = page.locator("#chart .xtick text, #chart .ytick text").all_text_contents()
    assert any(mark.startswith(HOSTILE[2][:12]) for mark in marks), marks
    last = len(rows()) - 1
    for row in (last - 2, last - 1, last):
        row_of(page, row).click()
        expect_shown(page, row)
    expect(page.locator("#details")).to_contain_text(HOSTILE[3])
    page.get_by_label("Filter why no plan").fill(HOSTILE[0])
    expect_count(page, 1)
    assert page.locator("main img, #details script, main a[href*=example]").count() == 0


def test_a_row_shows_plan_memory_and_certificate(page: Page) -> None:
    for i in planned()[:4]:
        row, details = rows()[i], page.locator("#details")
        assert row.plan
        assert row.memory
        assert row.certificate
        row_of(page, i).click()
        expect(details.locator("h2")).to_have_text(row.name)
        expect(details).to_contain_text(f"tp {row.plan.tp} · pp {row.plan.pp}")
        expect(details).to_contain_text(f"{row.certificate.bound_s:.6f} s (gap 0)")
        skeletons = f"{row.certificate.counts.skeletons:,} legal plans"
        expect(details).to_contain_text(skeletons)
        bars = details.locator(".bars").first.locator("dt").all_text_contents()
        assert bars == [name for name, gib in row.memory.parts.items() if gib] + ["all"]
        width = details.locator(".bar .total").evaluate("own => own.style.width")
        share = row.memory.total_gib / row.memory.usable_gib
        assert float(width.removesuffix("%")) == pytest.approx(100 * share, abs=0.01)


def test_a_row_without_a_plan_shows_the_reason(page: Page) -> None:
    infeasible = [
        i for i, row in enumerate(rows()) if row.sentence and "llama3" in row.name
    ]
    assert infeasible
    for i in infeasible:
        row_of(page, i).click()
        details = page.locator("#details")
        expect(details).to_contain_text(rows()[i].sentence)
        expect(details).to_contain_text(", ".join(rows()[i].conflict))
        expect(details.locator(".bars")).to_have_count(0)


@pytest.mark.slow
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_page_is_never_wider_than_its_window(
    size: tuple[int, int], opened: Open
) -> None:
    page = opened(size=size)
    for view in ("Parallel coordinates", "Heat map", "Front"):
        choose_view(page, view)
        row_of(page, planned()[0]).click()
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        expect(page.locator("#details h2")).to_be_in_viewport()


@pytest.mark.slow
def test_five_thousand_cases(opened: Open) -> None:
    count = 5_000
    some = many(count)
    page = opened(some)
    expect_count(page, count, count)
    expect(page.locator("#span")).to_have_text("1 to 100 of 5,000")
    page.get_by_role("button", name="Next").click()
    assert listed(page) == list(range(100, 200))
    page.get_by_label("Filter step_s").fill("<1.01")
    expected = [i for i, row in enumerate(some) if row.step_s and row.step_s < 1.01]
    expect_count(page, len(expected), count)
    assert listed(page) == expected
    page.get_by_label("Filter step_s").fill("")
    expect_count(page, count, count)
    choose_view(page, "Heat map")
    choose_view(page, "Parallel coordinates")
    sort_button(page, "step_s").click()
    steps = [some[i].step_s or 0 for i in listed(page)]
    assert steps == sorted(row.step_s for row in some if row.step_s)[:100]


@pytest.mark.slow
@pytest.mark.parametrize("which", [slice(0), slice(-2, None), slice(1)], ids=str)
def test_few_cases_are_no_trouble(which: slice, opened: Open) -> None:
    some = rows()[which]
    page = opened(some)
    expect_count(page, len(some), len(some))
    for view in ("Parallel coordinates", "Heat map", "Front"):
        choose_view(page, view)
    assert listed(page) == list(range(len(some)))
