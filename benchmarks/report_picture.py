"""Draws the README's picture of a page: `python -m benchmarks.report_picture`.

It needs Playwright and the command chromium, as the tests of pages do.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import meshwright as mw
from benchmarks import without_options
from benchmarks.browser import chromium

SPEC = "gpt3-175b-1024xa100"
TARGET = Path(__file__).parents[1] / "docs" / "report.png"
SIZE = {"width": 1040, "height": 900}
FIRST, LAST = "time", "mesh"
"""The parts of the page with which the picture starts and ends."""


def main() -> None:
    """Solve the spec, and take a picture of its page."""
    spec = mw.load(SPEC, mw.Spec)
    with TemporaryDirectory() as folder, chromium() as browser:
        file = Path(folder) / "answer.html"
        file.write_text(mw.html_report(spec, mw.solve(spec)), encoding="utf-8")
        page = browser.new_page(viewport=SIZE)  # type: ignore[arg-type]
        page.goto(file.as_uri())
        page.add_style_tag(content="summary { display: none; }")
        first, last = (
            page.locator(f"section[aria-labelledby={part}]").bounding_box()
            for part in (FIRST, LAST)
        )
        assert first is not None
        assert last is not None
        top, bottom = first["y"], last["y"] + last["height"]
        clip = {"x": 0, "y": top, "width": SIZE["width"], "height": bottom - top}
        page.screenshot(path=TARGET, full_page=True, clip=clip)  # type: ignore[arg-type]


if __name__ == "__main__":
    without_options(__doc__)
    main()
