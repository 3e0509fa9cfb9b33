"""The spread of predicted memory: known answers, signs, and what risk does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from meshwright.spec.goals import Limits, MemorySpread

CARD_GIB = 80.0

spreads = st.builds(
    MemorySpread, bias=st.floats(-0.3, 0.3), sigma=st.floats(0.005, 0.4)
)
risks = st.floats(1e-4, 0.5)


@pytest.mark.parametrize(
    ("sigma", "risk", "margin"),
    # exp(-1.645 x 0.055) = 0.913, exp(-1.282 x 0.055) = 0.932; exp(-1.645 x 0.13) =
    # 0.807, exp(-1.282 x 0.13) = 0.846.
    [
        (0.055, 0.05, 0.087),
        (0.055, 0.1, 0.068),
        (0.13, 0.05, 0.193),
        (0.13, 0.1, 0.154),
    ],
)
def test_a_risk_is_a_margin(sigma: float, risk: float, margin: float) -> None:
    usable = MemorySpread(sigma=sigma).usable_gib(CARD_GIB, risk)
    assert usable / CARD_GIB == pytest.approx(1 - margin, abs=6e-4)


def test_three_percent_free_is_seven_in_ten() -> None:
    """ln(1 / 0.97) / 0.055 = 0.554 standard deviations."""
    fits = MemorySpread(sigma=0.055).fit_probability(CARD_GIB, 0.97 * CARD_GIB)
    assert fits == pytest.approx(0.71, abs=0.005)


def test_runs_that_need_more_than_predicted_leave_less() -> None:
    """With a bias of ln 1.1 a plan predicted at 1 / 1.1 of a card is an even bet."""
    more = MemorySpread(bias=0.09531, sigma=0.05)
    assert more.fit_probability(CARD_GIB, CARD_GIB / 1.1) == pytest.approx(
        0.5, abs=1e-3
    )
    assert more.usable_gib(CARD_GIB, 0.5) == pytest.approx(CARD_GIB / 1.1, rel=1e-3)
    assert more.usable_gib(1, 0.05) < MemorySpread(sigma=0.05).usable_gib(1, 0.05)


@given(spreads, risks, risks)
def test_more_risk_is_no_less_memory(
    spread: MemorySpread, one: float, other: float
) -> None:
    bold, safe = max(one, other), min(one, other)
    assert spread.usable_gib(CARD_GIB, bold) >= spread.usable_gib(CARD_GIB, safe)


@given(spreads, risks, st.floats(0.01, 1))
def test_what_is_usable_fits_as_often_as_asked(
    spread: MemorySpread, risk: float, share: float
) -> None:
    usable = spread.usable_gib(CARD_GIB, risk)
    assert usable <= CARD_GIB
    fits = spread.fit_probability(CARD_GIB, share * usable)
    assert fits >= 1 - risk - 1e-9


@given(spreads, st.floats(2e-3, 0.5), st.floats(1, 79))
def test_less_memory_is_less_risk(
    spread: MemorySpread, risk: float, needed_gib: float
) -> None:
    less = spread.risk_below(risk, needed_gib, 2**-10)
    assert less < risk
    safe = spread.usable_gib(CARD_GIB, less) * (1 - 1e-12)
    assert safe <= spread.usable_gib(CARD_GIB, risk)


def test_a_limit_as_such_replaces_the_risk() -> None:
    spread = MemorySpread(sigma=0.1)
    assert Limits(memory_margin=0.03).usable_gib(CARD_GIB, spread) == 0.97 * CARD_GIB
    assert Limits(memory_gib=70).usable_gib(CARD_GIB, spread) == 70
    by_default = Limits().usable_gib(CARD_GIB, spread)
    assert by_default == Limits(oom_risk=0.05).usable_gib(CARD_GIB, spread)
    # A risk is one of what CUDA reports of a card, 1 % less.
    assert by_default == spread.usable_gib(0.99 * CARD_GIB, 0.05)


def test_what_another_program_holds_is_not_offered() -> None:
    spread = MemorySpread(sigma=0.1)
    held = Limits(reserved_gib=20)
    assert held.usable_gib(CARD_GIB, spread) == spread.usable_gib(
        0.99 * CARD_GIB - 20, 0.05
    )
    beside = Limits(reserved_gib=20, memory_margin=0.25)
    assert beside.usable_gib(CARD_GIB, spread) == 0.75 * CARD_GIB - 20
    assert 0 < Limits(reserved_gib=500).usable_gib(CARD_GIB, spread) < 1


@pytest.mark.parametrize("other", [{"memory_margin": 0.03}, {"memory_gib": 70}])
def test_a_risk_and_another_limit_are_refused(other: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=r"given beside limits\.oom_risk"):
        Limits.model_validate({"oom_risk": 0.1, **other})
