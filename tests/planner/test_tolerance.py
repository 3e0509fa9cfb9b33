"""What a simpler plan may take more than the fastest, by class of runs."""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright.cost.profile import Profile, Ranking, load_profile
from meshwright.planner.options import tolerance_of


def ranked(regret: float) -> Profile:
    ranking = Ranking(
        framework="deepspeed",
        has_experts=False,
        groups=9,
        sources=2,
        regret=regret,
        mean_regret=regret,
    )
    return Profile(ranking=(ranking,))


SPEC = mw.load("llama2-13b-8xa100", mw.Spec)


@pytest.mark.parametrize(("regret", "share"), [(0.0, 0.02), (0.05, 0.05)])
def test_the_ranking_error_of_a_class_counts_where_it_is_above_the_least(
    regret: float, share: float
) -> None:
    found = tolerance_of(SPEC, ranked(regret))
    assert found.share == share
    assert f"{regret:.1%} (median of 9 groups" in found.source


def test_other_classes_have_the_least() -> None:
    asked = mw.load("mixtral-8x7b-64xh100", mw.Spec)
    assert tolerance_of(asked, ranked(0.05)).share == 0.02


def test_an_objective_that_is_given_is_kept() -> None:
    data = SPEC.model_dump(exclude_unset=True) | {"objective": "step_s"}
    found = tolerance_of(mw.Spec.model_validate(data), ranked(0.05))
    assert found == (0.0, "the objective of the spec")


def test_certificates_say_where_the_tolerance_comes_from() -> None:
    outcome = mw.solve(SPEC)
    assert isinstance(outcome, mw.Outcome)
    assert outcome.certificate is not None
    known = tolerance_of(SPEC, load_profile("measured"))
    assert outcome.certificate.tolerance == known.share
    assert outcome.certificate.tolerance_from == known.source
    assert "deepspeed on dense models" in known.source
