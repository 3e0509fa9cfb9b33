"""The HTML page of a search: charts, a table with filters, every plan in full.

The page holds its scripts and its data. What it shows is set as text, never as HTML,
and a policy in its head keeps browsers from running or loading anything else.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from pathlib import Path
from string import Template

from pydantic_core import to_json

from meshwright.errors import SpecError
from meshwright.search.page_data import page_data
from meshwright.search.row import Row

FILES = Path(__file__).with_name("page_files")

SCRIPTS = (
    *("data", "filters", "table", "details"),
    *("front", "chart", "scatter", "parallel", "heat", "page"),
)
"""In the order in which the page runs them, after the library that draws."""

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'; script-src 'unsafe-eval'"
)
"""Parallel coordinates compile their own drawing code, hence the eval."""


def write_page(
    rows: Sequence[Row], path: Path, title: str = "Meshwright search"
) -> None:
    """Write rows as one HTML file that needs no network.

    Raises:
        SpecError: a library is missing, or the file is not writable.
    """
    content = _page(rows, title).encode()
    try:
        path.write_bytes(content)
    except OSError as error:
        reason = (error.strerror or "cannot be written").lower()
        raise SpecError(f"--output {path}: {reason}") from None


def page_library() -> str:
    """Return the script that draws.

    Raises:
        SpecError: it is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        told = "a page needs a library more: pip install 'meshwright[html]'"
        raise SpecError(f"--output: {told}") from None
    return str(get_plotlyjs())


def _page(rows: Sequence[Row], title: str) -> str:
    own = [_file(f"{name}.js") for name in SCRIPTS]
    scripts = [script.strip() for script in (page_library(), *own)]
    return Template(_file("page.html")).substitute(
        policy=" ".join([POLICY, *map(_fingerprint, scripts)]),
        title=escape(title),
        style=_file("page.css"),
        data=_embedded(page_data(rows)),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def _file(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")


def _embedded(data: object) -> str:
    """Return JSON in which nothing can end the element that it stands in."""
    text = to_json(data, inf_nan_mode="null").decode()
    return text.replace("<", "\\u003c")


def _fingerprint(script: str) -> str:
    """Return what lets this very script run."""
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"
