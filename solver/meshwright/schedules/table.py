"""All schedules, in the order of their codes in the columns of skeletons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshwright.plans.columns import Ints
from meshwright.schedules.gpipe import GPipe
from meshwright.schedules.one_f_one_b import OneFOneB
from meshwright.schedules.schedule import Schedule
from meshwright.schedules.zero_bubble_h1 import ZeroBubbleH1

SCHEDULES: tuple[Schedule, ...] = (OneFOneB(), GPipe(), ZeroBubbleH1())


def schedule_named(name: str) -> Schedule:
    """Return a schedule by the name that users write."""
    return next(own for own in SCHEDULES if own.name == name)


def by_schedule(schedule: Ints, formula: Callable[[Schedule], Any]) -> Any:
    """Return a formula of every row's own schedule, for a column of their codes."""
    result = formula(SCHEDULES[0])
    for code, own in enumerate(SCHEDULES[1:], 1):
        has_it = schedule == code
        if has_it.any():
            result = np.where(has_it, formula(own), result)
    return result
