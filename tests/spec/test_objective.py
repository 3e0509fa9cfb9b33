"""The objective of a spec: levels with tolerances, and what makes a plan simple."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.errors import SpecError
from meshwright.loading.load import load_spec
from meshwright.spec.goals import CRITERIA, to_share

SPEC: dict[str, Any] = {
    "model": "llama3-8b",
    "cluster": {"topology": "dgx-h100", "count": 1},
    "training": {"seq_len": 8192, "global_batch": 64},
}


def objective(written: object) -> Any:
    return load_spec({**SPEC, "objective": written}).objective


@pytest.mark.parametrize(
    ("written", "tolerance"),
    [
        ("step_s", 0.0),
        (["gpus", {"step_s": "2%"}], 0.0),
        ([{"step_s": "2%"}, "simplest"], 0.02),
        ([{"step_s": 0.05}, {"usd_per_mtoken": "1 %"}, "simplest"], 0.01),
        ([{"gpus": 0}, {"train_days": "7.5%"}, "simplest"], 0.075),
    ],
)
def test_the_tightest_level_bounds_the_step(written: object, tolerance: float) -> None:
    assert objective(written).tolerance == pytest.approx(tolerance)


def test_criteria_are_in_the_order_of_the_user() -> None:
    found = [{"step_s": "2%"}, {"simplest": ["odd_micro_batch", "techniques"]}]
    assert objective(found).criteria == ("odd_micro_batch", "techniques")
    assert objective([{"step_s": "2%"}, "simplest"]).criteria == CRITERIA


def test_an_objective_is_read_again_as_it_is_written() -> None:
    spec = load_spec({**SPEC, "objective": [{"step_s": "3%"}, "simplest"]})
    again = type(spec).model_validate_json(spec.model_dump_json(by_alias=True))
    assert again.objective == spec.objective


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("fastest", "expected step_s, usd_per_mtoken"),
        ([], "objective"),
        ([{"step_s": "two"}], "expected a tolerance for step_s"),
        ([{"step_s": 1.5}], "from 0 to below 1"),
        ([{"step_s": "2%", "gpus": 0}], "expected step_s"),
        (["simplest", "step_s"], "comes last"),
        (["gpus", "simplest"], "needs a level before it"),
        (["step_s", "step_s"], "is there twice"),
        ([{"step_s": 0}, {"simplest": ["elegance"]}], "expected some of beyond_runs"),
        ([{"step_s": 0}, {"simplest": []}], "expected some of beyond_runs"),
        (3, "expected step_s"),
    ],
)
def test_what_is_no_objective_is_refused(written: object, said: str) -> None:
    with pytest.raises(SpecError, match="objective") as refused:
        objective(written)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("written", "share"),
    [("2%", 0.02), ("0.5 %", 0.005), (0.02, 0.02), ("0.02", 0.02), ("x%", None)],
)
def test_shares_are_read(written: object, share: float | None) -> None:
    assert to_share(written) == (None if share is None else pytest.approx(share))
