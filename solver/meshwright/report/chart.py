"""Writes charts as PNG and as HTML.

The page holds the chart drawn twice, for screens and for phones, and its data.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from textwrap import wrap
from typing import Any

from meshwright.errors import SpecError
from meshwright.report.pages.skeleton import file_text, filled_page
from meshwright.writing import write_whole

SUFFIXES = (".png", ".html")

BODY = '<div id="chart" role="figure" aria-label="The chart"></div>'

WIDE_PX, NARROW_PX = 900, 290
"""Widths of the space in the axes, on screens and on phones."""

LETTERS = 48
"""Letters of a line of the title on phones."""

Draw = Callable[[int], Any]
"""Returns the chart of some width."""


def save_chart(draw: Draw, title: str, path: Path) -> list[Path]:
    """Write `path`.png and `path`.html and return both paths.

    The page holds its script, pictures and data, and loads nothing when it is viewed.

    Raises:
        SpecError: a file is not writable.
    """
    wide, version = draw(WIDE_PX).to_dict(), _vega_lite_version()
    contents = (_picture(wide, version), _page(draw, wide, title, version).encode())
    paths = plot_paths(path)
    for target, content in zip(paths, contents, strict=True):
        write_whole(content, target, "--plot")
    return paths


def _vega_lite_version() -> str:
    """Return the version of Vega-Lite that Altair writes for: v6.1 of v6.1.0."""
    version: str = plot_library().SCHEMA_VERSION
    return version.rpartition(".")[0]


def _picture(chart: dict[str, Any], version: str) -> bytes:
    from vl_convert import vegalite_to_png

    return vegalite_to_png(chart, vl_version=version)


def _page(draw: Draw, wide: dict[str, Any], title: str, version: str) -> str:
    from vl_convert import vegalite_to_svg

    drawn = {"wide": wide, "narrow": _on_phones(draw(NARROW_PX)).to_dict()}
    data = {
        name: vegalite_to_svg(chart, vl_version=version)
        for name, chart in drawn.items()
    }
    content = json.dumps(data | {"chart": wide})
    return filled_page(BODY, title, content, [file_text("chart.js")])


def _on_phones(chart: Any) -> Any:
    """Return a chart with its legend below it, and its title in short lines."""
    told = chart.to_dict()["title"]
    whole = told if isinstance(told, dict) else {"text": told, "subtitle": []}
    lines = {
        name: [part for line in _listed(text) for part in wrap(line, LETTERS)]
        for name, text in whole.items()
    }
    legend = {"orient": "bottom", "direction": "vertical", "columns": 2}
    title = {**lines, "anchor": "start"}
    return chart.properties(title=title).configure_legend(**legend)


def _listed(text: str | list[str]) -> list[str]:
    return [text] if isinstance(text, str) else text


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
