"""Bars and curves of text, for terminals and files alike."""

from __future__ import annotations

from collections.abc import Sequence

EIGHTHS = " ▏▎▍▌▋▊▉█"
LEVELS = "▁▂▃▄▅▆▇█"


def bar(share: float, width: int) -> str:
    """Return a bar of so many columns at most, to the eighth of a column."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (EIGHTHS[rest] if rest else "")


def gauge(share: float, width: int) -> str:
    """Return a bar in a frame of so many columns, its rest dotted."""
    filled = round(min(max(share, 0.0), 1.0) * width)
    return "█" * filled + "·" * (width - filled)


def curve(values: Sequence[float], most: float) -> str:
    """Return a curve, a column for each value, from zero to `most`."""
    top = len(LEVELS) - 1
    return "".join(
        LEVELS[min(max(round(value / most * top), 0), top)] for value in values
    )
