"""Puts the share of a rate that a log shows on a level, never above the rate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meshwright.evidence.link_fit import LinkFit
from meshwright.spec.links import ScaleOut


def put_share(
    level: dict[str, Any], own: ScaleOut, gb_s: float, fit: LinkFit
) -> Iterable[str]:
    """Put the share of a rate that collectives reach on a level; yield notes.

    It is never above the rate: where switches reduce, or an algorithm sends less than
    a ring, one collective seems faster than its links, and no other one is.
    """
    name = level["name"]
    share = level["bus_share"] = min(rounded(gb_s / own.gb_s), 1.0)
    if gb_s > own.gb_s:
        yield (
            f"{name}: {fit.name} shows {gb_s:.4g} GB/s, above the rate of "
            f"{own.gb_s:.4g}, which is kept: switches that reduce, or an algorithm "
            "that sends less than a ring, look faster than links are. Set gb_s where "
            "the links themselves are faster."
        )
    yield (
        f"{name}: bus_share {own.bus_share:g} -> {share:g}, "
        f"{min(gb_s, own.gb_s):.4g} of {own.gb_s:.4g} GB/s, fitted to {fit.op} over "
        f"{fit.ranks} GPUs in {fit.name}, {fit.median_error:.1%} off "
        "(median from 1 MiB on)."
    )


def rounded(value: float) -> float:
    """Return a number with the four digits that files hold."""
    return float(f"{value:.4g}")
