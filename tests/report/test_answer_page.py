"""Pages of answers, opened in a browser: charts, keys, sizes, print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import cycle, pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from tests.helpers.accessible import grave_violations
from tests.helpers.browsing import OpenFile, watched
from tests.helpers.extent import gate
from tests.report.pages import (
    COMPARED,
    EXPLAINED,
    NONE_FITS,
    PAGES,
    SIMULATED,
    SOLVED,
    data_of,
    page,
    written,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

WIDE, NARROW, A4 = (1280, 900), (390, 800), (690, 1000)

SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")

each_page = pytest.mark.parametrize("name", PAGES)


@pytest.fixture
def open_file(browser: Browser) -> Iterator[OpenFile]:
    with watched(browser) as found:
        yield found


def parts(page: Page) -> list[str]:
    """Return the parts of a page, by the ids of their headings."""
    found: list[str] = page.locator("h2").evaluate_all("all => all.map(e => e.id)")
    return found


@pytest.mark.slow
@each_page
def test_every_chart_is_drawn_and_has_its_data(
    name: str, tmp_path: Path, open_file: OpenFile
) -> None:
    opened = open_file(written(name, tmp_path), WIDE)
    figures = opened.locator("figure")
    assert figures.count() >= 5
    for figure in figures.all():
        marks = figure.locator("svg rect, svg path, svg circle, svg line")
        assert marks.count() > 2
        figure.locator("summary").click()
        rows = figure.locator("details tbody tr")
        rows.first.wait_for(state="attached")
        assert figure.locator("details thead th").count() >= 3
        label = figure.locator(".chart").get_attribute("aria-label")
        assert label
        assert label in (figure.locator("summary").text_content() or "")


@pytest.mark.slow
def test_parts_follow_the_answer(tmp_path: Path, open_file: OpenFile) -> None:
    drawn = ["plan", "time", "timeline", "memory", "mesh", "links"]
    solved = parts(open_file(written(SOLVED, tmp_path), WIDE))
    assert solved == [*drawn, "near", "map", "choices", "safety", "proof"]
    explained = parts(open_file(written(EXPLAINED, tmp_path), WIDE))
    assert explained == [*drawn, "near", "worth", "map", "why", "proof"]
    none_fits = parts(open_file(written(NONE_FITS, tmp_path), WIDE))
    assert none_fits == ["map", "why", *drawn], "reasons before the nearest miss"
    compared = parts(open_file(written(COMPARED, tmp_path), WIDE))
    assert compared == ["side", *drawn, "near", "compared"]
    simulated = parts(open_file(written(SIMULATED, tmp_path), WIDE))
    assert simulated == ["steps", *drawn, "simulated"]


@pytest.mark.slow
@each_page
@pytest.mark.parametrize("size", [WIDE, NARROW, A4])
def test_nothing_reaches_beyond_the_page(
    name: str, size: tuple[int, int], tmp_path: Path, open_file: OpenFile
) -> None:
    opened = open_file(written(name, tmp_path), size)
    if size == A4:
        opened.emulate_media(media="print")
        assert not opened.locator("nav").is_visible()
        assert not opened.locator(".controls").first.is_visible()
    width = opened.evaluate("document.documentElement.scrollWidth")
    assert width <= size[0]
    # Drawings keep within their box: only titles of axes may hang over by a letter.
    outside = opened.evaluate(
        "[...document.querySelectorAll('svg text')].filter(e => "
        "e.getBoundingClientRect().right > innerWidth || "
        "e.getBoundingClientRect().left < 0).map(e => e.textContent)"
    )
    assert outside == []


@pytest.mark.slow
@each_page
def test_everything_has_a_name(name: str, tmp_path: Path, open_file: OpenFile) -> None:
    opened = open_file(written(name, tmp_path), WIDE)
    nameless = opened.evaluate(
        "[...document.querySelectorAll('button, select, [role=img], [role=group], "
        "[role=region], pre')].filter(e => !(e.getAttribute('aria-label') || "
        "e.textContent.trim() && e.tagName === 'BUTTON' || e.labels?.length))"
        ".map(e => e.outerHTML.slice(0, 80))"
    )
    assert nameless == []
    ids = opened.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    levels = opened.evaluate(
        "[...document.querySelectorAll('h1, h2, h3')].map(e => Number(e.tagName[1]))"
    )
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    described = opened.evaluate(
        "[...document.querySelectorAll('[aria-describedby], [aria-labelledby]')]"
        ".every(e => document.getElementById(e.getAttribute('aria-describedby') ?? "
        "e.getAttribute('aria-labelledby')))"
    )
    assert described


LOOKED_AT = gate(
    [*zip(PAGES, cycle(SCHEMES), strict=False)],
    everything=[*product(PAGES, SCHEMES)],
)
"""Pages with the colours in which axe-core looks at them: in the gate one each."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "scheme"), LOOKED_AT)
def test_nothing_keeps_people_from_it(
    name: str, scheme: Literal["light", "dark"], tmp_path: Path, open_file: OpenFile
) -> None:
    opened = open_file(written(name, tmp_path), WIDE)
    opened.emulate_media(color_scheme=scheme)
    for told in opened.locator("summary").all():
        told.click()
    assert grave_violations(opened) == []


@pytest.mark.slow
def test_keys_reach_everything_in_order(tmp_path: Path, open_file: OpenFile) -> None:
    opened = open_file(written(COMPARED, tmp_path), WIDE)
    wanted = opened.evaluate(
        "[...document.querySelectorAll('a[href], button, select, summary, input, "
        '[tabindex="0"]\')].filter(e => e.checkVisibility()).length'
    )
    opened.evaluate("window.places = []")
    for _ in range(wanted):
        opened.keyboard.press("Tab")
        opened.evaluate(
            "(() => { const all = [...document.querySelectorAll('*')];"
            "places.push(all.indexOf(document.activeElement)); })()"
        )
    places: list[int] = opened.evaluate("places")
    assert places == sorted(places), "in the order of the page"
    assert len(set(places)) == wanted


@pytest.mark.slow
def test_keys_zoom_and_walk_the_timeline(tmp_path: Path, open_file: OpenFile) -> None:
    opened = open_file(written("pipeline", tmp_path), WIDE)
    chart = opened.locator("[aria-labelledby=timeline] .chart").first
    told = opened.locator("[aria-labelledby=timeline] [role=status]")
    whole = chart.locator("path[data-work=forward]").get_attribute("d")
    chart.focus()
    opened.keyboard.press("+")
    assert chart.locator("path[data-work=forward]").get_attribute("d") != whole
    opened.keyboard.press("0")
    assert chart.locator("path[data-work=forward]").get_attribute("d") == whole
    opened.keyboard.press("ArrowRight")
    assert (told.text_content() or "").startswith("stage 0: forward of micro-batch 0")
    opened.keyboard.press("ArrowDown")
    assert (told.text_content() or "").startswith("stage 1: forward of micro-batch 0")
    box = chart.bounding_box()
    assert box is not None
    opened.mouse.move(box["x"] + box["width"] / 2, box["y"] + 12)
    assert (told.text_content() or "").startswith("stage 0: ")


@pytest.mark.slow
def test_the_step_is_played(tmp_path: Path, open_file: OpenFile) -> None:
    opened = open_file(written(SIMULATED, tmp_path), WIDE)
    part = opened.locator("[aria-labelledby=timeline]")
    told, clocks = part.locator("output"), part.locator("line.clock")
    assert clocks.count() == 0
    part.get_by_role("button", name="Play the step").click()
    from playwright.sync_api import expect

    expect(part.locator("input")).not_to_have_value("0")
    part.get_by_role("button", name="Pause").click()
    assert clocks.count() == 2, "on the timeline and on the memory"
    at = clocks.evaluate_all("all => all.map(e => e.getAttribute('x1'))")
    assert at[0] == at[1]
    assert re.search(r"[012] of 2 stages work; stage \d holds most, ", _text(told))
    part.locator("input").focus()
    opened.keyboard.press("End")
    timeline = data_of(page(SIMULATED))["plans"][0]["timeline"]
    end_s = f"{timeline['stepS']:.2f} s" if timeline["stepS"] >= 1 else None
    assert end_s is None or _text(told).startswith(end_s)
    assert "0 of 2 stages work" in _text(told)


def _text(locator: Locator) -> str:
    return locator.text_content() or ""


@pytest.mark.slow
def test_the_clock_keeps_its_place_when_zoomed(
    tmp_path: Path, open_file: OpenFile
) -> None:
    opened = open_file(written("pod", tmp_path), WIDE)
    part = opened.locator("[aria-labelledby=timeline]")
    part.locator("input").focus()
    opened.keyboard.press("ArrowRight")
    before = part.locator("output").text_content()
    part.get_by_role("button", name="Show the start of the step").click()
    assert part.locator("line.clock").count() == 2
    assert part.locator("output").text_content() == before
    part.get_by_role("button", name="Show the end of the step").click()
    assert part.locator("line.clock").count() == 0, "it is at the start"


@pytest.mark.slow
def test_another_gpu_talks_to_others(tmp_path: Path, open_file: OpenFile) -> None:
    opened = open_file(written("pod", tmp_path), WIDE)
    mesh = opened.locator("[aria-labelledby=mesh]")
    assert "Rank 0 talks to:" in (mesh.locator("ul.lines").text_content() or "")
    mesh.locator("[data-rank='1024']").click()
    told = mesh.locator("ul.lines").text_content() or ""
    assert "Rank 1,024 talks to:" in told
    assert "rank" in told.partition("pp (16")[2]


@pytest.mark.slow
def test_links_of_one_phase_are_lit(tmp_path: Path, open_file: OpenFile) -> None:
    opened = open_file(written("pod", tmp_path), WIDE)
    links = opened.locator("[aria-labelledby=links]")
    lit = links.locator("[data-bottleneck]")
    assert lit.count() >= 1
    links.locator("select").select_option("tp")
    tips = lit.locator("title").all_text_contents()
    assert tips
    assert all(tip.startswith("gpu") for tip in tips)
    assert "gpu0 -> nvlink0" in (links.locator("p[role=status]").text_content() or "")


@pytest.mark.slow
def test_the_plan_that_is_chosen_is_drawn(tmp_path: Path, open_file: OpenFile) -> None:
    opened = open_file(written(COMPARED, tmp_path), WIDE)
    first = opened.locator("[aria-labelledby=plan]").text_content()
    opened.get_by_label("Draw the plan").select_option(index=2)
    assert opened.locator("[aria-labelledby=plan]").text_content() != first
    names: list[Any] = data_of(page(COMPARED))["plans"]
    label = opened.locator("[aria-labelledby=time] .chart").get_attribute("aria-label")
    assert label == f"Step time by part of {names[2]['name']}"


@pytest.mark.slow
@each_page
def test_pages_are_small_and_load_nothing(name: str) -> None:
    assert len(page(name).encode()) < 400_000
    assert "unsafe-eval" not in page(name)
    loads = r"(src|href)=.?http|url\(|@import|fetch\(|XMLHttpRequest|WebSocket"
    assert not re.search(loads, page(name))
