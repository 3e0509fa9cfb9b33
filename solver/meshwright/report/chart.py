"""Writes charts as PNG and as HTML."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.report.page import filled_page

SUFFIXES = (".png", ".html")

FILES = Path(__file__).parent

EXPORTED = "window.vegaEmbed = vegaEmbed;"
"""What the library's script leaves for that of the page."""


def save_chart(chart: Any, title: str, path: Path) -> list[Path]:
    """Write `path`.png and `path`.html and return both paths.

    The page holds its scripts and its data, and loads nothing when it is viewed.

    Raises:
        SpecError: a file is not writable.
    """
    picture = BytesIO()
    chart.save(picture, format="png")
    contents = (picture.getvalue(), _page(chart, title).encode())
    paths = plot_paths(path)
    for target, content in zip(paths, contents, strict=True):
        try:
            target.write_bytes(content)
        except OSError as error:
            reason = (error.strerror or "cannot be written").lower()
            raise SpecError(f"--plot {printable(str(target))}: {reason}") from None
    return paths


def _page(chart: Any, title: str) -> str:
    from vl_convert import javascript_bundle

    # Vega-Lite's version is the one that Altair writes for: v6.1 of v6.1.0.
    version = plot_library().SCHEMA_VERSION.rpartition(".")[0]
    own = [(FILES / f"chart.{kind}").read_text("utf-8") for kind in ("html", "js")]
    template, script = own
    scripts = [javascript_bundle(EXPORTED, version), script]
    return filled_page(template, title, json.dumps(chart.to_dict()), scripts)


def plot_paths(path: Path) -> list[Path]:
    """Return the files that a plot of this name consists of."""
    stem = path.with_suffix("") if path.suffix in SUFFIXES else path
    return [stem.with_name(stem.name + suffix) for suffix in SUFFIXES]


def plot_library() -> Any:
    """Return the module that draws.

    Raises:
        SpecError: it is not installed.
    """
    try:
        import altair
        import vl_convert  # noqa: F401, altair loads it itself, and late: to save
    except ImportError:
        told = "needs two libraries more: pip install 'meshwright[plot]'"
        raise SpecError(f"--plot {told}") from None
    return altair
