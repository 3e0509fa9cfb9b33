"""The timeline of a plan holds what the checker computes, on a clock."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest

import meshwright as mw
from meshwright.api.price import timeline
from meshwright.check import check as scored
from meshwright.check.timeline import timeline_at
from meshwright.cost.job import make_job
from meshwright.cost.schedule import in_flight
from meshwright.report.simulation import trace_text
from meshwright.results.simulation import Timeline
from meshwright.spec.plan_fields import FIELD
from tests.helpers.plans import best_of
from tests.helpers.trace_events import end_s, seconds_by_part, validate

EVEN = ("tp=2", "pp=4", "micro_batch=1")

PLANS = {
    "even stages": (*EVEN, "vpp=1"),
    "GPipe": (*EVEN, "schedule=gpipe"),
    "zero bubble": (*EVEN, "schedule=zb-h1"),
    "interleaved": (*EVEN, "vpp=2"),
    "one stage": ("tp=8", "pp=1", "recompute=full"),
    "uneven": (*EVEN, "vpp=1", "layers=[13,13,8,6]"),
}


def question(pins: tuple[str, ...] = ()) -> mw.Spec:
    spec = mw.load("llama2-13b-8xa100", pins=list(pins))
    assert isinstance(spec, mw.Spec)
    return spec.model_copy(update={"framework": "generic"})


@cache
def priced(name: str) -> tuple[mw.PricedPlan, Timeline]:
    spec = question(PLANS[name])
    best = best_of(spec)
    assert best is not None
    return best, timeline(spec, best.plan)


@pytest.mark.parametrize("name", PLANS)
def test_it_ends_with_the_task_graph(name: str) -> None:
    best, told = priced(name)
    assert told.schedule_s == pytest.approx(best.schedule_s, rel=1e-12)
    assert told.step_s == pytest.approx(best.step_s, rel=1e-12)


@pytest.mark.parametrize("name", ["even stages", "interleaved", "one stage"])
def test_even_stages_end_with_the_step(name: str) -> None:
    best, told = priced(name)
    assert told.schedule_s == pytest.approx(best.step_s, rel=1e-9)


@pytest.mark.parametrize("name", PLANS)
def test_tasks_take_their_parts_and_wait_for_one_another(name: str) -> None:
    _, told = priced(name)
    for stage in told.stages:
        before_s = 0.0
        for task in stage.tasks:
            takes_s = sum(stage.parts[task.kind, task.chunk].values())
            assert task.end_s - task.start_s == pytest.approx(takes_s, rel=1e-9)
            assert task.start_s >= before_s
            before_s = task.end_s


@pytest.mark.parametrize("name", PLANS)
def test_a_trace_is_in_the_format_and_adds_up(name: str) -> None:
    best, told = priced(name)
    trace = json.loads(trace_text(told))
    validate(trace)
    assert end_s(trace) == pytest.approx(best.schedule_s, abs=1e-9)
    for stage, one in enumerate(told.stages):
        found = seconds_by_part(trace, stage)
        tasks_s = sum(found.pop(kind, 0.0) for kind in "FBW")
        parts = {part: s for part, s in one.busy_s.items() if s}
        assert found == pytest.approx(parts, abs=1e-8)
        sync_s = sum(one.sync.values())
        assert tasks_s == pytest.approx(sum(parts.values()) - sync_s, abs=1e-8)


@pytest.mark.parametrize("name", ["even stages", "interleaved", "one stage"])
def test_the_parts_of_an_even_step_are_those_of_the_plan(name: str) -> None:
    best, told = priced(name)
    last = max(told.stages, key=lambda given: sum(given.sync.values())).sync
    slowest = max(told.stages, key=lambda given: given.microbatches_s)
    for part, seconds in best.time_parts.items():
        if part != "bubble":
            own_s = slowest.busy_s.get(part, 0.0) - slowest.sync.get(part, 0.0)
            found = own_s + last.get(part, 0.0)
            assert found == pytest.approx(seconds, rel=1e-9, abs=1e-12), part


@pytest.mark.parametrize("name", PLANS)
def test_memory_peaks_where_the_model_says(name: str) -> None:
    best, told = priced(name)
    for stage, memory in zip(told.stages, best.stages, strict=True):
        assert stage.peak_gib == pytest.approx(memory.total_gib, rel=1e-9)
        assert stage.held[-1].activations_gib == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("name", PLANS)
def test_chunks_in_flight_are_those_of_the_formula(name: str) -> None:
    best, told = priced(name)
    schedule = np.array([FIELD["schedule"].encoded(best.plan.schedule)])
    m, v = np.array([best.plan.microbatches]), np.array([best.plan.vpp])
    most = in_flight(schedule, m, v, best.plan.pp)[0]
    for held, stage in zip(most, told.stages, strict=True):
        levels = {round(one.activations_gib, 9) for one in stage.held}
        assert len(levels) == held + 1


def test_what_is_folded_is_as_slow_as_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    best, _ = priced("even stages")
    monkeypatch.setattr(scored, "MOST_TASKS", 0)
    whole = scored.score(make_job(question()), best.plan)
    usual, slow = (
        timeline_at(whole, [times * end_s for end_s in whole.graph.ends_s])
        for times in (1, 2)
    )
    assert usual.fold is not None
    assert slow.fold is not None
    assert slow.fold.seconds == pytest.approx(2 * usual.fold.seconds)
    assert slow.fold.start_s == pytest.approx(2 * usual.fold.start_s)
    shown_s = usual.pipeline_s - usual.fold.seconds
    assert usual.fold.start_s == pytest.approx(shown_s / 2)
    assert slow.pipeline_s == pytest.approx(2 * usual.pipeline_s)


def test_a_long_step_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    best, _ = priced("even stages")
    monkeypatch.setattr(scored, "MOST_TASKS", 0)
    told = timeline(question(), best.plan)
    assert told.fold is not None
    assert told.fold.microbatches == best.plan.microbatches - 2 * best.plan.pp
    assert told.schedule_s == pytest.approx(best.step_s, rel=1e-9)
    again = mw.price(question(), best.plan)
    assert again.schedule_s == pytest.approx(best.step_s, rel=1e-9)
    trace = json.loads(trace_text(told))
    validate(trace)
    whole = priced("even stages")[1]
    for stage, one in enumerate(whole.stages):
        found = seconds_by_part(trace, stage)["compute"]
        assert found == pytest.approx(one.busy_s["compute"], abs=1e-8)
