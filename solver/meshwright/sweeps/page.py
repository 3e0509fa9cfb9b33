"""The HTML page of a search: charts, a table with filters, every plan in full.

Its scripts set values as text, never as HTML.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic_core import to_json

from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.report.html_page import filled_page
from meshwright.sweeps.page_data import page_data
from meshwright.sweeps.row import Row

FILES = Path(__file__).with_name("page_files")

SCRIPTS = (
    *("data", "filters", "table", "details"),
    *("front", "chart", "scatter", "parallel", "heat", "page"),
)
"""Scripts in the order in which the page runs them, after the plot library."""


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
        raise SpecError(f"--output {printable(str(path))}: {reason}") from None


def page_library() -> str:
    """Return the script of the plot library.

    Raises:
        SpecError: the library is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        told = "a page needs a library more: pip install 'meshwright[html]'"
        raise SpecError(f"--output: {told}") from None
    return str(get_plotlyjs())


def _page(rows: Sequence[Row], title: str) -> str:
    return filled_page(
        _file("page.html"),
        title,
        to_json(page_data(rows), inf_nan_mode="null").decode(),
        [page_library(), *(_file(f"{name}.js") for name in SCRIPTS)],
        _file("page.css"),
    )


def _file(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")
