"""The files of the page: its own, and the charts that reports have too."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from string import Template

from meshwright.escape import in_script
from meshwright.report.answer_page.page import CHARTS, file_text
from meshwright.ui.choices import choices

FILES = Path(__file__).with_name("files")

OWN = ("state", "controls", "paste", "lattice", "answers", "play")
"""Scripts of this page, which run after those of the charts."""

SCRIPT, STYLE, PAGE = "text/javascript", "text/css", "text/html"


@cache
def page_files() -> dict[str, tuple[str, str]]:
    """Return the media type and the text of every file by its name."""
    charts = {f"{name}.js": (SCRIPT, file_text(f"{name}.js")) for name in CHARTS}
    own = {f"{name}.js": (SCRIPT, _own(f"{name}.js")) for name in OWN}
    styles = {"page.css": (STYLE, file_text("page.css"))}
    styles["play.css"] = STYLE, _own("play.css")
    return {**charts, **own, **styles, "index.html": (PAGE, _page([*charts, *own]))}


def _page(scripts: list[str]) -> str:
    data = json.dumps({"choices": choices(), "plans": [], "verdict": []})
    tags = "\n".join(f'<script src="files/{name}"></script>' for name in scripts)
    page = Template(_own("play.html"))
    return page.substitute(data=in_script(data), scripts=tags)


def _own(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")
