"""The page in a browser: charts, sliders, repairs, keys, sizes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from zipfile import ZipFile

import pytest

from tests.helpers.accessible import grave_violations
from tests.helpers.browsing import OpenAddress, visiting
from tests.helpers.extent import gate

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WIDE, NARROW = (1280, 900), (390, 800)

PROVEN = "#status:has-text('Proven')"
SMALL = (
    "?model=gpt-1.3b&cluster.topology=dgx-h100&cluster.count=2&framework=megatron"
    "&training.seq_len=2048&training.global_batch=64"
)
SIMPLER = (
    "?model=gpt2-xl&cluster=rtx-4090-pcie-2&framework=deepspeed"
    "&training.seq_len=1024&training.global_batch=512"
)
"""A spec whose recommended plan is not the fastest."""
TIGHT = (
    "?model=llama3-70b&cluster.topology=dgx-a100&framework=megatron"
    "&training.seq_len=4096&training.global_batch=128&pins.zero=0"
)


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """Start the command as a user would, and yield the address that it prints."""
    command = [sys.executable, "-m", "meshwright", "ui", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.terminate()


@pytest.fixture
def visit(browser: Browser, site: str) -> Iterator[OpenAddress]:
    with visiting(browser, site) as found:
        yield found


def step(page: Page) -> str:
    return page.locator(".facts dd").first.inner_text()


@pytest.mark.slow
def test_every_chart_has_data(visit: OpenAddress) -> None:
    page = visit("", WIDE)
    page.wait_for_selector(PROVEN)
    figures = page.locator("figure")
    assert figures.count() >= 6
    for figure in figures.all():
        assert figure.locator("svg rect, svg path, svg circle, svg line").count() > 2
        figure.locator("summary").click()
        figure.locator("details tbody tr").first.wait_for(state="attached")


@pytest.mark.slow
def test_a_slider_changes_the_plan_and_the_address(visit: OpenAddress) -> None:
    page = visit(SMALL, WIDE)
    page.wait_for_selector(PROVEN)
    before, address = step(page), page.url
    page.locator("#knob-batch").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("was => location.href !== was", arg=address)
    page.wait_for_selector(PROVEN)
    assert step(page) != before
    assert "training.global_batch=96" in page.url
    assert "global_batch: 96" in (page.locator("#yaml").text_content() or "")
    focused = page.evaluate("document.activeElement.id")
    assert focused == "knob-batch", "the slider keeps the focus"
    page.go_back()
    page.wait_for_selector(PROVEN)
    page.wait_for_function("was => location.href === was", arg=address)
    page.wait_for_function(
        "was => document.querySelector('.facts dd').textContent === was", arg=before
    )


@pytest.mark.slow
def test_every_slider_is_answered(visit: OpenAddress) -> None:
    page = visit(SMALL, WIDE)
    page.wait_for_selector(PROVEN)
    names = page.locator(".slider").evaluate_all("all => all.map(e => e.dataset.knob)")
    assert set(names) == {
        *("gpus", "memory", "bandwidth", "batch", "sequence", "risk", "tolerance")
    }
    for name in names:
        address = page.url
        page.locator(f"#knob-{name}").focus()
        page.keyboard.press("ArrowLeft" if name != "gpus" else "ArrowRight")
        page.wait_for_function("was => location.href !== was", arg=address)
        page.wait_for_selector("#stop", state="hidden")
        assert page.locator("#title").inner_text()


@pytest.mark.slow
def test_a_repair_that_is_clicked_solves(visit: OpenAddress) -> None:
    page = visit(TIGHT, WIDE)
    page.wait_for_selector("#repairs li")
    assert "No plan fits" in page.locator("#status").inner_text()
    assert "pins.zero" in page.locator("#verdict").inner_text()
    assert page.locator("#why").count() == 1, "the conflict is told"
    page.locator("#repairs button").first.click()
    page.wait_for_selector(PROVEN)
    assert "pins.zero=1" in page.url
    assert not page.locator("#repairs").is_visible()


@pytest.mark.slow
def test_a_pin_chooses_a_value(visit: OpenAddress) -> None:
    page = visit(SMALL, WIDE)
    page.wait_for_selector(PROVEN)
    assert page.locator("[data-pinned]").count() == 0
    pin = page.locator("#pin-tp")
    assert pin.locator("option").all_text_contents()[1:] == ["1", "2", "4", "8", "16"]
    pin.select_option(label="2")
    page.wait_for_function("() => location.search.includes('pins.tp=2')")
    page.wait_for_selector("#pin-tp[data-pinned]")
    assert "(1 pinned)" in page.locator("#pinnable summary").inner_text()
    page.wait_for_selector("#change:has-text('tp pinned to 2: ')")
    assert "tp 2 · " in page.locator("#verdict").inner_text()
    pin.select_option(label="left open")
    page.wait_for_function("() => !location.search.includes('pins.tp=')")
    page.wait_for_selector("#change:has-text('tp left open: ')")


@pytest.mark.slow
def test_a_plan_near_the_fastest_is_used_and_given_up(visit: OpenAddress) -> None:
    page = visit(SIMPLER, WIDE)
    page.wait_for_selector(PROVEN)
    row = page.locator("[aria-labelledby=near] tr:has-text('the fastest plan')").last
    fastest = row.locator("td").first.inner_text()
    before = step(page)
    assert before != fastest
    row.get_by_role("button").click()
    page.wait_for_selector("#change:has-text('The plan pinned: ')")
    assert step(page) == fastest
    assert f"({before} → {fastest})" in page.locator("#change").inner_text()
    page.get_by_role("button", name="Leave all open").click()
    page.wait_for_selector("#change:has-text('All decisions left open: ')")
    assert step(page) == before


@pytest.mark.slow
def test_numbers_are_typed_and_what_they_change_is_told(visit: OpenAddress) -> None:
    page = visit(SMALL, WIDE)
    page.wait_for_selector(PROVEN)
    typed = {
        "gpus": ("28", "cluster.count=4", "GPUs 16 → 32: step "),
        "batch": ("80", "global_batch=80", "Sequences a step 64 → 80: step +"),
        "memory": ("60.5", "memory_gib=60.5", "Memory of a GPU 79.65 → 60.5 GiB: "),
        "risk": ("7", "limits.oom_risk=0.07", "5 → 7 %: the step stays "),
        "tolerance": ("3.5", "3.5%25", "2 → 3.5 %: "),
    }
    for name, (number, written, told) in typed.items():
        page.locator(f"#knob-{name}-number").fill(number)
        page.keyboard.press("Enter")
        page.wait_for_selector(f"#change:has-text('{told}')")
        assert written in page.url, name
    assert page.locator("#knob-gpus-number").input_value() == "32", "whole machines"


@pytest.mark.slow
def test_lists_and_pasted_text_change_the_spec(visit: OpenAddress) -> None:
    page = visit(SMALL, WIDE)
    page.wait_for_selector(PROVEN)
    _find(page, "model", "ama2-7b")
    page.wait_for_selector("#title:has-text('llama2-7b')")
    page.wait_for_selector("#change:has-text('gpt-1.3b → llama2-7b: step +')")
    _find(page, "model", "gpt2-xl")
    page.wait_for_selector("#status:has-text('learned_positions')")
    _find(page, "model", "llama")
    page.wait_for_selector("#status:has-text('names have \"llama\" in them')")
    _find(page, "model", "no such model")
    page.wait_for_selector("#status:has-text('is no bundled name')")
    page.locator("#title").click()
    assert page.locator("#model").input_value() == "llama2-7b", "as the spec has it"
    _find(page, "cluster", "dgx-a100")
    page.wait_for_selector("#title:has-text('dgx-a100')")
    assert "16 x" in page.locator("#title").inner_text(), "as many GPUs as before"
    page.locator("#paste summary").click()
    text = "model: gpt-1.3b\ncluster: h100-nvlink-2\n"
    text += "training: {seq_len: 1024, global_batch: 16}\n"
    page.locator("#text").fill(text)
    page.locator("#read").click()
    page.wait_for_selector("#title:has-text('h100-nvlink-2')")
    page.wait_for_selector(PROVEN)
    page.locator("#text").fill("model: /etc/passwd\ncluster: dgx-a100\n")
    page.locator("#read").click()
    page.wait_for_selector("#read-notes .warn")


def _find(page: Page, what: str, name: str) -> None:
    """Type a part of a name into a box."""
    page.locator(f"#{what}").fill(name)
    page.keyboard.press("Enter")


@pytest.mark.slow
def test_what_is_saved_is_what_is_shown(visit: OpenAddress) -> None:
    page = visit(SMALL, WIDE)
    page.wait_for_selector(PROVEN)
    with page.expect_download() as found:
        page.get_by_role("button", name="Save the spec").click()
    assert found.value.suggested_filename == "spec.yaml"
    assert found.value.path().read_text() == page.locator("#yaml").text_content()
    with page.expect_download() as bridge:
        page.get_by_role("button", name="Files for megatron-bridge").click()
    assert "tensor_model_parallel" in _unpacked(bridge.value.path())
    with page.expect_download() as launch:
        page.get_by_role("button", name="Files to launch").click()
    assert "--tensor-model-parallel-size" in _unpacked(launch.value.path())
    with page.expect_download() as trace:
        page.get_by_role("button", name="Trace").click()
    assert "traceEvents" in trace.value.path().read_text()


def _unpacked(path: Path) -> str:
    """Return the text of all files in a saved archive."""
    with ZipFile(path) as packed:
        return "".join(packed.read(name).decode() for name in packed.namelist())


@pytest.mark.slow
@pytest.mark.parametrize("query", [SMALL, TIGHT])
@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_nothing_reaches_beyond_the_page(
    visit: OpenAddress, query: str, size: tuple[int, int]
) -> None:
    page = visit(query, size)
    page.wait_for_selector(PROVEN if query == SMALL else "#repairs li")
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= size[0]
    outside = page.evaluate(
        "[...document.querySelectorAll('svg text')].filter(e => "
        "e.getBoundingClientRect().right > innerWidth).map(e => e.textContent)"
    )
    assert outside == []


@pytest.mark.slow
def test_the_map_is_drawn_when_it_is_asked_for(visit: OpenAddress) -> None:
    page = visit(SMALL, WIDE)
    page.wait_for_selector(PROVEN)
    assert page.locator("#map-said").count() == 0
    page.get_by_role("button", name="Draw the map").click()
    page.wait_for_selector("#map-said")
    focused = page.evaluate("document.activeElement.className")
    assert focused == "chart", "the keys go on where the button was"
    page.keyboard.press("Home")
    told = page.locator("#map-said").inner_text()
    assert "the recommended plan" in told
    page.locator("#knob-batch").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => location.search.includes('global_batch=96')")
    page.wait_for_selector(PROVEN)
    page.wait_for_selector("#map-said")
    page.locator("[aria-labelledby=map] .chart").focus()
    page.keyboard.press("Home")
    assert page.locator("#map-said").inner_text() != told, "it follows the answer"


@pytest.mark.slow
def test_the_degrees_of_a_dot_can_be_pinned(visit: OpenAddress) -> None:
    page = visit(SMALL, WIDE)
    page.wait_for_selector(PROVEN)
    page.get_by_role("button", name="Draw the map").click()
    pin = page.get_by_role("button", name="Pin its degrees")
    assert pin.is_disabled(), "no dot is chosen"
    page.locator("#map-pp").select_option("2")
    page.locator("[aria-labelledby=map] .chart").focus()
    page.keyboard.press("ArrowRight")
    pin.click()
    page.wait_for_function("() => location.search.includes('pins.pp=2')")
    page.wait_for_selector(f"{PROVEN}, #repairs li")


@pytest.mark.slow
def test_what_fits_nowhere_has_a_map_too(visit: OpenAddress) -> None:
    page = visit(TIGHT, WIDE)
    page.wait_for_selector("#repairs li")
    page.get_by_role("button", name="Draw the map").click()
    page.wait_for_selector("#map-said")
    dots = page.locator("[aria-labelledby=map] circle")
    states = set(dots.evaluate_all("all => all.map(e => e.dataset.state)"))
    assert states == {"memory", "refused"}


@pytest.mark.slow
def test_the_answer_is_in_sight_while_sliders_move(visit: OpenAddress) -> None:
    page = visit(SMALL, NARROW)
    page.wait_for_selector(PROVEN)
    headline = page.locator("#verdict p").first
    before = headline.inner_text()
    plan = page.locator("#verdict p").nth(1).bounding_box()
    question = page.locator("aside").bounding_box()
    assert plan is not None
    assert question is not None
    assert plan["y"] + plan["height"] < question["y"] < NARROW[1], "the answer first"
    page.get_by_text("Change the question").click()
    for name in ("gpus", "tolerance"):
        page.locator(f"#knob-{name}").scroll_into_view_if_needed()
        page.locator(f"#knob-{name}").focus()
        box = headline.bounding_box()
        assert box is not None
        assert 0 <= box["y"] <= max(plan["y"] - page.evaluate("scrollY"), 12)
    page.locator("#proof").scroll_into_view_if_needed()
    box = headline.bounding_box()
    assert box is not None
    assert 0 <= box["y"] <= 12, "at the top, however far the page is scrolled"
    page.locator("#knob-batch").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(
        "was => document.querySelector('#verdict p').textContent !== was", arg=before
    )


SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")

LOOKED_AT = gate(
    [*zip((SMALL, TIGHT), SCHEMES, strict=True)],
    everything=[*product((SMALL, TIGHT), SCHEMES)],
)
"""Questions with the colours in which axe-core looks at their pages."""


@pytest.mark.slow
@pytest.mark.parametrize(("query", "scheme"), LOOKED_AT)
def test_nothing_keeps_people_from_it(
    visit: OpenAddress, query: str, scheme: Literal["light", "dark"]
) -> None:
    page = visit(query, WIDE)
    page.emulate_media(color_scheme=scheme)
    page.wait_for_selector(PROVEN if query == SMALL else "#repairs li")
    page.get_by_role("button", name="Draw the map").click()
    page.wait_for_selector("#map-said")
    page.evaluate("document.querySelectorAll('details').forEach(e => e.open = true)")
    assert grave_violations(page) == []


@pytest.mark.slow
@pytest.mark.parametrize("query", [SMALL, TIGHT])
def test_everything_has_a_name_and_is_reached_by_keys(
    visit: OpenAddress, query: str
) -> None:
    page = visit(query, WIDE)
    page.wait_for_selector(PROVEN if query == SMALL else "#repairs li")
    nameless = page.evaluate(
        "[...document.querySelectorAll('button, select, input, textarea, [role=group],"
        "[role=img], [role=region], pre')].filter(e => !(e.getAttribute('aria-label') "
        "|| e.textContent.trim() && e.tagName === 'BUTTON' || e.labels?.length))"
        ".map(e => e.outerHTML.slice(0, 80))"
    )
    assert nameless == []
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    page.evaluate("document.activeElement.blur()")
    wanted = {"start", "model", "cluster", "framework", "knob-gpus", "knob-batch"}
    met: set[str] = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        met.add(
            page.evaluate("document.activeElement.id || document.activeElement.tagName")
        )
    assert wanted | {"SUMMARY", "BUTTON", "A"} <= met
