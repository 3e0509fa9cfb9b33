"""Exported plans train on CPU, where the environment of the frameworks is."""

from __future__ import annotations

import os
import sys

import pytest
from benchmarks.launch_validators import UnavailableError, verdicts
from benchmarks.run_exported import CASES, differences, trained

PYTHON = os.environ.get("MESHWRIGHT_FRAMEWORKS", "")
"""A Python with the packages of `benchmarks/validators/requirements.txt`."""


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON, reason="MESHWRIGHT_FRAMEWORKS names no Python")
@pytest.mark.parametrize(
    ("target", "asked"), [(target, case) for target in CASES for case in CASES[target]]
)
def test_exported_plan_trains_with_the_degrees_asked_for(
    target: str, asked: str
) -> None:
    plan, reports = trained(CASES[target][asked], PYTHON, target)
    assert not [*differences(plan, reports)]
    for word in asked.split():
        axis, degree = word.split("=")
        assert str(getattr(plan, axis)) == degree


@pytest.mark.parametrize(
    ("name", "why"), [("verl", "VERL names no"), ("nanotron", "PYTHONPATH names no")]
)
def test_sources_that_are_not_there_are_named(
    name: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VERL", raising=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with pytest.raises(UnavailableError, match=f"{name}: .*{why} sources"):
        verdicts(name, [], sys.executable)


def test_differences_name_the_rank_that_differs() -> None:
    """A report with a layer too many, and one of parameters that ZeRO-1 keeps whole."""
    import meshwright as mw

    spec = mw.load("gpt-1.3b-2xh100-nvlink", mw.Spec, pins=["tp=1", "pp=1", "zero=1"])
    best = mw.solve(spec, by_kind=False, safety=False, repair=False).best
    assert best is not None
    found = {"rank": 0, "degrees": {"tp": 1, "pp": 1}, "backend": "gloo", "steps": 3}
    found |= {"losses": [5.5, 5.4, 5.3]}
    found |= {"layers": 25, "parameters": 2, "local_parameters": 2}
    assert [*differences(best.plan, [found])] == ["rank 0 has 25 layers"]
    sharded = found | {"layers": 24, "local_parameters": 1}
    assert [*differences(best.plan, [sharded])] == ["rank 0 holds 1 parameters"]
    idle = found | {"layers": 24, "losses": [5.5, 5.5, 5.5], "zero": 2}
    told = ["rank 0 does not learn", "rank 0 has ZeRO 2"]
    assert [*differences(best.plan, [idle])] == told
