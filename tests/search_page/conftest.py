"""A browser, and pages in it that are watched for errors and for requests."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from meshwright.search.page import write_page
from meshwright.search.row import Row
from tests.search_page.reading import WIDE, choose_view, expect_count
from tests.search_page.rows import HOSTILE, rows

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

Open = Callable[..., "Page"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start the system's browser; it draws in software where there is no GPU."""
    pytest.importorskip("plotly", reason="needs Plotly: pip install -e '.[html]'")
    api = pytest.importorskip(
        "playwright.sync_api", reason="needs Playwright: pip install playwright"
    )
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("needs the command chromium: apt-get install chromium")
    flags = ["--no-sandbox", "--enable-unsafe-swiftshader"]
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        yield browser
        browser.close()


@contextmanager
def watched(browser: Browser, file: Path) -> Iterator[Open]:
    """Open pages; afterwards none may have failed, or asked for more than its file."""
    wrong: list[str] = []
    asked: list[str] = []
    pages: list[Page] = []

    def listen(message: ConsoleMessage) -> None:
        if message.type == "error":
            wrong.append(message.text)

    def open_page(some: Sequence[Row] = rows(), size: tuple[int, int] = WIDE) -> Page:
        write_page(some, file, HOSTILE[0])
        page = browser.new_page(viewport={"width": size[0], "height": size[1]})
        pages.append(page)
        page.on("console", listen)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda own: wrong.append(own.message))
        page.on("request", lambda own: asked.append(own.url))
        page.goto(file.as_uri())
        return page

    yield open_page
    hacked = [page.evaluate("window.hacked") for page in pages]
    for page in pages:
        page.close()
    assert wrong == []
    assert asked == [file.as_uri()] * len(pages)
    assert set(hacked) <= {None}


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Open a page of some rows, at some size."""
    with watched(browser, tmp_path / "out.html") as open_page:
        yield open_page


@pytest.fixture(scope="module")
def shared(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Page]:
    """Open the page of `rows()` once: it is large."""
    with watched(browser, tmp_path_factory.mktemp("page") / "out.html") as open_page:
        yield open_page()


@pytest.fixture
def page(shared: Page) -> Page:
    """Return the page of `rows()` as at first."""
    shared.get_by_role("button", name="Reset", exact=True).click()
    expect_count(shared, len(rows()))
    choose_view(shared, "Front")
    return shared
