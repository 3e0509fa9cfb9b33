"""Does a task on the page, in a browser, by what a person types and clicks there.

A task of benchmarks/tasks.yaml says it under `page`, a list of steps:

    start, model, cluster: NAME   type the name into that box
    framework, gpu: NAME          choose it from that list
    batch, sequence, gpus: 64     type the number beside that slider
    pin: {tp: 2}                  choose the value of a decision
    paste: '@file'                paste the text, and click "Read it"
    save: {BUTTON: NAME}          click, and save the file; NAME must be in it
    shows: [TEXT, ...]            all of it must be read on the page by now
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile, is_zipfile

from benchmarks.browser import chromium, page_address

if TYPE_CHECKING:
    from playwright.sync_api import Page

LONGEST_MS = 120_000

ANSWERED = "#status:has-text('Proven'), #status:has-text('No plan fits; each repair')"
"""Where the page has its last word on a question."""

NAMES = ("start", "model", "cluster", "framework")

NUMBERS = ("batch", "sequence", "gpus")

Step = Mapping[str, Any]


@contextmanager
def page_opener() -> Iterator[Callable[[], Page]]:
    """Start the page's server and a browser, and yield what opens the page anew."""
    with page_address() as site, chromium() as browser:

        def opened() -> Page:
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.set_default_timeout(LONGEST_MS)
            page.goto(site)
            page.wait_for_selector(ANSWERED)
            return page

        yield opened


def wrong_on(page: Page, steps: list[Step], text_of: Callable[[str], str]) -> list[str]:
    """Do the steps of a task, and return what the page does not show of its answer.

    `text_of` returns the text that a step pastes.
    """
    wrong = []
    for step in steps:
        for name, value in step.items():
            if name == "shows":
                told = _told(page)
                wrong += [f"does not show {one!r}" for one in value if one not in told]
            elif name == "save":
                wrong += _saved(page, value)
            else:
                _do(page, name, text_of(value) if name == "paste" else value)
    return wrong


def _do(page: Page, name: str, value: Any) -> None:
    """Type or choose one thing, and wait for the answer to the question it makes."""
    for part in page.locator("details.wide").all():
        part.evaluate("part => part.open = true")
    before = page.url
    knob = page.locator(f"#{name}, #knob-{name}-number").first
    if name in (*NAMES, *NUMBERS) and knob.input_value() == str(value):
        return
    if name in ("start", "model", "cluster"):
        box = page.locator(f"#{name}")
        box.fill(value)
        box.press("Enter")
        box.blur()
    elif name == "gpu":
        page.locator("#paste").evaluate("part => part.open = true")
        page.locator("#gpu").select_option(value)
        return
    elif name == "framework":
        page.locator("#framework").select_option(value)
    elif name == "pin":
        for field, chosen in value.items():
            page.locator(f"#pin-{field}").select_option(label=str(chosen))
    elif name == "paste":
        page.locator("#paste").evaluate("part => part.open = true")
        page.locator("#text").fill(value)
        page.locator("#read").click()
    else:
        box = page.locator(f"#knob-{name}-number")
        box.fill(str(value))
        box.press("Enter")
    page.wait_for_function("was => location.href !== was", arg=before)
    page.wait_for_selector(ANSWERED)


def _saved(page: Page, wanted: Mapping[str, str]) -> Iterator[str]:
    """Click buttons that save a file, and yield which of them lacks its text."""
    for label, text in wanted.items():
        with page.expect_download() as download:
            page.get_by_role("button", name=label, exact=True).click()
        path = Path(download.value.path())
        found = path.read_text("utf-8") if not is_zipfile(path) else _unpacked(path)
        if text not in found:
            yield f"{label} does not have {text!r}"


def _unpacked(path: Path) -> str:
    with ZipFile(path) as archive:
        return "\n".join(archive.read(name).decode() for name in archive.namelist())


def _told(page: Page) -> str:
    """Return what can be read on the page."""
    told: str = page.evaluate("document.body.innerText")
    return " ".join(told.split())
