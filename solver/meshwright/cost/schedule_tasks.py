"""The task graph of a pipeline schedule: when each task ends, and the longest path."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf

from meshwright.plans.schedules.schedule import Schedule
from meshwright.plans.schedules.table import SCHEDULES
from meshwright.plans.schedules.tasks import KINDS, Tasks


def longest_path_s(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    weight_s: Sequence[float],
    microbatches: int,
    schedule: int,
    vpp: int,
) -> float:
    """Return the longest path through the schedule's task graph, seconds.

    `forward_s`, `backward_s` (for inputs) and `weight_s` are each stage's seconds per
    micro-batch, all chunks together.
    """
    tasks, rules = Tasks(len(forward_s), microbatches, vpp), SCHEDULES[schedule]
    seconds = chunk_seconds(forward_s, backward_s, weight_s, rules, vpp)
    orders = [rules.order(tasks, stage) for stage in range(tasks.stages)]
    ends_s = end_times_s(tasks, orders, seconds)
    return max(ends_s[order[-1]] for order in orders)


def end_times_s(
    tasks: Tasks, orders: list[list[int]], seconds: list[list[float]]
) -> list[float]:
    """Return when every task ends, by its number, followed by zeros.

    The zeros stand for the sources of the first tasks. A task waits for the task before
    it on its stage, and for its source on another stage. Each stage runs until a source
    has not ended; then its neighbours may go on.
    """
    stages, per_kind, sources = tasks.stages, tasks.per_kind, tasks.sources
    # The first tasks have no source: negative numbers index the zeros at the end.
    ends_s = [inf] * (len(KINDS) * per_kind) + [0.0] * tasks.microbatches
    done, clocks_s, woken = [0] * stages, [0.0] * stages, deque(range(stages))
    by_stage = list(zip(*seconds, strict=True))
    while woken:
        stage = woken.popleft()
        order, clock_s, takes_s = orders[stage], clocks_s[stage], by_stage[stage]
        first = index = done[stage]
        while index < len(order):
            number = order[index]
            kind = number // per_kind
            ready_s = ends_s[number - sources[kind]]
            if ready_s == inf:
                break
            clock_s = (ready_s if ready_s > clock_s else clock_s) + takes_s[kind]
            ends_s[number] = clock_s
            index += 1
        if index > first:
            done[stage], clocks_s[stage] = index, clock_s
            woken += [(stage + 1) % stages, (stage - 1) % stages]
    return ends_s


def chunk_seconds(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    weight_s: Sequence[float],
    schedule: Schedule,
    vpp: int,
) -> list[list[float]]:
    """Return seconds per chunk by kind of task; B includes W where W is not a task."""
    pairs = zip(backward_s, weight_s, strict=True)
    is_split = schedule.splits_backward
    return [
        [seconds / vpp for seconds in forward_s],
        [(inputs if is_split else inputs + weight) / vpp for inputs, weight in pairs],
        [seconds / vpp for seconds in weight_s],
    ]
