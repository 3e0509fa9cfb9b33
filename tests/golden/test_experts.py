"""Published configurations are legal and fit, or stand in a list with the reason."""

from __future__ import annotations

import functools

import pytest
from benchmarks.experts.judge import WHOLE, Verdict, as_risky_as, judge
from benchmarks.experts.read import Configuration, configurations, exceptions

import meshwright as mw

CONFIGURATIONS = {configuration.id: configuration for configuration in configurations()}

MOST_EXCEPTIONS = 4
"""As many as there were; to be lowered with every one that goes."""


@functools.cache
def verdict(name: str) -> Verdict:
    changed = CONFIGURATIONS[name].model_copy(update={"measured_step_s": None})
    return judge(changed, is_compared=False)


def test_every_configuration_has_an_id_and_a_source_of_its_own() -> None:
    assert len(CONFIGURATIONS) == len(configurations()) == 89
    for configuration in CONFIGURATIONS.values():
        assert configuration.from_
        assert (
            configuration.source.get("repo")
            or "arXiv" in configuration.from_
            or "card" in configuration.from_
        )


def test_the_list_of_exceptions_only_shrinks() -> None:
    named = exceptions()
    assert len(named) <= MOST_EXCEPTIONS
    assert set(named) <= set(CONFIGURATIONS)
    assert all(one.reason for one in named.values())


@pytest.mark.parametrize("name", sorted(set(CONFIGURATIONS) - set(exceptions())))
def test_it_is_legal_and_fits(name: str) -> None:
    told = verdict(name)
    assert told.is_legal, told.refused_by
    assert told.fits, f"{told.over_gib} GiB over"


@pytest.mark.parametrize("name", sorted(exceptions()))
def test_an_exception_is_one(name: str) -> None:
    told = verdict(name)
    assert not told.fits, "it is legal and fits: delete it from exceptions.yaml"
    assert told.refused_by or told.over_gib is not None


def with_plan(name: str, **plan: object) -> Configuration:
    found = CONFIGURATIONS[name]
    return found.model_copy(update={"plan": found.plan | plan})


def test_the_description_of_a_recipe_fits_where_its_code_does_not() -> None:
    """What is said of 128 B200: tp 4, pp 8, cp 2, here with chunks of one size.

    Of 128 layers as a stand-in, since 126 do not divide by pp 8 x vpp 4.
    """
    name = "mb-llama31-405b-128gpu-b200-fp8cs"
    model = {"preset": "llama3-405b", "n_layers": 128}
    said = with_plan(name, pp=8, cp=2).model_copy(update={"model": model})
    done = with_plan(name).model_copy(update={"model": model})
    plans = [
        one.model_copy(
            update={"plan": {k: v for k, v in one.plan.items() if k != "layers"}}
        )
        for one in (said, done)
    ]
    assert [judge(plan, is_compared=False).fits for plan in plans] == [True, False]


def test_a_plan_that_fills_its_gpus_is_no_safe_one() -> None:
    told = verdict("primus-llama31-70b-8mi300x-bf16")
    assert told.fits
    assert told.fit_probability is not None
    assert told.fit_probability < 0.95


@pytest.mark.parametrize("name", ["foundry-mpt-30b-8h100", "glm-130b-768a100"])
def test_what_is_recommended_is_as_likely_to_fit(name: str) -> None:
    """The first published plan takes more than the default risk, the other less."""
    found = CONFIGURATIONS[name]
    asked = {**found.spec, "limits": WHOLE, "pins": found.plan}
    theirs = mw.solve(mw.load(asked, mw.Spec), by_kind=False, fastest=True).best
    assert theirs is not None
    limits = as_risky_as(theirs)
    ours = mw.solve(
        mw.load({**found.spec, "limits": limits}, mw.Spec), by_kind=False
    ).best
    assert ours is not None
    assert theirs.fit_probability is not None
    assert ours.fit_probability is not None
    assert (theirs.fit_probability < 0.95) == (name == "foundry-mpt-30b-8h100")
    assert ours.fit_probability > min(theirs.fit_probability, 0.95) - 1e-3


@pytest.mark.parametrize(
    "name",
    [
        "llemma-34b-256a100",
        "primus-mixtral-8x7b-8mi300x-bf16",
        "llama3-report-405b-16k",
    ],
)
def test_the_published_plan_is_among_those_to_recommend(name: str) -> None:
    """Memory is rounded up part by part, and the last plan takes 78.95
    of 79.65 GiB, of which CUDA reports 78.85."""
    configuration = CONFIGURATIONS[name]
    asked = {**configuration.spec, "pins": configuration.plan}

    def best(limits: dict[str, float]) -> mw.PricedPlan | None:
        spec = mw.load({**asked, "limits": limits}, mw.Spec)
        return mw.solve(spec, by_kind=False, fastest=True, repair=False).best

    theirs = best(WHOLE)
    assert theirs is not None
    again = best(as_risky_as(theirs))
    assert again is not None
    assert again.step_s == theirs.step_s
