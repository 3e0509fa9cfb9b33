"""Writes charts as PNG and as HTML."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.report.html_page import filled_page

SUFFIXES = (".png", ".html")

FILES = Path(__file__).parent

EXPORTED = "window.vegaEmbed = vegaEmbed;"
"""Makes the library's function known to the script of the page."""


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

    # The version of Vega-Lite that Altair writes for: v6.1 of v6.1.0.
    version = plot_library().SCHEMA_VERSION.rpartition(".")[0]
    template = (FILES / "chart.html").read_text("utf-8")
    script = (FILES / "chart.js").read_text("utf-8")
    scripts = [javascript_bundle(EXPORTED, version), script]
    return filled_page(template, title, json.dumps(chart.to_dict()), scripts)


def plot_paths(path: Path) -> list[Path]:
    """Return the paths of the picture and of the page of a plot."""
    stem = path.with_suffix("") if path.suffix in SUFFIXES else path
    return [stem.with_name(stem.name + suffix) for suffix in SUFFIXES]


def plot_library() -> Any:
    """Return Altair, which draws the charts.

    Raises:
        SpecError: Altair or vl-convert is not installed.
    """
    try:
        import altair
        import vl_convert  # noqa: F401, altair loads it only when it saves
    except ImportError:
        advice = "needs two libraries more: pip install 'meshwright[plot]'"
        raise SpecError(f"--plot {advice}") from None
    return altair
