"""Numbers as the data of pages has them."""

from __future__ import annotations


def rounded(number: float) -> float:
    """Return a number with seven digits, which pages never show more of."""
    return float(f"{number:.7g}")
