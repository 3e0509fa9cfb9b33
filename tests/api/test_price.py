"""One plan, priced apart from the solver."""

from __future__ import annotations

import pytest

import meshwright as mw

SPEC = "llama3-8b-2xh100-nvlink"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [SPEC, "gpt-1.3b-dgx-1v", "gpt2-xl-2x3090-2x4090", "llama2-13b-8xh100-8xa100"],
)
def test_the_best_plan_takes_what_the_outcome_says(name: str) -> None:
    spec = mw.load(name, mw.Spec)
    best = mw.solve(spec).best
    assert best is not None
    assert mw.price(spec, best.plan) == best


def test_a_plan_of_serving_takes_what_the_outcome_says() -> None:
    spec = mw.load("serve-llama3-70b-8xh100", mw.ServingSpec)
    best = mw.solve(spec).best
    assert best is not None
    assert mw.price(spec, best.plan) == best
    with pytest.raises(mw.SpecError, match="is of serving"):
        mw.price(mw.load(SPEC, mw.Spec), best.plan)  # type: ignore[call-overload]


def test_a_plan_that_does_not_fit_has_a_price() -> None:
    spec = mw.load(SPEC, mw.Spec)
    best = mw.solve(spec).best
    assert best is not None
    small = mw.load(SPEC, mw.Spec, pins={})
    limits = small.limits.model_copy(update={"memory_gib": 1.0})
    priced = mw.price(small.model_copy(update={"limits": limits}), best.plan)
    assert priced.step_s == best.step_s
    assert priced.peak_gib > priced.stages[0].usable_gib


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"microbatches": 3}, "batch"),
        ({"stages": ()}, "stages"),
        ({"mesh": {"tp": (2,)}}, "mesh: expected 1 factors for each of tp"),
        ({"dp_shard": 4}, "world_size|batch"),
    ],
)
def test_a_plan_of_another_job_is_refused(change: dict[str, object], told: str) -> None:
    spec = mw.load(SPEC, mw.Spec)
    best = mw.solve(spec).best
    assert best is not None
    with pytest.raises(mw.SpecError, match=told):
        mw.price(spec, best.plan.model_copy(update=change))
