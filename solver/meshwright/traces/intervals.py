"""Lengths of unions of intervals, and what of one set lies outside others."""

from __future__ import annotations

import numpy as np

from meshwright.plans.columns import Floats

NONE: Floats = np.zeros((0, 2))
"""No intervals, (0, 2)."""


def merged(intervals: Floats) -> Floats:
    """Return the union of intervals, (n, 2), as intervals apart, in order."""
    if not len(intervals):
        return NONE
    starts, ends = intervals[np.argsort(intervals[:, 0], kind="stable")].T
    latest = np.maximum.accumulate(ends)
    opens = np.concatenate([[True], starts[1:] > latest[:-1]])
    first = np.nonzero(opens)[0]
    last = np.concatenate([first[1:] - 1, [len(starts) - 1]])
    return np.stack([starts[first], latest[last]], axis=1)


def length(intervals: Floats) -> float:
    """Return the length of intervals that lie apart."""
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def clipped(intervals: Floats, start: float, end: float) -> Floats:
    """Return what of intervals lies inside a window."""
    inside = np.clip(intervals, start, end)
    return np.asarray(inside[inside[:, 1] > inside[:, 0]])


def lengths_in_turn(sets: list[Floats]) -> list[float]:
    """Return, for each set of intervals, the length that no set before it covers."""
    covered, before, result = NONE, 0.0, []
    for intervals in sets:
        covered = merged(np.concatenate([covered, intervals]))
        whole = length(covered)
        result.append(whole - before)
        before = whole
    return result
