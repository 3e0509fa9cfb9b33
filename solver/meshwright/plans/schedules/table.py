"""All schedules, in the order of their codes in the columns of skeletons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshwright.plans.columns import Ints
from meshwright.plans.schedules.gpipe import GPipe
from meshwright.plans.schedules.one_f_one_b import OneFOneB
from meshwright.plans.schedules.schedule import Schedule
from meshwright.plans.schedules.zero_bubble_h1 import ZeroBubbleH1

SCHEDULES: tuple[Schedule, ...] = (OneFOneB(), GPipe(), ZeroBubbleH1())


def schedule_named(name: str) -> Schedule:
    """Return a schedule by the name that users write."""
    return next(schedule for schedule in SCHEDULES if schedule.name == name)


def by_schedule(schedule: Ints, formula: Callable[[Schedule], Any]) -> Any:
    """Return a formula for every row, by the code of its schedule."""
    result = formula(SCHEDULES[0])
    for code, other in enumerate(SCHEDULES[1:], 1):
        has_code = schedule == code
        if has_code.any():
            result = np.where(has_code, formula(other), result)
    return result
