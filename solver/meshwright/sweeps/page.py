"""The HTML page of a search: charts, a table with filters, every plan in full.

Its scripts set values as text, never as HTML.
"""

from __future__ import annotations

from base64 import b85encode
from collections.abc import Sequence
from pathlib import Path
from zlib import compress

from pydantic_core import to_json

from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.report.html_page import filled_page
from meshwright.sweeps.page_data import page_data
from meshwright.sweeps.row import Row

FILES = Path(__file__).with_name("page_files")

SCRIPTS = (
    *("library", "data", "filters", "table", "details"),
    *("front", "chart", "scatter", "parallel", "heat", "page"),
)
"""Scripts in the order in which the page runs them, after the plot library."""


def write_page(
    rows: Sequence[Row],
    path: Path,
    title: str = "Meshwright search",
    front: Sequence[str] = (),
) -> None:
    """Write rows as one HTML file that needs no network; it opens on a front.

    Raises:
        SpecError: a library is missing, or the file is not writable.
    """
    content = _page(rows, title, front).encode()
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


def _page(rows: Sequence[Row], title: str, front: Sequence[str]) -> str:
    return filled_page(
        _file("page.html"),
        title,
        to_json(page_data(rows, front), inf_nan_mode="null").decode(),
        [_packed(page_library()), *(_file(f"{name}.js") for name in SCRIPTS)],
        _file("page.css"),
    )


def _packed(library: str) -> str:
    """Return a script that holds the library in less than half of its size.

    `library.js` of the page unpacks and runs it, as the policy of the page allows. The
    digits are those of RFC 1924, with a comma for `<`, which may begin markup.
    """
    packed = compress(library.encode(), 9)
    text = b85encode(packed, pad=True).decode().replace("<", ",")
    return f'"use strict";\nconst [BYTES, LIBRARY] = [{len(packed)}, "{text}"];'


def _file(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")
