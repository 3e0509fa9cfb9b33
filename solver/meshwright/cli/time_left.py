"""How much time is left of something that counts what it has done."""

from __future__ import annotations

import re

COUNT = re.compile(r"([\d,]+) of ([\d,]+)")

DOWN = ("to bound", "left")
"""Words of counts that go down to nothing."""

LEAST_S = 1.0
"""Seconds before a rate is worth something."""


class TimeLeft:
    """Follows the counts in lines of progress, such as `3 of 40 cases`."""

    def __init__(self) -> None:
        """Start without a count."""
        self._whole = 0
        self._first = 0.0
        self._since_s = 0.0

    def seconds(self, text: str, now_s: float) -> float | None:
        """Return the seconds left by the rate so far; None if there is none yet.

        A count of something else, or one that falls back, starts anew.
        """
        found = COUNT.search(text)
        if found is None:
            self._whole = 0
            return None
        count, whole = (int(own.replace(",", "")) for own in found.groups())
        done = float(whole - count if text.endswith(DOWN) else count)
        if whole != self._whole or done < self._first:
            self._whole, self._first, self._since_s = whole, done, now_s
        passed_s = now_s - self._since_s
        if done <= self._first or passed_s < LEAST_S:
            return None
        return passed_s * (whole - done) / (done - self._first)


def duration_text(seconds: float) -> str:
    """Return seconds in words, no more exact than a guess is."""
    if seconds < 90:
        return f"{max(round(seconds), 1)} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
