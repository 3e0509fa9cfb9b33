"""A browser, and pages in it that are watched for errors and for requests."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

OpenFile = Callable[[Path, tuple[int, int]], "Page"]
OpenAddress = Callable[[str, tuple[int, int]], "Page"]

PATIENCE_MS = 180_000
"""How long a page may take on a busy machine: no test is about seconds."""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start the system's browser; it draws in software where there is no GPU.

    One of its processes draws all pages, and an empty one keeps it: to start another
    takes a second of a core, three times what most pages take.
    """
    api = pytest.importorskip(
        "playwright.sync_api", reason="needs Playwright: pip install playwright"
    )
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("needs the command chromium: apt-get install chromium")
    flags = [
        "--no-sandbox",
        "--enable-unsafe-swiftshader",
        "--renderer-process-limit=1",
    ]
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        context = browser.new_context()
        context.set_default_timeout(PATIENCE_MS)
        api.expect.set_options(timeout=PATIENCE_MS)
        context.new_page().goto("data:text/html,")
        yield browser
        browser.close()


def _new_page(browser: Browser, size: tuple[int, int]) -> Page:
    """Open a page beside the others; none of ours keeps data that these could see."""
    page = browser.contexts[0].new_page()
    page.set_viewport_size({"width": size[0], "height": size[1]})
    return page


@contextmanager
def visiting(browser: Browser, site: str) -> Iterator[OpenAddress]:
    """Open pages of a site; none may fail, or ask for anything of another site."""
    wrong: list[str] = []
    pages: list[Page] = []

    def listen(message: ConsoleMessage) -> None:
        # A browser also prints refusals, which are answers that a page shows.
        if message.type == "error" and "status of 422" not in message.text:
            wrong.append(message.text)

    def request(url: str) -> None:
        if not url.startswith((site, "blob:", "data:")):
            wrong.append(url)

    def open_address(query: str, size: tuple[int, int]) -> Page:
        page = _new_page(browser, size)
        pages.append(page)
        page.on("console", listen)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda given: wrong.append(given.message))
        page.on("request", lambda given: request(given.url))
        page.goto(site + query)
        return page

    yield open_address
    for page in pages:
        page.close()
    assert wrong == []


@contextmanager
def watched(browser: Browser) -> Iterator[OpenFile]:
    """Open files; afterwards none may have failed, or asked for more than itself."""
    wrong: list[str] = []
    asked: list[str] = []
    opened: list[tuple[Page, str]] = []

    def listen(message: ConsoleMessage) -> None:
        if message.type == "error":
            wrong.append(message.text)

    def open_file(file: Path, size: tuple[int, int]) -> Page:
        page = _new_page(browser, size)
        opened.append((page, file.as_uri()))
        page.on("console", listen)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda given: wrong.append(given.message))
        page.on("request", lambda given: asked.append(given.url))
        page.goto(file.as_uri())
        return page

    yield open_file
    hacked = [page.evaluate("window.hacked") for page, _ in opened]
    for page, _ in opened:
        page.close()
    assert wrong == []
    assert asked == [url for _, url in opened]
    assert set(hacked) <= {None}
