"""Schedules: tables of tasks, and groups of micro-batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.imports.launches.settings import OPTIONS
from meshwright.plans.plan import Plan
from meshwright.plans.schedules import (
    SCHEDULES,
    DualPipeV,
    GPipe,
    OneFOneB,
    Schedule,
    Task,
    Tasks,
    ZeroBubbleH1,
    ZeroBubbleV,
    by_schedule,
    group_sizes,
    schedule_named,
)
from meshwright.spec.plan_fields import (
    DUALPIPE_V,
    GPIPE,
    ONE_F_ONE_B,
    ZERO_BUBBLE_H1,
    ZERO_BUBBLE_V,
    group_size,
)

STAGES = range(1, 5)


def test_schedules_have_the_names_of_plans_in_the_order_of_codes() -> None:
    names = get_args(Plan.model_fields["schedule"].annotation)
    assert tuple(schedule.name for schedule in SCHEDULES) == names
    assert isinstance(SCHEDULES[ONE_F_ONE_B], OneFOneB)
    assert isinstance(SCHEDULES[GPIPE], GPipe)
    assert isinstance(SCHEDULES[ZERO_BUBBLE_H1], ZeroBubbleH1)
    assert isinstance(SCHEDULES[ZERO_BUBBLE_V], ZeroBubbleV)
    assert isinstance(SCHEDULES[DUALPIPE_V], DualPipeV)
    assert schedule_named("gpipe") is SCHEDULES[GPIPE]


def test_every_row_gets_the_formula_of_its_own_schedule() -> None:
    codes = np.array([GPIPE, ONE_F_ONE_B, ZERO_BUBBLE_H1, ONE_F_ONE_B])
    microbatches = np.array([7, 7, 7, 2])
    held = by_schedule(
        codes, lambda this: this.in_flight(0 * codes, microbatches, 1 + 0 * codes, 4)
    )
    assert held.tolist() == [7, 1, 4, 1]
    heads = by_schedule(codes, lambda this: this.heads_in_flight(microbatches))
    assert heads.tolist() == [7, 1, 1, 1]


@pytest.mark.parametrize("own", SCHEDULES, ids=lambda this: this.name)
@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("microbatches", STAGES)
def test_what_is_in_flight_is_what_the_tasks_hold(
    own: Schedule, stages: int, microbatches: int
) -> None:
    """The most forwards whose last gradients are still to come, walked in order."""
    vpp = 2 if own.is_v else 1
    tasks = Tasks(stages, microbatches, vpp, own.is_v)
    last = "W" if own.splits_backward else "B"
    columns = np.array([microbatches]), np.array([vpp])
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
        assert most <= vpp * own.most_in_flight(*columns, np.array([stages]))[0]


@pytest.mark.parametrize("name", ["ZBVZeroBubble", "DualPipeV"])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (3, 7), (4, 8), (5, 16)])
def test_a_v_runs_what_pytorch_runs(name: str, stages: int, microbatches: int) -> None:
    """The tables of operations of its schedules; I is our B, and its B has W too."""
    pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[torch]'")
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

    found = schedule_named(OPTIONS["torchtitan"]["schedules"][name])
    tasks = Tasks(stages, microbatches, 2, is_v=True)
    for stage, ops in enumerate(get_schedule_ops(name, stages, microbatches, 2)):
        whole = found.whole_backwards(tasks, stage)
        order = [tasks.task(number) for number in found.order(tasks, stage)]
        told, ends = list[str](), {*map(tasks.task, whole)}
        for kind, microbatch, chunk in order:
            task = Task(kind, microbatch, chunk)
            if kind == "W" and task._replace(kind="B") in ends:
                continue
            word = {"F": "F", "W": "W", "B": "B" if task in ends else "I"}[kind]
            place = tasks.places[stage, chunk]
            told.append(f"{place}{word}{microbatch}")
        assert told == list(_passes(ops))


def _passes(ops: Iterable[Any]) -> Iterator[str]:
    """Yield what a rank of PyTorch computes, one pass at a time."""
    for op in filter(None, ops):
        yield from map(str, op.sub_actions or (op,))


@pytest.mark.parametrize(
    ("microbatches", "stages", "size"),
    [
        (8, 4, 4), (6, 4, 6), (10, 4, 5), (11, 4, 6), (13, 4, 7), (7, 2, 4), (3, 4, 3),
        (61, 2, 7),
    ],
)  # fmt: skip
def test_sizes_by_hand(microbatches: int, stages: int, size: int) -> None:
    """13 in 4s leaves 1, in 5s 3, in 6s 1; in 7s 6."""
    assert group_size(microbatches, stages) == size


@given(st.integers(1, 300), st.integers(1, 40))
def test_no_group_has_fewer_than_stages_unless_all_have(m: int, p: int) -> None:
    size = group_size(m, p)
    groups = [min(size, m - first) for first in range(0, m, size)]
    assert min(groups) >= min(m, p)
    rounds = max(1, m // p)
    if m % rounds == 0:
        # torch schedules.py: ScheduleInterleaved1F1B
        assert size == m // rounds


@given(st.lists(st.tuples(st.integers(1, 99), st.integers(1, 12)), min_size=1))
def test_columns_have_the_size_of_each_row(pairs: list[tuple[int, int]]) -> None:
    counts, stages = np.array(pairs).T
    told = group_sizes(counts[:, None], stages[:, None])
    assert told[:, 0].tolist() == [group_size(m, p) for m, p in pairs]
