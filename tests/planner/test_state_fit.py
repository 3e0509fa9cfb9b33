"""What is left out for its state alone fits in no way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meshwright as mw
from meshwright.cost.job import Job, make_job
from meshwright.explanations.decisions import with_memory
from meshwright.planner.memory_fit import MemoryFit, state_fits
from meshwright.planner.rows import build_lattice
from meshwright.spec.spec import Spec
from tests.helpers.strategies import expert_specs, finetuning_specs, specs

LAWS = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
SLACK = 0.02
"""Share by which prices that change may move how many rows are left out."""

CORNERS = Path(__file__).parents[2] / "benchmarks" / "corners"
ANY_SPEC = st.one_of(specs(), expert_specs(), finetuning_specs(most_layers=6))


def check(job: Job) -> int:
    """Check that what fits fits with its state alone; return how many rows do not."""
    lattice = build_lattice(job)
    if not len(lattice):
        return 0
    has_room = state_fits(job, lattice)
    assert (has_room | ~MemoryFit(job, lattice).is_fitting()).all()
    return int((~has_room).sum())


@LAWS
@given(ANY_SPEC, st.floats(0.02, 1.0))
def test_what_fits_fits_with_its_state_alone(spec: Spec, share: float) -> None:
    check(make_job(with_memory(spec, share * spec.usable_gib)))


@pytest.mark.parametrize(
    ("name", "some", "more"),
    [
        ("gpt3-175b-1024xa100", 295_915, 414_838),
        ("mixtral-8x7b-64xh100", 2_928, 20_758),
        ("llama3-70b-16xh100", 17_497, 19_717),
    ],
)
def test_state_alone_leaves_many_out(name: str, some: int, more: int) -> None:
    """About as many as it did: what it lets through is looked at stage by stage."""
    spec = mw.load(name, mw.Spec)
    few = check(make_job(spec))
    many = check(make_job(with_memory(spec, spec.usable_gib / 2)))
    assert few >= some * (1 - SLACK)
    assert many >= more * (1 - SLACK)


def test_leading_dense_layers_hold_less_than_those_with_experts() -> None:
    spec = mw.load(CORNERS / "deepseek-v3-2048xh100.yaml", mw.Spec)
    job = make_job(spec.model_copy(update={"framework": "torchtitan"}))
    lattice = build_lattice(job)
    some = np.random.default_rng(0).choice(len(lattice), 20_000, replace=False)
    part = lattice.take(np.sort(some))
    has_room = state_fits(job, part)
    assert (has_room | ~MemoryFit(job, part).is_fitting()).all()
    assert has_room.sum() <= 13_331 * (1 + SLACK)
