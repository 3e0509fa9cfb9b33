"""Searches that list every row find no faster plan than the solver does."""

from __future__ import annotations

import pytest
from benchmarks.peers.searches import every_row, grid, one_model

import meshwright as mw
from meshwright.cost.profile import load_profile
from meshwright.planner.families import prepare


@pytest.mark.parametrize("name", ["llama3-8b-2xh100-nvlink", "gpt2-xl-2xa100-pcie"])
def test_lists_of_plans_agree_and_have_no_faster_one(name: str) -> None:
    spec = mw.load(name, mw.Spec)
    prepared = prepare(load_profile("measured").job(spec))
    rows = every_row(prepared)
    plans, by_grid = grid(prepared, rows)
    literals, by_model = one_model(prepared, rows)
    best = mw.solve(spec, fastest=True, by_kind=False, safety=False).best
    assert best is not None
    assert plans >= literals > 1
    assert by_grid == pytest.approx(by_model, rel=1e-6)
    assert best.step_s <= by_model * (1 + 1e-6)
