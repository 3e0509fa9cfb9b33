"""A time limit ends what comes before CP-SAT too: enumeration, memory and bounds."""

from __future__ import annotations

import dataclasses
from unittest import mock

import numpy as np
import pytest

import meshwright as mw
from meshwright.deadline import Deadline, OutOfTime
from meshwright.planner import degrees, families, legal_ways, narrow, unplaced
from meshwright.planner.options import Options
from meshwright.planner.rows import Lattice, build_lattice
from meshwright.planner.solve import solve
from meshwright.plans.columns import Ints
from tests.helpers.command import run
from tests.helpers.texts import whole_text

LEVELS = [
    {"name": "node", "size": 8, "gb_s": 450, "latency_us": 2, "uplink": "per_gpu"},
    {"name": "pod", "size": 90_090, "gb_s": 50, "latency_us": 5, "uplink": "per_gpu"},
]


def many_gpus() -> mw.Spec:
    """720,720 GPUs split in 656,250 ways."""
    return mw.load(
        {
            "model": "deepseek-v3",
            "cluster": {"topology": {"gpu": "h100-sxm", "levels": LEVELS}},
            "framework": "megatron",
            "training": {
                "seq_len": 4096,
                "global_batch": 720_720,
                "precision": "bf16",
                "optimizer": "adamw",
            },
        },
        mw.Spec,
    )


@pytest.fixture
def passed() -> Deadline:
    return Deadline(0.0)


@pytest.mark.slow
def test_a_lattice_too_large_for_its_time_is_undecided() -> None:
    """Its rows were listed and bounded for 25 s under any limit, in 1.5 GiB."""
    with mock.patch.object(unplaced, "_layouts") as listing:
        outcome = solve(many_gpus(), Options(time_limit_s=0.0))
    assert not listing.called
    assert (outcome.status, outcome.is_stopped) == ("unknown", True)
    assert outcome.gpus == 720_720
    assert "Undecided" in whole_text(outcome)
    assert outcome.to_dict()["status"] == "unknown"


@pytest.mark.parametrize(
    ("module", "name", "few"),
    [
        (degrees, "MOST_AT_ONCE", 8),
        (unplaced, "AT_ONCE", 2),
        (legal_ways, "MANY", 2),
    ],
)
def test_every_step_of_the_enumeration_looks_at_the_time(
    module: object, name: str, few: int, passed: Deadline
) -> None:
    job = Options().profile.job(mw.load("llama3-70b-16xh100", mw.Spec))
    with mock.patch.object(module, name, few), pytest.raises(OutOfTime):
        build_lattice(job, deadline=passed)


def groups(lattice: Lattice) -> Ints:
    """Return the groups of equal prices, numbered without gaps."""
    return np.unique(lattice.unplaced.price_group, return_inverse=True)[1]


def test_blocks_list_the_same_lattice() -> None:
    job = Options().profile.job(mw.load("mixtral-8x7b-64xh100", mw.Spec))
    whole = build_lattice(job)
    with (
        mock.patch.object(degrees, "MOST_AT_ONCE", 500),
        mock.patch.object(unplaced, "AT_ONCE", 16),
    ):
        parts = build_lattice(job)
    assert np.array_equal(whole.degrees, parts.degrees)
    assert np.array_equal(whole.copies, parts.copies)
    for one, other in zip(
        [whole.degree, whole.unplaced.number, groups(whole)],
        [parts.degree, parts.unplaced.number, groups(parts)],
        strict=True,
    ):
        assert np.array_equal(one, other)
    for field in dataclasses.fields(whole.unplaced.base):
        if field.name not in ("paths", "kind_paths"):
            one, other = (
                getattr(each.unplaced.base, field.name) for each in (whole, parts)
            )
            assert np.array_equal(one, other), field.name


@pytest.mark.parametrize("name", ["llama3-70b-16xh100", "gpt-1.3b-dgx-1v"])
def test_families_without_a_bound_leave_the_answer_open(name: str) -> None:
    """The fastest of those that were bounded is found; nothing is proven of others."""
    spec = mw.load(name, mw.Spec)
    with (
        mock.patch.object(families, "AT_ONCE", 100),
        mock.patch.object(narrow, "MEASURED_AT_ONCE", 50),
    ):
        outcome = solve(spec, Options(time_limit_s=0.0))
    assert outcome.status == "feasible"
    assert outcome.best is not None
    assert outcome.certificate is not None
    assert outcome.certificate.bound_s == 0.0
    assert outcome.certificate.gap == 1.0
    assert "stopped" in outcome.certificate.left_open


def test_memory_measured_in_blocks_finds_the_same_plans() -> None:
    spec = mw.load("gpt-1.3b-dgx-1v", mw.Spec)
    whole = solve(spec, Options(is_safety=False))
    with mock.patch.object(narrow, "MEASURED_AT_ONCE", 200):
        parts = solve(spec, Options(is_safety=False))
    assert whole.to_dict() == parts.to_dict()


@pytest.mark.slow
def test_the_command_leaves_with_3() -> None:
    with mock.patch.object(unplaced, "AT_ONCE", 2):
        told = run("solve", "llama3-70b-16xh100", "--time-limit", "0")
    assert told.code == 3
    assert "Undecided" in told.stdout
