"""How sure an answer is: the errors of its own class, and the plan that comes next."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshwright import DEFAULT_PROFILE
from meshwright.cost.profile import (
    NOTHING,
    LeftOut,
    LeftOutOfKind,
    Measured,
    Profile,
    load_profile,
)
from meshwright.loading.load import load_spec
from meshwright.planner import answer
from meshwright.planner.integer_costs import TICK_S
from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from meshwright.results.outcome import Outcome
from tests.helpers.texts import whole_text

SPEC = "gpt-1.3b-2xh100-nvlink"
OWN = LeftOut(rows=31, mape=0.1, median=0.08, p90=0.2, parts="a source")
ALL = LeftOut(rows=900, mape=0.2, median=0.1, p90=0.4, parts="a source")


def profile(gpu: str, framework: str) -> Profile:
    measured = Measured(
        gpu=gpu, kernels=framework, framework=framework, rows=31, sources={"a": 31},
        mape_before=0.3, mape_fitted=0.1, left_out=OWN,
    )  # fmt: skip
    return Profile(measured=(measured,), left_out=ALL)


@functools.cache
def solved(gpu: str, framework: str) -> Outcome:
    return solve(load_spec(SPEC), Options(profile=profile(gpu, framework)))


def test_the_band_is_that_of_the_own_gpu_and_framework() -> None:
    band = solved("h100-sxm-80gb", "megatron").band
    assert band is not None
    assert (band.runs, band.median, band.p90) == (31, 0.08, 0.2)
    assert band.runs_of == "h100-sxm-80gb with megatron"


def test_a_class_without_runs_has_the_band_of_all() -> None:
    band = solved("a100-sxm-80gb", "fsdp").band
    assert band is not None
    assert (band.runs, band.p90) == (900, 0.4)


def of_kind(*, has_experts: bool, p90: float) -> LeftOutOfKind:
    return LeftOutOfKind(
        rows=500, mape=0.2, median=0.1, p90=p90, parts="a source",
        has_experts=has_experts, sources=12,
    )  # fmt: skip


KINDS = (of_kind(has_experts=True, p90=0.5), of_kind(has_experts=False, p90=0.3))


@pytest.mark.parametrize(
    ("spec", "runs_of", "p90"),
    [(SPEC, "dense models", 0.3), ("mixtral-8x7b-64xh100", "models with experts", 0.5)],
)
def test_the_band_of_a_kind_of_model_goes_before_that_of_a_gpu(
    spec: str, runs_of: str, p90: float
) -> None:
    asked = load_spec(spec)
    gpu = asked.cluster.topology.gpu.name
    known = profile(gpu, asked.framework).model_copy(update={"kinds": KINDS})
    band = known.band(asked)
    assert band is not None
    assert (band.runs_of, band.runs, band.sources) == (runs_of, 500, 12)
    assert band.p90 == p90


def test_what_runs_of_your_own_let_expect_goes_first() -> None:
    known = profile("h100-sxm-80gb", "megatron").model_copy(update={"kinds": KINDS})
    changed = OWN.model_copy(update={"parts": NOTHING})
    measured = known.measured[0].model_copy(update={"left_out": changed})
    calibrated = known.model_copy(update={"measured": (measured,)})
    band = calibrated.band(load_spec(SPEC))
    assert band is not None
    assert not band.is_measured
    assert (band.runs_of, band.p90) == ("h100-sxm-80gb with megatron", 0.2)


def test_sources_that_count_alike_are_told() -> None:
    outcome = solved("h100-sxm-80gb", "megatron")
    band = KINDS[1].band("dense models")
    told = whole_text(outcome.model_copy(update={"band": band}))
    lay = "nine in ten measured runs of dense models lay within 35%"
    assert f"{lay} (500 of 12 sources, which count alike)" in told


@pytest.mark.parametrize("gpus", [(), ("h100-sxm-80gb",), ("v100-sxm-32gb",)])
def test_a_gpu_on_which_nothing_was_measured_is_named(gpus: tuple[str, ...]) -> None:
    """The errors of runs on others say little of it, in text and in JSON."""
    kinds = tuple(kind.model_copy(update={"gpus": gpus}) for kind in KINDS)
    known = profile("h100-sxm-80gb", "megatron").model_copy(update={"kinds": kinds})
    outcome = solve(load_spec(SPEC), Options(profile=known))
    none_on = ("h100-sxm-80gb",) if gpus == ("v100-sxm-32gb",) else ()
    told = "which count alike); none was on h100-sxm-80gb." in whole_text(outcome)
    assert told is bool(none_on)
    assert tuple(outcome.to_dict()["band"]["none_on"]) == none_on


def test_without_a_profile_nothing_is_claimed() -> None:
    outcome = solve(load_spec(SPEC))
    assert outcome.band is None
    assert "How sure" not in whole_text(outcome)


def test_the_runner_up_is_no_faster_and_another_plan() -> None:
    outcome = solved("h100-sxm-80gb", "megatron")
    assert outcome.best is not None
    assert outcome.runner_up is not None
    assert outcome.runner_up.step_s > outcome.best.step_s
    assert outcome.runner_up.plan.brief != outcome.best.plan.brief


def test_one_meaning_of_simpler_holds_in_the_whole_answer() -> None:
    """Nothing within 2 % is simpler: nor is the runner-up, at 0.2 %."""
    spec = load_spec("gpt-1.3b-2xh100-nvlink")
    bundled = load_profile(DEFAULT_PROFILE)
    options = Options(tolerance=spec.objective.tolerance, profile=bundled)
    outcome = solve(spec, options)
    assert outcome.fastest is None
    assert outcome.best is not None
    assert outcome.runner_up is not None
    assert outcome.runner_up.step_s < 1.02 * outcome.best.step_s
    assert not outcome.runner_up.is_simpler


@pytest.mark.parametrize("median", [1e-9, 3.0])
def test_the_runner_up_is_named_where_it_lies_within_the_error(median: float) -> None:
    outcome = solved("h100-sxm-80gb", "megatron")
    assert outcome.band is not None
    band = outcome.band.model_copy(update={"median": median})
    told = whole_text(outcome.model_copy(update={"band": band}))
    assert ("within that error" in told) == (median > 1)
    assert "nine in ten lay within 22%" in told


@pytest.mark.parametrize(
    ("runs", "told"),
    [(1, "of 1 run of x that were measured, 1 lay within"), (4, "3 lay within"),
     (9, "8 lay within"), (10, "nine in ten lay within")],
)  # fmt: skip
def test_few_runs_are_counted(runs: int, told: str) -> None:
    """The 90th percentile of four runs lies between the third and the fourth."""
    outcome = solved("h100-sxm-80gb", "megatron")
    assert outcome.band is not None
    band = outcome.band.model_copy(update={"runs": runs, "runs_of": "x"})
    assert told in whole_text(outcome.model_copy(update={"band": band}))


def test_the_bundled_profile_says_what_it_saw() -> None:
    bundled = load_profile(DEFAULT_PROFILE)
    assert bundled.left_out is not None
    assert {one.has_experts for one in bundled.kinds} == {True, False}
    assert all("h100-sxm-80gb" in one.gpus for one in bundled.kinds)
    for one in bundled.measured:
        assert sum(one.sources.values()) == one.rows
    a100 = {(one.gpu, one.framework) for one in bundled.measured}
    assert {("a100-sxm-80gb", "megatron"), ("h100-sxm-80gb", "fsdp")} <= a100


def rival_of(
    step_s: float, schedule_s: float, others: dict[float, float], patch: Any
) -> float | None:
    """Return the step on the task graph of the rival that is told of a best plan.

    `others` has the steps on the task graph by those in closed form.
    """
    rows = SimpleNamespace(upper=np.array([step_s, *others]) / TICK_S)
    left: Any = SimpleNamespace(
        rows=rows,
        job=None,
        constructed=lambda row: row,
        plan=lambda row, _: rows.upper[row] * TICK_S,
    )
    known = {round(one * 1e6): other for one, other in others.items()}
    patch.setattr(answer, "schedule_s", lambda _, plan: known[round(plan * 1e6)])
    patch.setattr(answer, "Rival", SimpleNamespace)
    best: Any = SimpleNamespace(
        step_s=step_s, schedule_s=schedule_s, plan=rows.upper[0] * TICK_S
    )
    found = answer._rival(left, best)
    return found.schedule_s if found else None


def test_a_rival_is_faster_on_the_task_graph_than_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The best plan takes 1.0 s in closed form, and 1.2 s on the task graph."""
    patch = monkeypatch
    assert rival_of(1.0, 1.2, {}, patch) is None
    assert rival_of(1.0, 1.2, {1.1: 1.19, 1.15: 1.16, 1.18: 1.3}, patch) == 1.16
    assert rival_of(1.0, 1.2, {1.1: 1.21, 1.15: 1.3}, patch) is None
    # As far from its closed form as the best, no plan above 1.2 s may be faster.
    assert rival_of(1.0, 1.2, {1.3: 0.9}, patch) is None
    assert rival_of(1.0, 0.9, {1.05: 0.8, 1.2: 0.7}, patch) == 0.8
