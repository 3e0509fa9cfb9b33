"""Pages of answers with hostile names, opened in a browser: nothing runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import meshwright as mw
from tests.helpers.browsing import OpenFile, watched
from tests.hostile import documents
from tests.hostile.marks import substituted
from tests.hostile.readers import Parts
from tests.hostile.test_pages import ATTACK, DRAWN

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SIZE = (1280, 900)

CASES = [("graph", name) for name in DRAWN.values()]
CASES += [(kind, ATTACK) for kind in ("tree", "parts", "too large")]


@pytest.fixture
def open_file(browser: Browser) -> Iterator[OpenFile]:
    with watched(browser) as found:
        yield found


def _page(document: Any) -> str:
    """Return the page of a spec as `solve` answers it."""
    spec = mw.load(document, mw.Spec)
    outcome: mw.Outcome = mw.solve(spec, by_kind=False)
    return mw.html_report(spec, outcome)


@pytest.fixture(scope="module")
def elements() -> list[Any]:
    """Return what the page of harmless names is made of."""
    return Parts(_page(documents.GRAPH)).elements


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_reports_show_names(
    kind: str, name: str, elements: list[Any], tmp_path: Path, open_file: OpenFile
) -> None:
    text = _page(substituted(documents.TRAINING[kind], name[:88]))
    assert Parts(text).elements == elements, "no element but those of the template"
    file = tmp_path / "report.html"
    file.write_text(text, encoding="utf-8")
    page = open_file(file, SIZE)
    assert f"{name[:88]}Xmodel0X" in (page.locator("h1").text_content() or "")
    for summary in page.locator("summary").all():
        summary.click()
    page.locator("details tbody tr").first.wait_for(state="attached")
    shown = page.locator("main").text_content() or ""
    assert name[:88] in shown
    assert (
        page.locator("main").locator("script, img, b, a[href^='javascript']").count()
        == 0
    )
