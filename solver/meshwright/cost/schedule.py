"""Pipeline schedules: micro-batches in flight, and the time of a whole step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.cost.arrays import Floats, Ints
from meshwright.skeleton import GPIPE


def in_flight(schedule: Ints, microbatches: Ints, vpp: Ints, stages: int) -> Ints:
    """Stub."""
    left = np.arange(stages, 0, -1)
    m, v = microbatches[:, None], vpp[:, None]
    inter = np.minimum(m * v, 2 * (left[None] - 1) + (v - 1) * stages + 1)
    held = np.where(v > 1, inter, np.minimum(m, left[None]))
    return np.where(schedule[:, None] == GPIPE, m * v, held)


@dataclass(frozen=True)
class Passes:
    """How seconds of a stage count towards the step, a row per skeleton."""

    fill: Floats
    pace: Floats
    deferred: Floats

    def fill_s(self, stage_s: Floats, weight_s: Floats) -> Floats:
        """Return what a stage adds to filling the pipeline."""
        return self.fill * stage_s - 2 * self.deferred * weight_s

    def pace_s(self, stage_s: Floats, weight_s: Floats) -> Floats:
        """Return the pace of a stage; the largest counts."""
        return self.pace * stage_s + 2 * self.deferred * weight_s


def fill_and_pace(schedule: Ints, microbatches: Ints, vpp: Ints) -> Passes:
    """Stub."""
    return Passes(1 / vpp, microbatches - 1 / vpp, (schedule == 2) * 1.0)


def closed_form_s(stage_s: Floats, microbatches: Ints) -> Floats:
    """Return the pipeline's seconds from forward plus backward seconds per stage.

    sum over stages + (m - 1) x the slowest stage, for GPipe and 1F1B alike. Exact for
    even stages: bubble (p-1)/(m+p-1), Narayanan et al. 2021. Where stages are uneven
    but spend the same share of their time forward, it is an upper bound; where that
    share differs too, `longest_path_s` can be on either side. `stage_s` is (rows,
    stages).
    """
    result: Floats = stage_s.sum(axis=1) + (microbatches - 1) * stage_s.max(axis=1)
    return result


def longest_path_s(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    microbatches: int,
    schedule: int,
) -> float:
    """Return the longest path through the schedule's task graph, seconds.

    A task is one micro-batch's forward or backward on one stage. It waits for the
    task before it on its own stage and for the same micro-batch's task on the stage
    before (forward) or after (backward).
    """
    stages = len(forward_s)
    orders = [
        stage_order(stage, stages, microbatches, schedule) for stage in range(stages)
    ]
    done: dict[tuple[int, bool, int], float] = {}
    clock = [0.0] * stages
    position = [0] * stages
    waiting = list(range(stages))
    while waiting:
        stage = waiting.pop()
        while position[stage] < len(orders[stage]):
            is_forward, index = orders[stage][position[stage]]
            source = _source(stage, stages, is_forward)
            if source is not None and (source[0], source[1], index) not in done:
                break
            ready = done[source[0], source[1], index] if source else 0.0
            seconds = forward_s[stage] if is_forward else backward_s[stage]
            clock[stage] = max(clock[stage], ready) + seconds
            done[stage, is_forward, index] = clock[stage]
            position[stage] += 1
            waiting.extend(s for s in (stage - 1, stage + 1) if 0 <= s < stages)
    return max(clock)


def stage_order(
    stage: int, stages: int, microbatches: int, schedule: int
) -> list[tuple[bool, int]]:
    """Return a stage's tasks in order, as (is forward, micro-batch)."""
    warm = microbatches if schedule == GPIPE else min(microbatches, stages - stage - 1)
    tasks = [(True, index) for index in range(warm)]
    for index in range(microbatches - warm):
        tasks += [(True, warm + index), (False, index)]
    tasks += [(False, index) for index in range(microbatches - warm, microbatches)]
    return tasks


def _source(stage: int, stages: int, is_forward: bool) -> tuple[int, bool] | None:
    """Return the stage and kind of task that a task waits for on another stage."""
    if is_forward:
        return (stage - 1, True) if stage else None
    return (stage + 1, False) if stage < stages - 1 else (stage, True)
