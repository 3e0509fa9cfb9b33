"""Rows as pipelines and plans: what their stages take, and what is proven of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from math import inf
from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright.cost.job import make_job
from meshwright.cost.links import busy_seconds
from meshwright.deadline import NEVER
from meshwright.errors import InternalError
from meshwright.planner import plans as rows_as_plans
from meshwright.planner.integer_costs import TICK_S
from meshwright.planner.memory_fit import stages_by_pp
from meshwright.planner.model import ANY_SPLIT, DEMANDS, ENDLESS_TICKS
from meshwright.planner.narrow import prune
from meshwright.planner.options import Options
from meshwright.planner.pipeline import Pairs, Pipeline, Proof
from meshwright.planner.plans import Plans
from meshwright.planner.rows import build_lattice
from meshwright.planner.rule_cuts import RuleEffort
from meshwright.planner.side_limits import LinkLimit
from meshwright.planner.split_bounds import split_fits, split_ticks
from meshwright.planner.table import table_of
from meshwright.plans.columns import Ints
from meshwright.plans.skeletons import Split

LIMITED = {"max_link_utilisation": 0.6}

TICKS_OFF = 3
"""Ticks by which a load that is added up of three parts is rounded up."""

KINDS: dict[str, tuple[str, dict[str, Any], dict[str, float]]] = {
    "dense": ("llama3-70b-16xh100", {"micro_batch": 1}, {}),
    "limited": ("llama3-70b-16xh100", {"micro_batch": 1}, LIMITED),
    "experts": ("mixtral-8x7b-64xh100", {"vpp": 1, "ep": 4}, LIMITED),
}


@cache
def plans_of(kind: str) -> Plans:
    name, pins, limits = KINDS[kind]
    spec = mw.load(name, mw.Spec, pins=pins).having("limits", **limits)
    job = make_job(spec)
    lattice = build_lattice(job)
    found = prune(job, lattice).candidates
    found = found.take(np.flatnonzero(found.fits & np.isfinite(found.lower))[:400])
    effort = RuleEffort.of(spec, is_brief=False)
    return Plans(job, lattice, Options(), NEVER, effort, found)


def some_rows(plans: Plans) -> Iterator[int]:
    yield from range(0, len(plans), max(len(plans) // 25, 1))


def splits_of(pipeline: Pipeline, seed: int) -> Iterator[tuple[Ints, Ints]]:
    """Yield splits of all layers, some of which no stage has room for."""
    random = np.random.default_rng(seed)
    count, layers = len(pipeline.stages), pipeline.layers
    for _ in range(6):
        cut = np.sort(random.choice(np.arange(1, layers), count - 1, replace=False))
        held = np.diff([0, *cut, layers])
        again = np.minimum(random.integers(0, 3, count), held)
        yield held, again if pipeline.is_recomputing else 0 * again


@pytest.mark.parametrize("kind", ["dense", "limited"])
def test_a_pipeline_takes_the_ticks_and_the_room_of_its_stages(kind: str) -> None:
    plans, fitting = plans_of(kind), set[bool]()
    for row in some_rows(plans):
        pipeline = plans.pipeline(row, ANY_SPLIT)
        ((_, stages),) = stages_by_pp(plans.job, plans.one(row).costs)
        for held, again in splits_of(pipeline, row):
            filled = [*zip(pipeline.stages, held, again, strict=True)]
            ticks = (
                sum(stage.fill.of(n, r) for stage, n, r in filled)
                + max(stage.pace.of(n, r) for stage, n, r in filled)
                + max(stage.sync.of(n, r) for stage, n, r in filled)
            )
            assert ticks == split_ticks(stages, held[None], again[None])[0]
            assert ticks <= pipeline.horizon
            is_fitting = all(
                stage.memory.of(n, r) <= stage.capacity
                and stage.fewest_layers <= n <= stage.most_layers
                and r <= stage.most_recomputed
                for stage, n, r in filled
            )
            is_fitting &= (again.sum() > 0) == pipeline.is_recomputing
            if not pipeline.same_in_chunks and not pipeline.recomputes_all:
                expected = split_fits(stages, held[None], again[None])[0]
                assert is_fitting == expected
                fitting.add(bool(expected))
    assert True in fitting


@pytest.mark.parametrize("kind", ["limited", "experts"])
def test_stages_load_links_as_their_split_does(kind: str) -> None:
    plans, seen = plans_of(kind), 0
    for row in some_rows(plans):
        pipeline, rows = plans.pipeline(row, ANY_SPLIT), plans.one(row).costs.rows
        place = plans.lattice.place(rows)
        for held, again in splits_of(pipeline, row):
            if pipeline.recomputes_all:
                continue
            split = Split(held[None], again[None])
            busy = busy_seconds(plans.job, rows, split, place)[0] / TICK_S
            for e, stage in enumerate(pipeline.stages):
                told = sorted(use.of(held[e], again[e]) for use in stage.links)
                loads = np.sort(busy[e][busy[e] > 0])
                assert len(told) == len(loads)
                more = np.array(told) - loads
                assert (more >= -1e-6 * loads - 1e-3).all()
                assert (more <= TICKS_OFF * (1 + held[e] + again[e])).all()
                seen += len(told)
    assert seen > 100
    assert not any(
        stage.links for stage in plans_of("dense").pipeline(0, ANY_SPLIT).stages
    )


def test_the_model_has_the_links_that_rows_keep_too_busy_in_any_split() -> None:
    share = 0.02
    spec = mw.load("llama3-70b-16xh100", mw.Spec, pins={"micro_batch": 1, "pp": 2})
    job = make_job(spec.having("limits", max_link_utilisation=share))
    lattice = build_lattice(job)
    rows = prune(job, lattice).candidates.take(np.arange(40))
    limit, told = (
        LinkLimit(job, lattice, share),
        table_of(job, lattice, rows).busy_ticks,
    )
    assert np.isinf(rows.lower).any()
    busy = np.empty((len(rows), len(job.fabric.link_names)))
    for index, stages in stages_by_pp(job, rows.costs):
        busy[index] = limit.least_busy_ticks(stages)
    used = busy[np.isinf(rows.lower)].max(axis=0) > 0
    names = [n for n, one in zip(job.fabric.link_names, used, strict=True) if one]
    assert list(told) == names
    for name, one in zip(names, busy[:, used].T, strict=True):
        assert (told[name] <= one).all()
        assert (told[name] >= one * (1 - 1e-6) - 1).all()


def test_demands_pin_equal_stages_and_ask_for_all_layers() -> None:
    plans = plans_of("limited")
    row = next(
        row
        for row in range(len(plans))
        if len(plans.pipeline(row, ANY_SPLIT).stages) > 1
    )
    free, equal, whole, both = (plans.pipeline(row, demand) for demand in DEMANDS)
    count = len(free.stages)
    even = (free.layers // count,) * count
    assert (free.pinned_layers, equal.pinned_layers) == (None, even)
    assert (whole.pinned_layers, both.pinned_layers) == (None, even)
    asked = [one.recomputes_every_layer for one in (free, equal, whole, both)]
    assert asked == [False, False, True, True]
    assert [one.hint is None for one in (free, equal, whole, both)] == [
        not np.isfinite(plans.rows.upper[row]), True, True, True
    ]  # fmt: skip
    assert plans_of("dense").pipeline(0, ANY_SPLIT).hint is None


def proven_as(proof: Proof) -> Callable[..., Proof]:
    return lambda *_: proof


def test_a_row_that_no_time_is_left_for_has_its_constructed_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans = plans_of("limited")
    row = int(np.flatnonzero(np.isfinite(plans.rows.upper))[0])
    upper, lower = int(plans.rows.upper[row]), float(plans.rows.lower[row])
    unknown = Proof("unknown", (), 0, -inf)
    monkeypatch.setattr(rows_as_plans, "prove", proven_as(unknown))
    found = plans.prove(row, ANY_SPLIT, upper + 1)
    assert (found.status, found.ticks, found.bound) == ("feasible", upper, lower)
    assert found.split == plans.constructed(row)
    # It is no better than what is asked for.
    found = plans.prove(row, ANY_SPLIT, upper)
    assert (found.status, found.split, found.bound) == ("unknown", (), lower)
    whole = plans.prove(row, DEMANDS[2], upper + 1)
    assert whole.status == "unknown"
    none = Proof("infeasible", (), 0, inf)
    monkeypatch.setattr(rows_as_plans, "prove", proven_as(none))
    slower = plans.prove(row, ANY_SPLIT, upper)
    assert (slower.status, slower.bound) == ("slower", upper)
    assert plans.prove(row, ANY_SPLIT, ENDLESS_TICKS).status == "infeasible"


def test_a_proof_that_is_off_what_the_checker_says_is_a_fault() -> None:
    plans = plans_of("dense")
    row = int(plans.rows.upper.argmin())
    split: Pairs = plans.constructed(row)
    ticks = int(plans.rows.upper[row])
    right = Proof("optimal", split, ticks, float(ticks), row)
    priced = plans.checked(right)
    assert priced.step_s == pytest.approx(ticks * TICK_S, abs=1e-6)
    assert plans.checked(right) is priced
    for off in (10**6, -(10**6)):
        other = Plans(
            plans.job, plans.lattice, plans.options, NEVER, plans.effort, plans.rows
        )
        wrong = Proof("optimal", split, ticks + off, float(ticks), row)
        with pytest.raises(InternalError, match="off what was proven"):
            other.checked(wrong)
