"""Processes that solve what may be rented, a round at a time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from meshwright.deadline import Deadline, Interrupt
from meshwright.search.open_choices import OpenChoice
from meshwright.search.options import Options
from meshwright.search.rentals import Asked, SolveAll, solve_choice
from meshwright.sweeps.process_pool import executor

LOOK_S = 0.2
"""Seconds between two looks at whether to end."""


@contextmanager
def rental_pool(
    workers: int | None, options: Options, deadline: Deadline
) -> Iterator[SolveAll]:
    """Yield what solves choices at once, by so many processes or one per core."""
    from joblib import cpu_count

    if (workers or cpu_count()) == 1:
        yield lambda asked: [
            solve_choice(*own, options, deadline.left_s) for own in asked
        ]
        return
    plain = replace(options, interrupt=Interrupt())
    with warnings.catch_warnings():
        # Processes whose memory has grown are replaced; no choice is lost.
        warnings.filterwarnings("ignore", "A worker stopped while some jobs were given")
        pool = executor(workers or cpu_count())
        try:
            yield lambda asked: _solved(pool, asked, plain, deadline)
        finally:
            pool.shutdown(wait=False, kill_workers=True)


def _solved(
    pool: Any, asked: list[Asked], options: Options, deadline: Deadline
) -> list[OpenChoice]:
    """Return choices with what is proven of them; what was stopped is undecided."""
    tasks = [pool.submit(solve_choice, *own, options, deadline.left_s) for own in asked]
    left = set(tasks)
    while left and not deadline.interrupt.is_asked:
        left = wait(left, timeout=LOOK_S).not_done
    for task, own in zip(tasks, asked, strict=True):
        own.choice.is_stopped = task in left
    return [
        own.choice if task in left else task.result()
        for task, own in zip(tasks, asked, strict=True)
    ]
