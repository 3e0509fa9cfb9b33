"""One plan, priced apart from the solver."""

from __future__ import annotations

from functools import cache

import pytest

import meshwright as mw

SPEC = "gpt2-xl-2xh100-nvlink"


@cache
def best_of(name: str) -> tuple[mw.Spec, mw.PricedPlan]:
    """Return a bundled spec and its best plan."""
    spec = mw.load(name, mw.Spec)
    best = mw.solve(spec, by_kind=False, safety=False).best
    assert best is not None
    return spec, best


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [SPEC, "gpt-1.3b-dgx-1v", "gpt2-xl-2x3090-2x4090", "llama2-13b-8xh100-8xa100"],
)
def test_the_best_plan_takes_what_the_outcome_says(name: str) -> None:
    spec, best = best_of(name)
    assert mw.price(spec, best.plan) == best


def test_a_plan_of_serving_takes_what_the_outcome_says() -> None:
    spec = mw.load("serve-llama3-70b-8xh100", mw.ServingSpec)
    best = mw.solve(spec).best
    assert best is not None
    assert mw.price(spec, best.plan) == best
    with pytest.raises(mw.SpecError, match="is of serving"):
        mw.price(mw.load(SPEC, mw.Spec), best.plan)  # type: ignore[call-overload]


def test_a_plan_that_does_not_fit_has_a_price() -> None:
    spec, best = best_of(SPEC)
    limits = spec.limits.model_copy(update={"memory_gib": 1.0})
    priced = mw.price(spec.model_copy(update={"limits": limits}), best.plan)
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
    spec, best = best_of(SPEC)
    with pytest.raises(mw.SpecError, match=told):
        mw.price(spec, best.plan.model_copy(update=change))


SEATS = "seats: of 1 kinds of host, the cluster has 0"


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        (SPEC, {"seats": ((),)}, SEATS),
        (SPEC, {"stages": (), "recompute": "full"}, "there is a stage per pipeline"),
        (SPEC, {"ep": 2}, "expert parallelism needs a model with experts"),
        ("mixtral-8x7b-64xh100", {"ep": 64}, "8 experts mod ep 64 = 8"),
        ("mixtral-8x7b-64xh100", {"ep": 3}, "8 experts mod ep 3 = 2"),
        ("mixtral-8x7b-64xh100", {"seats": ((),)}, SEATS),
        ("gpt-1.3b-dgx-1v", {"seats": ((), ())}, "seats: of 2 kinds of host"),
        (
            "gpt-1.3b-dgx-1v",
            {"seats": ((0,),)},
            "seats.0: expected each of 0 to",
        ),
        ("gpt-1.3b-dgx-1v", {"seats": ((0,) * 8,)}, "each of 0 to 7 once"),
        ("gpt-1.3b-dgx-1v", {"precision": "fp8"}, "precision: fp8; .* for fp16, fp32"),
    ],
)
def test_a_plan_that_no_job_can_have_is_refused(
    name: str, change: dict[str, object], told: str
) -> None:
    """Seats of no host, experts on more GPUs than there are, a precision without."""
    spec, best = best_of(name)
    with pytest.raises(mw.SpecError, match=told):
        mw.price(spec, best.plan.model_copy(update=change))
