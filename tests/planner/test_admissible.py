"""Bounds that leave plans out: none is above what it stands for.

The gate draws fewer random specs than `--all`.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import meshwright as mw
from meshwright.check.check import score
from meshwright.cost.job import Job, make_job
from meshwright.cost.offload import is_never_faster
from meshwright.frameworks.base.registry import most_leading_parts
from meshwright.planner import degrees as mesh_enumeration
from meshwright.planner.candidates import bounds_on_parts_s
from meshwright.planner.degrees import AT_ONCE, enumerate_meshes, listed
from meshwright.planner.families import find_families
from meshwright.planner.integer_costs import TICK_S, Scaled, rounding_error_s
from meshwright.planner.memory_fit import measure_stages, scaled_costs, stages_by_pp
from meshwright.planner.rows import build_lattice
from meshwright.planner.split_bounds import least_pace, time_only_bound
from meshwright.planner.stages import Stages, fits
from meshwright.plans.columns import SPARSE, Floats, ranges, representatives
from meshwright.plans.skeletons import Skeletons, Split, dealt, to_plan
from meshwright.spec.model import Model
from meshwright.spec.plan_fields import NONE
from meshwright.spec.spec import Spec
from meshwright.spec.user_rules import PARTS
from meshwright.topology.fabric import LevelFabric
from tests.helpers.extent import gate
from tests.helpers.strategies import expert_specs, specs

LAWS = settings(
    max_examples=gate(20, everything=60),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
SPECS = ("llama3-70b-128xa100", "gpt3-175b-1024xa100", "mixtral-8x7b-64xh100")


def check_families(job: Job) -> None:
    """Check that each skeleton is of one family, and keeps its bound."""
    lattice = build_lattice(job)
    if not len(lattice):
        return
    families = find_families(job, lattice, keeps_all=True)
    index = ranges(families.start, families.count)
    np.testing.assert_array_equal(index, np.arange(len(lattice)))
    found = time_only_bound(scaled_costs(job, lattice.rows), job.spec.model)
    assert (families.lower.repeat(families.count) <= found).all()


@LAWS
@given(specs())
def test_no_skeleton_takes_less_than_its_family(spec: Spec) -> None:
    check_families(make_job(spec))


@LAWS
@given(expert_specs())
def test_nor_does_one_with_experts(spec: Spec) -> None:
    check_families(make_job(spec))


def test_a_host_that_is_faster_than_the_gpu_is_a_family_of_its_own() -> None:
    spec = mw.load("llama2-13b-8xa100", mw.Spec)
    host = spec.cluster.topology.host
    assert host is not None
    quick = host.model_copy(update={"memory_gb_s": 1e6, "pcie_gb_s": 1e6})
    slow = spec.cluster.topology.gpu.model_copy(update={"memory_gb_s": 1.0})
    topology = spec.cluster.topology.model_copy(update={"host": quick, "gpu": slow})
    cluster = spec.cluster.model_copy(update={"topology": topology})
    job = make_job(spec.model_copy(update={"cluster": cluster}))
    assert is_never_faster(make_job(spec))
    assert not is_never_faster(job)
    check_families(job)


def test_so_is_each_way_to_offload_where_all_must() -> None:
    """Gradients that leave at once take less than those that leave at the end."""
    spec = mw.load(
        "llama2-13b-8xa100", mw.Spec, pins=["offload=[optimizer, gradients]"]
    )
    job = make_job(spec.model_copy(update={"framework": "deepspeed"}))
    lattice = build_lattice(job)
    ticks = time_only_bound(scaled_costs(job, lattice.rows), spec.model)
    family = lattice.unplaced.family
    is_first = np.diff(family, prepend=-1) > 0
    assert (ticks < ticks[is_first].repeat(np.bincount(family)[family[is_first]])).any()
    check_families(job)


def with_all_recomputed(costs: Scaled) -> Scaled:
    """Return costs whose layers are all recomputed, as far as they ever are."""
    return dataclasses.replace(
        costs,
        layer=costs.layer + costs.recompute,
        pace_layer=costs.pace_layer + costs.pace_recompute,
    )


def split_ticks(costs: Scaled, model: Model) -> Floats:
    """Return the ticks of an even split whose first stages have the leading layers.

    They are infinite where there are too few layers for one.
    """
    layers, leading = model.n_layers, model.first_dense_layers
    most_leading = most_leading_parts(model, costs.rows, None)
    ticks = np.full(len(costs), np.inf)
    for pp in np.unique(costs.rows.pp).tolist():
        index = np.flatnonzero(costs.rows.pp == pp)
        found, others = costs.take(index), np.arange(pp - 1)
        first = max(leading, -(-layers // pp)) if pp > 1 else layers
        if layers - first < pp - 1:
            continue
        rest = (layers - first + others) // max(pp - 1, 1)
        split = np.array([[first, *rest.tolist()]])
        held = dealt(np.array(leading), most_leading[index, None], np.arange(pp))
        fill = split * found.layer[:, None] + found.stage_extra(pp, held)
        pace = split * found.pace_layer[:, None] + found.stage_pace_extra(pp, held)
        sync = split * found.sync_layer[:, None] + found.stage_sync(pp, held)
        ticks[index] = fill.sum(axis=1) + pace.max(axis=1) + sync.max(axis=1)
    return ticks


def check_best_case(job: Job) -> None:
    """Check that skeletons take no less on any mesh than on the best links for each."""
    lattice, model = build_lattice(job), job.spec.model
    count = min(len(lattice), 200)
    some = np.random.default_rng(0).choice(len(lattice), count, replace=False)
    rows, which = lattice.on_meshes(np.sort(some), None)
    if not len(rows):
        return
    placed = scaled_costs(job, rows)
    unplaced = scaled_costs(job, lattice.rows.take(np.sort(some))).take(which)
    sizes = int(rows.pp.max()), int(rows.vpp.max()), model.leading_parts
    most = rounding_error_s(model.n_layers, *sizes) / TICK_S
    for one in (lambda costs: costs, with_all_recomputed):
        on_mesh = split_ticks(one(placed), model)
        assert (split_ticks(one(unplaced), model) <= on_mesh + most).all()
        assert (time_only_bound(one(unplaced), model) <= on_mesh + most).all()


@LAWS
@given(specs())
def test_no_mesh_is_better_than_the_best_links(spec: Spec) -> None:
    check_best_case(make_job(spec))


@LAWS
@given(expert_specs())
def test_nor_is_one_with_experts_on_it(spec: Spec) -> None:
    check_best_case(make_job(spec))


PARTS_OF_STEP = [f"parts.{name}" for name in PARTS if name != "bubble"]


def check_parts(job: Job) -> None:
    """Check that every split of layers has of each part what its bounds say."""
    random, lattice = np.random.default_rng(0), build_lattice(job)
    rows, _ = lattice.on_meshes(np.arange(min(len(lattice), 2_000)), None)
    bounds_s = bounds_on_parts_s(job, rows, PARTS_OF_STEP)
    for row in random.permutation(len(rows))[:20].tolist():
        one = rows.take(np.array([row]))
        pp, layers = int(one.pp[0]), job.spec.model.n_layers
        counts = 1 + random.multinomial(layers - pp, np.full(pp, 1 / pp))
        recomputed = random.integers(0, counts + 1) * (one.recompute[0] != NONE)
        plan = to_plan(one, 0, Split(counts, recomputed), lattice.place(one))
        parts = score(job, plan).step_parts
        for name in PARTS_OF_STEP:
            part_s = parts.get(name.removeprefix("parts."), 0.0)
            least_s, most_s = (
                side[row] for side in (bounds_s[name].low, bounds_s[name].high)
            )
            assert least_s <= part_s <= most_s, (name, plan)


@LAWS
@given(specs())
def test_every_split_has_of_a_part_of_the_step_what_its_bounds_say(spec: Spec) -> None:
    check_parts(make_job(spec))


@LAWS
@given(expert_specs())
def test_nor_has_one_with_experts(spec: Spec) -> None:
    check_parts(make_job(spec))


def test_the_bound_on_a_part_of_an_even_pipeline_is_near() -> None:
    """Most of the compute is on the slowest stage, unless layers are recomputed."""
    job = make_job(mw.load("llama3-70b-128xa100", mw.Spec, pins=["pp=4", "vpp=1"]))
    lattice = build_lattice(job)
    rows, _ = lattice.on_meshes(np.arange(2_000), None)
    plain = np.flatnonzero(rows.recompute == NONE)[:5]
    for row in plain.tolist():
        one = rows.take(np.array([row]))
        even = Split(np.full(4, 20), np.zeros(4, dtype=np.int64))
        parts = score(job, to_plan(one, 0, even, lattice.place(one))).step_parts
        bounds_s = bounds_on_parts_s(job, one, ["parts.compute"])["parts.compute"]
        assert 0.8 * parts["compute"] < bounds_s.low[0] <= parts["compute"]


def test_a_slower_gather_makes_no_repeated_forward_faster() -> None:
    """The GPU waits for its host or for weights; a repeated forward has its weights."""
    model = {"n_layers": 8, "d_model": 512, "n_heads": 8, "n_kv_heads": 8}
    levels = [
        {"name": "a", "size": 4, "gb_s": 300.0, "latency_us": 2.0},
        {"name": "b", "size": 4, "gb_s": 50.0, "latency_us": 10.0},
    ]
    peak = {"bf16": 989.0}
    gpu = {"memory_gib": 80.0, "memory_gb_s": 3_000.0, "peak_tflops": peak}
    overlap = {"parameters": False}
    spec = {
        "model": {**model, "d_ff": 2_048, "vocab": 8_000},
        "cluster": {"topology": {"gpu": gpu, "levels": levels}},
        "framework": "fsdp",
        "training": {"seq_len": 512, "global_batch": 128, "overlap": overlap},
        "pins": {"zero": 3, "recompute": "full", "pp": 1, "dp_shard": 4},
    }
    check_best_case(make_job(mw.Spec.model_validate(spec)))


def test_the_least_of_some_families_come_first() -> None:
    job = make_job(mw.load("llama2-13b-8xa100", mw.Spec))
    families = find_families(job, build_lattice(job))
    some = np.arange(0, len(families), 2)
    least, others = families.least(some, 10)
    assert sorted([*least.tolist(), *others.tolist()]) == some.tolist()
    assert len(least) == 10
    assert families.lower[least].max() <= families.lower[others].min()


def whole_layers(stages: Stages, pace: Floats) -> Floats:
    """Return the layers that stages take within a pace, counted one by one."""
    taken = np.zeros((len(pace), stages.count))
    for layers in range(1, stages.layers + 1):
        bent = np.maximum(layers - stages.plain_cap, 0) * stages.recompute_slope
        found = layers * stages.pace_layer + bent * stages.pace_recompute
        is_within = found + stages.pace_extra <= pace[:, None]
        taken += is_within & (layers <= stages.full_cap)
    return np.asarray(taken.sum(axis=1))


@pytest.mark.parametrize("name", SPECS)
def test_the_least_pace_is_enough_and_nothing_less_is(name: str) -> None:
    job = make_job(mw.load(name, mw.Spec))
    lattice = build_lattice(job)
    some = np.random.default_rng(1).choice(len(lattice), 3_000, replace=False)
    costs = scaled_costs(job, lattice.take(np.sort(some)).rows)
    costs = costs.take(np.flatnonzero(measure_stages(job, costs, fits)))
    tight = 0
    for _, stages in stages_by_pp(job, costs):
        pace = least_pace(stages)
        assert (whole_layers(stages, pace * (1 + 1e-12)) >= stages.layers).all()
        alone = stages.pace_extra + stages.least * stages.pace_layer
        is_over = pace > alone.max(axis=1) * (1 + 1e-9)
        less = whole_layers(stages, pace * (1 - 1e-9)) < stages.layers
        assert (less | ~is_over | (pace == 0)).all()
        tight += int((less & is_over).sum())
    assert tight > 100


@pytest.mark.parametrize("experts", [None, 4])
def test_meshes_are_listed_together_as_alone(experts: int | None) -> None:
    job = make_job(mw.load("mixtral-8x7b-64xh100", mw.Spec))
    degrees = np.unique(build_lattice(job).degrees, axis=0)
    folds = degrees[degrees[:, 2] % 4 == 0][: 2 * AT_ONCE + 3]
    keys = [(tuple(one), experts) for one in folds.tolist()]
    assert len(keys) > AT_ONCE
    assert isinstance(job.fabric, LevelFabric)
    together = listed(job.fabric, 1, keys)
    for key, (meshes, paths) in zip(keys, together, strict=True):
        # What is listed is kept per fabric: this one has nothing yet.
        ((found, alone),) = listed(LevelFabric(job.fabric.levels), 1, [key])
        np.testing.assert_array_equal(meshes, found)
        np.testing.assert_array_equal(paths.s_per_byte, alone.s_per_byte)
        every = enumerate_meshes(job.fabric.sizes, np.array(key[0]), 1).tolist()
        assert all(mesh in every for mesh in meshes.tolist())


def test_a_part_of_a_lattice_has_the_rows_of_the_whole() -> None:
    lattice = build_lattice(make_job(mw.load("llama3-70b-128xa100", mw.Spec)))
    some = np.random.default_rng(2).permutation(len(lattice))[:500]
    part = lattice.take(some)
    for field in dataclasses.fields(Skeletons):
        if field.name not in ("paths", "kind_paths"):
            whole = getattr(lattice.rows, field.name)[some]
            np.testing.assert_array_equal(getattr(part.rows, field.name), whole)
    np.testing.assert_array_equal(part.degree, lattice.degree[some])


@pytest.mark.parametrize("step", [1, 2 * SPARSE])
def test_numbers_far_apart_are_told_as_those_that_are_near(step: int) -> None:
    number = np.array([3, 0, 3, 7, 0]) * step
    found, inverse = representatives(number)
    assert number[found].tolist() == [0, 3 * step, 7 * step]
    np.testing.assert_array_equal(number[found][inverse], number)


def test_what_was_listed_is_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh_enumeration, "MOST_LISTED", 4)
    fabric = make_job(mw.load("llama3-70b-128xa100", mw.Spec)).fabric
    assert isinstance(fabric, LevelFabric)
    level_fabric = LevelFabric(fabric.levels)
    keys = [((tp, 1, 128 // tp, 1, 1), None) for tp in (1, 2, 4, 8, 16)]
    first = listed(level_fabric, 1, keys[:3])
    every = listed(level_fabric, 1, keys)
    assert set(mesh_enumeration._known(level_fabric, 1)) == set(keys[3:])
    for (meshes, _), (again, _) in zip(first, every, strict=False):
        np.testing.assert_array_equal(meshes, again)
