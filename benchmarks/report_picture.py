"""Draws the README's picture of a page: `python -m benchmarks.report_picture`.

It needs Playwright and the command chromium, as the tests of pages do.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import meshwright as mw

SPEC = "gpt3-175b-1024xa100"
TARGET = Path(__file__).parents[1] / "docs" / "report.png"
SIZE = {"width": 1040, "height": 900}
FIRST, LAST = "time", "mesh"
"""The parts of the page with which the picture starts and ends."""


def main() -> None:
    """Solve the spec, and take a picture of its page."""
    from playwright.sync_api import sync_playwright

    spec = mw.load(SPEC, mw.Spec)
    path = shutil.which("chromium")
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "answer.html"
        file.write_text(mw.html_report(spec, mw.solve(spec)), encoding="utf-8")
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox"]
        )
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
        browser.close()


if __name__ == "__main__":
    main()
