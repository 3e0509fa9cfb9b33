"""What something uses: medians of a few runs in this process, and its peak memory."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Times(NamedTuple):
    """Medians of runs."""

    wall_s: float
    cpu_s: float
    """In user and system mode, on all threads: what others on the machine leave be."""


def timed(run: Callable[[], T], runs: int) -> tuple[T, Times]:
    """Return a result and the median times of runs, after one that is not counted."""
    walls, cpus = [], []
    result = run()
    for _ in range(runs):
        wall, cpu = time.perf_counter(), time.process_time()
        result = run()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return result, Times(statistics.median(walls), statistics.median(cpus))


def peak_mib() -> float:
    """Return the most that this process ever held, MiB; Linux."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def children_cpu_s() -> float:
    """Return the seconds that processes took which this one started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
