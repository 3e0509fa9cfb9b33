"""Schedules stand in the order of their codes, and every formula knows them all."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from meshwright.plans.plan import Plan
from meshwright.plans.schedules import (
    SCHEDULES,
    GPipe,
    OneFOneB,
    Schedule,
    Tasks,
    ZeroBubbleH1,
    by_schedule,
    schedule_named,
)
from meshwright.plans.skeletons import GPIPE, ONE_F_ONE_B, ZERO_BUBBLE_H1

STAGES = range(1, 5)


def test_schedules_have_the_names_of_plans_in_the_order_of_codes() -> None:
    names = get_args(Plan.model_fields["schedule"].annotation)
    assert tuple(own.name for own in SCHEDULES) == names
    assert isinstance(SCHEDULES[ONE_F_ONE_B], OneFOneB)
    assert isinstance(SCHEDULES[GPIPE], GPipe)
    assert isinstance(SCHEDULES[ZERO_BUBBLE_H1], ZeroBubbleH1)
    assert schedule_named("gpipe") is SCHEDULES[GPIPE]


def test_every_row_gets_the_formula_of_its_own_schedule() -> None:
    codes = np.array([GPIPE, ONE_F_ONE_B, ZERO_BUBBLE_H1, ONE_F_ONE_B])
    microbatches = np.array([7, 7, 7, 2])
    held = by_schedule(
        codes, lambda own: own.in_flight(0 * codes, microbatches, 1 + 0 * codes, 4)
    )
    assert held.tolist() == [7, 1, 4, 1]
    heads = by_schedule(codes, lambda own: own.heads_in_flight(microbatches))
    assert heads.tolist() == [7, 1, 1, 1]


@pytest.mark.parametrize("own", SCHEDULES, ids=lambda own: own.name)
@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("microbatches", STAGES)
def test_what_is_in_flight_is_what_the_tasks_hold(
    own: Schedule, stages: int, microbatches: int
) -> None:
    """The most forwards whose last gradients are still to come, walked in order."""
    tasks = Tasks(stages, microbatches, 1)
    last = "W" if own.splits_backward else "B"
    columns = np.array([microbatches]), np.array([1])
    for stage in range(stages):
        held = most = 0
        order = [tasks.task(number) for number in own.order(tasks, stage)]
        assert len({*order}) == len(order)
        for task in order:
            held += (task.kind == "F") - (task.kind == last)
            most = max(most, held)
        after = np.array(stages - 1 - stage)
        (told,) = own.in_flight(after, *columns, np.array([stages]))
        assert most == told
        assert most <= own.most_in_flight(*columns, np.array([stages]))[0]
