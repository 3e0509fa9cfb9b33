"""What axe-core finds on a page that keeps people from using it."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

GRAVE = ("serious", "critical")


def grave_violations(page: Page) -> list[str]:
    """Return the serious and critical violations, each with an element that has it."""
    pytest.importorskip(
        "axe_playwright_python", reason="needs pip install axe-playwright-python"
    )
    script = files("axe_playwright_python") / "axe.min.js"
    page.evaluate(script.read_text(encoding="utf-8"))
    # What passes need not be told: to write down where it stands takes long.
    asked = {"resultTypes": ["violations"], "selectors": False}
    found = page.evaluate("asked => axe.run(asked)", asked)["violations"]
    return [
        f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:120]}"
        for one in found
        if one["impact"] in GRAVE
    ]
