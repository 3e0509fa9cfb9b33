"""Short cuts of the search, against what they stand for."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import meshwright as mw
from meshwright.cost.job import Job, make_job
from meshwright.planner import narrow as branch_and_bound
from meshwright.planner import rows as lattice
from meshwright.planner.integer_costs import Scaled, rounding_error_s
from meshwright.planner.memory_fit import (
    MemoryFit,
    capacities,
    measure_stages,
    scaled_costs,
    scaled_memory,
    with_times,
)
from meshwright.planner.options import Options
from meshwright.planner.rows import build_lattice
from meshwright.planner.solve import asked_plan
from meshwright.planner.stages import (
    fits,
    has_all_leading,
    interleaved_fits,
    may_fit,
    quick_fits,
    stages_of,
)
from meshwright.plans.columns import FEW, Ints, distinct
from meshwright.spec.plan_fields import KEEPS_ALL
from meshwright.spec.spec import Spec
from tests.helpers.strategies import finetuning_specs, specs

ALIKE = settings(
    max_examples=30, deadline=None, suppress_health_check=list(HealthCheck)
)
MOST_ALIKE = 2_000
SPECS = ("llama3-70b-128xa100", "gpt3-175b-1024xa100")


def differing(one: Scaled, other: Scaled) -> list[str]:
    """Return the columns that are not the same, less those of the rows."""
    names = [f.name for f in dataclasses.fields(one) if f.name != "rows"]
    return [n for n in names if np.any(getattr(one, n) != getattr(other, n))]


def test_distinct_names_one_row_of_each_kind() -> None:
    many = np.arange(4 * FEW) % 4
    columns = [np.array([4, 0, 4, 4])[many], np.array([True, True, False, True])[many]]
    found, kind = distinct(columns)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    assert sorted(rows[i] for i in found) == [(0, True), (4, False), (4, True)]
    assert [rows[i] for i in found[kind]] == rows


def check_alike(job: Job) -> Ints:
    """Check that rows of a price group have one price, and return their groups."""
    whole = build_lattice(job)
    count = min(len(whole.rows), MOST_ALIKE)
    some = np.random.default_rng(0).choice(len(whole.rows), count, replace=False)
    rows, groups = whole.rows.take(some), whole.unplaced.price_group[some]
    if count:
        shared = with_times(job, scaled_memory(job, rows), groups)
        assert differing(shared, scaled_costs(job, rows)) == []
    return groups


@pytest.mark.parametrize("name", SPECS)
def test_rows_that_are_alike_are_priced_alike(name: str) -> None:
    """One price for rows of other schedules and chunks is the price of each."""
    groups = check_alike(make_job(mw.load(name, mw.Spec)))
    assert len(np.unique(groups)) < len(groups) == MOST_ALIKE


@ALIKE
@given(specs())
def test_so_are_those_of_random_switches(spec: Spec) -> None:
    check_alike(make_job(spec))


@ALIKE
@given(finetuning_specs(most_layers=6))
def test_so_are_those_with_frozen_weights_or_muon(spec: Spec) -> None:
    check_alike(make_job(spec))


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("leading", [0, 3])
def test_three_stages_tell_whether_interleaved_rows_fit(
    name: str, leading: int
) -> None:
    """As all stages do, at capacities about the one of each row's own need."""
    job = make_job(mw.load(name, mw.Spec))
    whole = build_lattice(job)
    model = job.spec.model.model_copy(update={"first_dense_layers": leading})
    every = np.flatnonzero((whole.rows.vpp > 1) & has_all_leading(model, whole.rows))
    costs = MemoryFit(job, whole).costs(every[:: len(every) // 2_000])
    found = []
    for capacity in (2**24, 2**25, 3 * 2**24, 2**26, 3 * 2**25):
        told = interleaved_fits(costs, model, capacity)
        found.append(int(told.sum()))
        for count in np.unique(costs.rows.pp):
            index = np.flatnonzero(costs.rows.pp == count)
            stages = stages_of(costs.take(index), model, capacity)
            np.testing.assert_array_equal(told[index], fits(stages))
    assert 0 < found[0] < found[-1]


@pytest.mark.parametrize("name", SPECS)
def test_the_quick_test_of_memory_agrees_with_every_stage(name: str) -> None:
    job = make_job(mw.load(name, mw.Spec))
    whole = build_lattice(job)
    some = np.random.default_rng(0).choice(len(whole.rows), 4_000, replace=False)
    memory = MemoryFit(job, whole)
    exact = measure_stages(job, memory.costs(np.sort(some)), fits)
    np.testing.assert_array_equal(memory.is_fitting()[np.sort(some)], exact)
    assert 0 < exact.sum() < len(some)


LEADING = {
    "model": "deepseek-v3",
    "cluster": {"topology": "dgx-h100", "count": 16},
    "framework": "megatron",
    "training": {"seq_len": 4096, "global_batch": 256},
}
"""A model whose first layers hold less than the others."""

IN_A_V = {
    "model": {"preset": "llama3-70b", "n_layers": 60},
    "cluster": {"topology": "dgx-a100", "count": 8},
    "framework": "torchtitan",
    "training": {"seq_len": 4096, "global_batch": 128},
    "pins": {"schedule": ["zb-v", "dualpipe-v"]},
}


@pytest.mark.parametrize("spec", [*SPECS, LEADING, IN_A_V], ids=str)
def test_a_few_stages_refuse_nothing_that_all_let_fit(spec: Any) -> None:
    job = make_job(mw.load(spec, mw.Spec))
    whole = build_lattice(job)
    count = min(len(whole), 30_000)
    some = np.random.default_rng(0).choice(len(whole), count, replace=False)
    costs = MemoryFit(job, whole.take(np.sort(some))).costs(np.arange(count))
    exact = measure_stages(job, costs, fits).astype(bool)
    may = may_fit(costs, job.spec.model, capacities(job)[0])
    assert not (exact & ~may).any()
    refused = int((~may).sum())
    assert refused > 0.4 * (~exact).sum() or spec is IN_A_V


@pytest.mark.parametrize("spec", [*SPECS, LEADING], ids=str)
def test_what_is_told_without_stages_is_so_with_them(spec: Any) -> None:
    """At many capacities, so that some rows just fit and others just do not."""
    job = make_job(mw.load(spec, mw.Spec))
    whole = build_lattice(job)
    count = min(len(whole), 2_000)
    some = np.random.default_rng(0).choice(len(whole), count, replace=False)
    costs = MemoryFit(job, whole.take(np.sort(some))).costs(np.arange(count))
    model, usable = job.spec.model, capacities(job)[0]
    told, true = np.zeros(2, dtype=int), np.zeros(2, dtype=int)
    for share in np.geomspace(0.1, 4.0, 24):
        capacity = int(share * usable)
        can, cannot = quick_fits(costs, model, capacity)
        told += can.sum(), cannot.sum()
        for stages in np.unique(costs.rows.pp):
            index = np.flatnonzero(costs.rows.pp == stages)
            exact = fits(stages_of(costs.take(index), model, capacity))
            assert not (can[index] & ~exact).any()
            assert not (cannot[index] & exact).any()
            true += exact.sum(), (~exact).sum()
    # Few are left to look at stage by stage.
    assert (told >= (0.84, 0.94) * true).all()


HOSTED = {
    "model": "llama3-8b",
    "cluster": {"topology": "dgx-h100"},
    "framework": "deepspeed",
    "training": {"seq_len": 2048, "global_batch": 64},
}


def test_what_is_told_of_hosts_without_stages_is_so_with_them() -> None:
    job = make_job(mw.load(HOSTED, mw.Spec))
    whole = build_lattice(job)
    offloads = whole.take(np.flatnonzero(whole.rows.offload != KEEPS_ALL))
    some = np.random.default_rng(0).choice(len(offloads), 500, replace=False)
    costs = MemoryFit(job, offloads.take(np.sort(some))).costs(np.arange(500))
    model, (usable, on_host) = job.spec.model, capacities(job)
    fitting, told = [], 0
    for share in np.geomspace(0.005, 0.15, 24):
        limits = 4 * usable, int(share * on_host)
        can, cannot = quick_fits(costs, model, *limits)
        fitting.append(0)
        for stages in np.unique(costs.rows.pp):
            index = np.flatnonzero(costs.rows.pp == stages)
            exact = fits(stages_of(costs.take(index), model, *limits))
            assert not (can[index] & ~exact).any()
            assert not (cannot[index] & exact).any()
            fitting[-1] += int(exact.sum())
        told += int(can.sum())
    assert told > 0.5 * sum(fitting)
    assert fitting[0] == 0
    assert len({*fitting}) > 2


@pytest.mark.parametrize("name", SPECS)
def test_tensor_prices_leave_out_no_candidate(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether meshes are looked at by tensor price first changes nothing found."""
    job = make_job(mw.load(name, mw.Spec))

    def found(few: int) -> tuple[list[int], list[float]]:
        monkeypatch.setattr(lattice, "FEW", few)
        left = branch_and_bound.prune(job, build_lattice(job)).candidates
        return left.unplaced.tolist(), left.lower.tolist()

    assert found(0) == found(2**40)


def test_a_plan_asked_for_need_not_fit() -> None:
    """It needs the least memory of its pins; what no rule allows is refused."""
    pins = {"tp": 2, "zero": 0, "recompute": "none"}
    spec = mw.load(
        "llama3-8b-2x4090-pcie", mw.Spec, pins=[f"{k}={pins[k]}" for k in pins]
    )
    asked = asked_plan(spec, Options(is_brief=True))
    assert {name: getattr(asked, name) for name in pins} == pins
    other = mw.load("llama3-8b-2x4090-pcie", mw.Spec, pins=["tp=2", "dp=2"])
    with pytest.raises(mw.SpecError, match="world_size"):
        asked_plan(other, Options(is_brief=True))


@pytest.mark.parametrize("vpp", [1, 2])
def test_amounts_in_flight_are_rounded_up_to_whole_chunks(vpp: int) -> None:
    rows: Any = SimpleNamespace(vpp=np.array([vpp, 1]))
    found: Any = SimpleNamespace(rows=rows)
    in_flight, chunks = np.array([[3, 2, 1], [1, 1, 1]]), np.array([7, 5])
    once = Scaled.held(found, in_flight, chunks)
    assert once.tolist() == [[-(-7 * n // vpp) for n in (3, 2, 1)], [5, 5, 5]]
    counts = np.array([[3, 0, 1], [2, 1, 0]])
    held = Scaled.held(found, in_flight, chunks, counts)
    assert held.tolist() == [[-(-63 // vpp), 0, -(-7 // vpp)], [10, 5, 0]]


def test_what_is_rounded_is_half_a_tick_of_each_term_three_times() -> None:
    """5 layers, as many recomputed, a leading one, 2 ends, and 2 x 3 x 2 sends: 25."""
    assert rounding_error_s(5, 3, 2, 1) == pytest.approx(37.5e-9)
    assert rounding_error_s(5, 1, 1) == pytest.approx(0.5e-9 * 3 * (10 + 2 + 2))
