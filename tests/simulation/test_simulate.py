"""Simulated and drawn steps: calm without jitter, and bounds that hold with it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright as mw
from meshwright.api.options import read_profile
from meshwright.api.price import job_of
from meshwright.check.timeline import timeline
from meshwright.cost.job import Job
from meshwright.cost.schedule import task_graph
from meshwright.economics.simulate import Draws, drawn_step, lockstep_gpus, walk
from meshwright.plans.columns import Floats
from meshwright.plans.plan import Plan
from meshwright.results.simulation import Disturbance, Simulation, Timeline
from tests.helpers.command import run
from tests.helpers.plans import best_of

EVEN = ("tp=2", "pp=4", "micro_batch=1")

PLANS = {
    "1F1B": (*EVEN, "vpp=1"),
    "GPipe": (*EVEN, "schedule=gpipe"),
    "zero bubble": (*EVEN, "schedule=zb-h1"),
    "interleaved": (*EVEN, "vpp=2"),
    "one stage": ("tp=1", "pp=1", "zero=3"),
    "uneven": (*EVEN, "vpp=1", "layers=[13,13,8,6]"),
}

RUN = "mpt-30b-512xh100-90days"


@cache
def asked(name: str) -> tuple[mw.Spec, mw.PricedPlan]:
    spec = mw.load("llama2-13b-8xa100", pins=list(PLANS[name]))
    assert isinstance(spec, mw.Spec)
    spec = spec.model_copy(update={"framework": "generic"})
    best = best_of(spec)
    assert best is not None
    return spec, best


def simulated(name: str, samples: int = 200, **more: Any) -> Simulation:
    spec, best = asked(name)
    return mw.simulate(spec, best.plan, samples=samples, **more)


@pytest.mark.parametrize("name", PLANS)
def test_without_disturbance_a_step_is_the_task_graphs(name: str) -> None:
    told = simulated(name, jitter=0.0)
    best = asked(name)[1]
    for step_s in (told.step_s.least, told.step_s.most, told.step_s.mean):
        assert step_s == pytest.approx(best.schedule_s, rel=1e-9)
    assert told.histogram.counts == (200,)
    assert told.losses.replicas_s == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("name", ["1F1B", "interleaved", "one stage"])
def test_even_stages_have_the_closed_form_and_its_bubble(name: str) -> None:
    told, best = simulated(name, jitter=0.0), asked(name)[1]
    assert told.step_s.median == pytest.approx(best.step_s, rel=1e-9)
    bubble = best.time_parts["bubble"] / best.step_s
    assert told.bubble.median == pytest.approx(bubble, abs=1e-9)


@pytest.mark.parametrize("name", PLANS)
def test_stages_peak_at_the_memory_of_the_plan(name: str) -> None:
    best = asked(name)[1]
    for stage, memory in zip(simulated(name).stages, best.stages, strict=True):
        assert stage.peak_gib == pytest.approx(memory.total_gib, rel=1e-9)
        most = max(gib for _, gib in stage.memory)
        assert most == pytest.approx(stage.peak_gib, rel=1e-9)


def test_a_seed_gives_one_answer() -> None:
    first = simulated("1F1B", seed=3, jitter=0.05)
    assert simulated("1F1B", seed=3, jitter=0.05) == first
    assert simulated("1F1B", seed=4, jitter=0.05) != first


def test_more_jitter_takes_longer() -> None:
    medians = [simulated("1F1B", jitter=j).step_s.median for j in (0.0, 0.02, 0.1)]
    assert medians == sorted(medians)
    assert medians[0] < medians[1] < medians[2]


def test_slow_gpus_slow_as_many_steps_as_they_should() -> None:
    told = simulated("1F1B", 4_000, jitter=0.0, slow_gpus=0.05, slowdown=0.5)
    gpus = asked("1F1B")[1].plan.world_size
    slow = 1 - told.histogram.counts[0] / 4_000
    expected = 1 - 0.95**gpus
    assert slow == pytest.approx(expected, abs=5 * (expected * 0.66 / 4_000) ** 0.5)


def test_all_slow_gpus_slow_compute_by_as_much() -> None:
    told = simulated("one stage", jitter=0.0, slow_gpus=1.0, slowdown=0.5)
    best = asked("one stage")[1]
    compute_s = sum(best.time_parts[part] for part in ("compute", "recompute"))
    # The end of the step has no compute but the optimizer's, a part of its own.
    expected = best.schedule_s + 0.5 * compute_s
    assert told.step_s.median == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("gpus", [1, 8, 4_096])
def test_one_draw_stands_for_the_slowest_of_many_gpus(gpus: int) -> None:
    rng = np.random.default_rng(1)
    told = Disturbance(jitter=0.1, slow_gpus=0.0, slowdown=0.0)
    drawn = np.asarray(Draws(told, gpus, rng).jitter(20_000))
    sigma = np.log1p(0.1**2) ** 0.5
    each = np.exp(sigma * rng.standard_normal((400, gpus)) - sigma**2 / 2).max(axis=1)
    error = 5 * (drawn.std() ** 2 / 20_000 + each.std() ** 2 / 400) ** 0.5
    assert drawn.mean() == pytest.approx(each.mean(), abs=error)
    if gpus == 1:
        assert drawn.mean() == pytest.approx(1.0, abs=0.005)


seconds = st.floats(0.01, 10)


@settings(deadline=None)
@given(
    times=st.lists(st.tuples(seconds, seconds, seconds), min_size=1, max_size=4),
    m=st.integers(1, 8),
    v=st.integers(1, 2),
    schedule=st.integers(0, 2),
    factors=st.lists(st.floats(1, 3), min_size=3, max_size=3),
)
def test_a_walk_of_many_is_many_walks(
    times: list[tuple[float, float, float]],
    m: int,
    v: int,
    schedule: int,
    factors: list[float],
) -> None:
    vpp = v if schedule == 0 else 1
    graph = task_graph(*_columns(times), m, schedule, vpp)
    slow: Floats = np.ones((len(times), len(factors)))
    slow[0] = factors
    walked = walk(graph, [1.0] * len(graph.seconds), slow, lambda: 1.0)
    for factor, ends_s in zip(factors, walked.ends_s.tolist(), strict=True):
        slower = [
            tuple(t * (factor if e == 0 else 1.0) for t in stage)
            for e, stage in enumerate(times)
        ]
        alone = task_graph(*_columns(slower), m, schedule, vpp)
        assert ends_s == pytest.approx(alone.longest_path_s, rel=1e-9)


def _columns(times: list[Any]) -> tuple[list[float], list[float], list[float]]:
    forward, backward, weight = (list(stage) for stage in zip(*times, strict=True))
    return forward, backward, weight


def test_failures_leave_what_dalys_formula_expects() -> None:
    spec = mw.load(RUN)
    assert isinstance(spec, mw.Spec)
    told = mw.simulate(spec, samples=2_000, days=60)
    assert told.runs is not None
    spread = told.runs.goodput
    # A quantile of the samples bounds their standard deviation.
    error = 5 * (spread.p99 - spread.median) / 2 / 2_000**0.5
    assert spread.mean == pytest.approx(told.runs.expected_goodput, abs=error)


def test_lockstep_is_tensor_context_experts_and_shards_of_zero_3() -> None:
    plan = asked("1F1B")[1].plan
    assert lockstep_gpus(plan) == 2
    assert (
        lockstep_gpus(asked("one stage")[1].plan) == asked("one stage")[1].plan.dp_shard
    )


def test_no_plan_leaves_with_1_and_bad_numbers_with_2() -> None:
    none = run("simulate", "llama3-8b-2x4090-pcie")
    assert (none.code, none.stdout) == (1, "")
    assert "no plan fits" in none.stderr
    assert run("simulate", "llama2-13b-8xa100", "--jitter", "-1").code == 2
    assert run("simulate", "llama2-13b-8xa100", "--plan", "tp=x").code == 2


def test_the_table_has_the_distribution_and_json_reads_back() -> None:
    words = ("simulate", "llama2-13b-8xa100", "--plan", "pp=4", "--samples", "50")
    result = run(*words)
    assert result.code == 0
    assert "median" in result.stdout.splitlines()[1]
    printed = run(*words, "--format", "json").stdout
    assert mw.Simulation.from_json(printed).to_json() == printed


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
def small(name: str) -> tuple[Job, Plan]:
    spec = mw.load("llama2-13b-8xa100", mw.Spec, pins=list(DRAWN_PLANS[name]))
    spec = spec.model_copy(update={"framework": "generic"})
    best = best_of(spec)
    assert best is not None
    return job_of(spec, best.plan, read_profile("measured")), best.plan


def starts(step: Timeline) -> list[float]:
    return [task.start_s for stage in step.stages for task in stage.tasks]


@each_plan
def test_without_disturbance_it_is_the_plans_timeline(name: str) -> None:
    calm, stage = timeline(*small(name)), drawn_step(*small(name), CALM, seed=0)
    assert starts(stage) == pytest.approx(starts(calm))
    assert stage.schedule_s == pytest.approx(calm.schedule_s)
    for mine, theirs in zip(stage.stages, calm.stages, strict=True):
        assert mine.busy_s == pytest.approx(theirs.busy_s)


@each_plan
def test_a_disturbed_step_takes_longer_and_keeps_the_order(name: str) -> None:
    calm, stage = (
        timeline(*small(name)),
        drawn_step(*small(name), ROUGH, seed=3),
    )
    assert stage.schedule_s > calm.schedule_s
    for mine, theirs in zip(stage.stages, calm.stages, strict=True):
        order = [task[:3] for task in theirs.tasks]
        assert [task[:3] for task in mine.tasks] == order
        ends = [0.0, *(task.end_s for task in mine.tasks)]
        assert all(
            task.start_s >= end - 1e-12
            for task, end in zip(mine.tasks, ends, strict=False)
        )


@each_plan
def test_parts_add_up_to_what_the_tasks_take(name: str) -> None:
    one = drawn_step(*small(name), ROUGH, seed=3)
    for stage in one.stages:
        takes_s = sum(task.end_s - task.start_s for task in stage.tasks)
        if one.fold is None:
            assert stage.microbatches_s == pytest.approx(takes_s)


def test_the_seed_sets_the_step() -> None:
    again = [drawn_step(*small("1F1B"), ROUGH, seed).schedule_s for seed in (1, 1, 2)]
    assert again[0] == again[1] != again[2]
