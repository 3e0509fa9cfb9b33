"""Pages of searches, opened in a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from meshwright.sweeps.cases import Row
from meshwright.sweeps.export import export
from tests.helpers.browsing import watched
from tests.sweeps.page.reading import WIDE, choose_view, expect_count
from tests.sweeps.page.rows import rows

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Open = Callable[..., "Page"]


@contextmanager
def written(browser: Browser, file: Path) -> Iterator[Open]:
    """Write pages of rows and open them."""
    pytest.importorskip("plotly", reason="needs Plotly: pip install -e '.[html]'")
    with watched(browser) as open_file:

        def open_page(
            some: Sequence[Row] | None = None, size: tuple[int, int] = WIDE
        ) -> Page:
            export(rows() if some is None else some, file)
            return open_file(file, size)

        yield open_page


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Open a page of some rows, at some size."""
    with written(browser, tmp_path / "out.html") as open_page:
        yield open_page


@pytest.fixture(scope="module")
def shared(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Page]:
    """Open the page of `rows()` once: it is large."""
    with written(browser, tmp_path_factory.mktemp("page") / "out.html") as open_page:
        yield open_page()


@pytest.fixture
def page(shared: Page) -> Page:
    """Return the page of `rows()` as at first."""
    shared.get_by_role("button", name="Reset", exact=True).click()
    expect_count(shared, len(rows()))
    choose_view(shared, "Front")
    return shared
