"""Writes charts as PNG and as HTML."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

from meshwright.errors import SpecError

SUFFIXES = (".png", ".html")


def save_chart(chart: Any, path: Path) -> list[Path]:
    """Write `path`.png and `path`.html and return both paths.

    The page holds its scripts and its data, and loads nothing when it is viewed.

    Raises:
        SpecError: a file is not writable.
    """
    picture = BytesIO()
    chart.save(picture, format="png")
    page = chart.to_html(inline=True).encode()
    paths = plot_paths(path)
    for target, content in zip(paths, (picture.getvalue(), page), strict=True):
        try:
            target.write_bytes(content)
        except OSError as error:
            reason = (error.strerror or "cannot be written").lower()
            raise SpecError(f"--plot {target}: {reason}") from None
    return paths


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
