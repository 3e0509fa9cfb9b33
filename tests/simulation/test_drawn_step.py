"""A disturbed step that is drawn: a schedule that holds, and calm without jitter."""

from __future__ import annotations

from functools import cache

import pytest

import meshwright as mw
from meshwright.api.options import read_profile
from meshwright.api.price import job_of
from meshwright.check.timeline import timeline
from meshwright.cost.job import Job
from meshwright.plans.plan import Plan
from meshwright.results.simulation import Disturbance
from meshwright.results.timeline import Timeline
from meshwright.simulation.simulate import drawn_step

CALM = Disturbance(jitter=0, slow_gpus=0, slowdown=0)
ROUGH = Disturbance(jitter=0.1, slow_gpus=0.05, slowdown=0.3)

DRAWN_PLANS = {
    "1F1B": ("tp=2", "pp=4", "micro_batch=1", "vpp=1"),
    "zero bubble": ("tp=2", "pp=4", "micro_batch=1", "schedule=zb-h1"),
    "interleaved": ("tp=2", "pp=4", "micro_batch=1", "vpp=2"),
    "one stage": ("tp=1", "pp=1", "zero=3"),
}

each_plan = pytest.mark.parametrize("name", DRAWN_PLANS)


@cache
def asked(name: str) -> tuple[Job, Plan]:
    spec = mw.load("llama2-13b-8xa100", mw.Spec, pins=list(DRAWN_PLANS[name]))
    spec = spec.model_copy(update={"framework": "generic"})
    best = mw.solve(spec, by_kind=False).best
    assert best is not None
    return job_of(spec, best.plan, read_profile("measured")), best.plan


def starts(step: Timeline) -> list[float]:
    return [task.start_s for stage in step.stages for task in stage.tasks]


@each_plan
def test_without_disturbance_it_is_the_plans_timeline(name: str) -> None:
    calm, own = timeline(*asked(name)), drawn_step(*asked(name), CALM, seed=0)
    assert starts(own) == pytest.approx(starts(calm))
    assert own.schedule_s == pytest.approx(calm.schedule_s)
    for mine, theirs in zip(own.stages, calm.stages, strict=True):
        assert mine.busy_s == pytest.approx(theirs.busy_s)


@each_plan
def test_a_disturbed_step_takes_longer_and_keeps_the_order(name: str) -> None:
    calm, own = timeline(*asked(name)), drawn_step(*asked(name), ROUGH, seed=3)
    assert own.schedule_s > calm.schedule_s
    for mine, theirs in zip(own.stages, calm.stages, strict=True):
        order = [task[:3] for task in theirs.tasks]
        assert [task[:3] for task in mine.tasks] == order
        ends = [0.0, *(task.end_s for task in mine.tasks)]
        assert all(
            task.start_s >= end - 1e-12
            for task, end in zip(mine.tasks, ends, strict=False)
        )


@each_plan
def test_parts_add_up_to_what_the_tasks_take(name: str) -> None:
    own = drawn_step(*asked(name), ROUGH, seed=3)
    for stage in own.stages:
        takes_s = sum(task.end_s - task.start_s for task in stage.tasks)
        if own.fold is None:
            assert stage.microbatches_s == pytest.approx(takes_s)


def test_the_seed_sets_the_step() -> None:
    again = [drawn_step(*asked("1F1B"), ROUGH, seed).schedule_s for seed in (1, 1, 2)]
    assert again[0] == again[1] != again[2]
