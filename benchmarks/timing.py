"""How long something takes: the median of a few runs in this process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def timed(run: Callable[[], T], runs: int) -> tuple[T, float]:
    """Return a result and the median seconds of runs, after one that is not counted."""
    times = []
    result = run()
    for _ in range(runs):
        start = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - start)
    return result, statistics.median(times)
