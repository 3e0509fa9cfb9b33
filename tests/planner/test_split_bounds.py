"""Bounds over all splits of a row, held against the splits that there are.

The gate looks at 100 rows, `--all` at 400.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from meshwright.check.check import checked
from meshwright.cost.job import make_job
from meshwright.frameworks.base.framework import ALL_LAYERS
from meshwright.loading.load import load_question, load_spec
from meshwright.planner import nearest_miss
from meshwright.planner.integer_costs import Scaled, capacity_chunks
from meshwright.planner.memory_fit import (
    costs_by_pp,
    measure_stages,
    scaled_costs,
    scaled_memory,
    stages_by_pp,
)
from meshwright.planner.rows import build_lattice
from meshwright.planner.side_limits import LinkLimit
from meshwright.planner.split_bounds import (
    construct_split,
    lower_bound,
    slowest_split_ticks,
    split_fits,
    split_ticks,
    with_pinned_recompute,
)
from meshwright.planner.stages import Stages, fits
from meshwright.plans.columns import Ints
from meshwright.spec.plan_fields import NONE, Pins
from meshwright.spec.spec import Spec
from meshwright.spec.units import GIB
from tests.helpers.extent import gate
from tests.helpers.irregular import loaded

SPECS = ("llama3-70b-128xa100", "gpt3-175b-1024xa100", "mixtral-8x7b-64xh100")


def experts() -> Spec:
    """Return DeepSeek-V3, whose first layers have no experts, on 512 H100."""
    spec = load_spec("llama3-70b-256xh100")
    cluster = spec.cluster.model_copy(update={"count": 64})
    changed = {"model": load_question("serve-deepseek-v3-8xh200").model}
    return spec.model_copy(update=changed | {"cluster": cluster})


def some_rows(spec: Spec, count: int) -> Scaled:
    """Return the costs of some rows that fit in memory."""
    job = make_job(spec)
    lattice = build_lattice(job)
    some = np.random.default_rng(3).choice(len(lattice), count, replace=False)
    costs = scaled_costs(job, lattice.take(np.sort(some)).rows)
    return costs.take(np.flatnonzero(measure_stages(job, costs, fits)))


def moved(stages: Stages, seed: int) -> tuple[Ints, Ints]:
    """Return constructive splits with some layers moved, more of them recomputed."""
    random = np.random.default_rng(seed)
    layers, recomputed = construct_split(stages)
    for _ in range(seed):
        one, other = random.integers(stages.count, size=(2, len(layers), 1))
        np.put_along_axis(layers, one, np.take_along_axis(layers, one, 1) - 1, 1)
        np.put_along_axis(layers, other, np.take_along_axis(layers, other, 1) + 1, 1)
    more = random.integers(0, 3, size=layers.shape)
    return layers, np.where(stages.freed > 0, np.minimum(recomputed + more, layers), 0)


@pytest.mark.parametrize("spec", [*map(load_spec, SPECS), experts()], ids=lambda s: "")
def test_no_split_is_faster_than_its_bound_or_slower_than_the_most(spec: Spec) -> None:
    job, seen = make_job(spec), 0
    for _, stages in stages_by_pp(job, some_rows(spec, 3_000)):
        layers, _ = construct_split(stages)
        assert (layers.sum(axis=1) == stages.layers).all()
        assert (layers >= stages.least).all()
        for seed in range(4):
            layers, recomputed = moved(stages, seed)
            ticks = split_ticks(stages, layers, recomputed)
            holds = split_fits(stages, layers, recomputed)
            for best in (float(ticks.max()), np.inf):
                assert (lower_bound(stages, best) <= ticks)[holds].all()
            assert (slowest_split_ticks(stages, layers.max(axis=1)) >= ticks)[
                holds
            ].all()
            seen += int(holds.sum())
    assert seen > 1_000


def test_first_layers_without_experts_leave_the_bound_tight() -> None:
    """The first stage's short end of the step is not the one of the others."""
    spec = experts()
    tight = total = 0
    for _, stages in stages_by_pp(make_job(spec), some_rows(spec, 6_000)):
        ticks = split_ticks(stages, *construct_split(stages))
        is_piped = (stages.costs.rows.pp > 1) & (stages.costs.rows.recompute == 0)
        tight += int(((lower_bound(stages, np.inf) >= 0.99 * ticks) & is_piped).sum())
        total += int(is_piped.sum())
    # Chunks of gradients that ZeRO-2 and 3 reduce beside a pipeline differ in size.
    assert tight > 0.8 * total > 0


def splits_of(stages: Stages) -> Iterator[tuple[Ints, Ints]]:
    """Yield every split of layers, none recomputed, all, and as they must be."""
    for cut in itertools.combinations(range(1, stages.layers), stages.count - 1):
        found = np.diff([0, *cut, stages.layers])
        layers = np.tile(found, (len(stages.costs), 1))
        forced = layers * stages.per_layer - stages.layer_capacity
        least = -(-np.maximum(forced, 0) // np.maximum(stages.freed, 1))
        for recomputed in (0 * layers, layers, least, np.minimum(least + 1, layers)):
            yield layers, recomputed


@pytest.mark.parametrize("share", [0.02, 0.2, 0.8])
def test_no_split_that_keeps_the_link_limit_is_faster_than_it_must_be(
    share: float,
) -> None:
    levels = [
        {"name": "nvlink", "size": 2, "gb_s": 200, "latency_us": 1},
        {"name": "net", "size": 4, "gb_s": 40, "latency_us": 5, "uplink": "shared"},
    ]
    topology = {"name": "eight", "gpu": "rtx-4090-24gb", "levels": levels}
    pins = {"micro_batch": 1, "vpp": {"max": 2}, "schedule": "1f1b", "zero": [0, 1]}
    spec = loaded({"topology": topology}, pins=pins)
    job = make_job(spec)
    lattice = build_lattice(job)
    rows, _ = lattice.on_meshes(np.arange(0, len(lattice), 3), None)
    limit = LinkLimit(job, lattice, share)
    kept = hopeless = 0
    for _, stages in stages_by_pp(job, scaled_costs(job, rows)):
        least = limit.least_ticks(stages)
        hopeless += int(np.isinf(least).sum())
        for layers, recomputed in splits_of(stages):
            ticks = split_ticks(stages, layers, recomputed)
            keeps = limit.keeps(stages, layers, recomputed, ticks)
            keeps &= split_fits(stages, layers, recomputed)
            assert (least <= ticks)[keeps].all()
            kept += int(keeps.sum())
    assert hopeless > 10 or share > 0.5
    assert kept > 10 or share < 0.1


ROWS = gate(100, everything=400)


@cache
def rows_alone() -> tuple[Scaled, Ints]:
    """Return some rows, and the capacity that each of them needs."""
    job = make_job(load_spec("llama3-70b-128xa100"))
    costs = scaled_memory(job, build_lattice(job).rows)
    costs = costs.take(np.random.default_rng(5).choice(len(costs), ROWS, replace=False))
    needed = np.array(
        [
            nearest_miss.least_capacity(job, costs.take(np.array([row])))[0]
            for row in range(len(costs))
        ]
    )
    return costs, needed


@pytest.mark.slow
def test_rows_need_together_what_each_needs_alone() -> None:
    job, sizes = make_job(load_spec("llama3-70b-128xa100")), []
    costs, needed = rows_alone()
    for index, part in costs_by_pp(costs):
        assert (nearest_miss.least_capacity(job, part) == needed[index]).all()
        sizes.append(len(part))
    assert min(sizes) <= nearest_miss.FEW_ROWS < max(sizes)


@pytest.mark.slow
@pytest.mark.parametrize("share", [1e-6, 0.5, 1.0, 1.5])
def test_the_row_that_needs_the_least_memory_is_the_first_of_them_all(
    share: float,
) -> None:
    spec = load_spec("llama3-70b-128xa100")
    costs, needed = rows_alone()
    usable_gib = share * needed.min() / capacity_chunks(1.0)
    limits = spec.limits.model_copy(update={"memory_gib": usable_gib})
    found = make_job(spec.model_copy(update={"limits": limits}))
    capacity = capacity_chunks(found.spec.usable_gib)
    assert (
        nearest_miss._least_full(found, costs) == np.maximum(needed, capacity).argmin()
    )


@pytest.mark.parametrize("name", SPECS)
def test_no_split_with_pinned_recomputation_is_faster_than_its_bound(name: str) -> None:
    spec, seen, closer = load_spec(name), 0, 0
    for _, stages in stages_by_pp(make_job(spec), some_rows(spec, 2_000)):
        has_all = stages.costs.recompute_scope == ALL_LAYERS
        has_all &= stages.costs.rows.recompute != NONE
        for seed in range(2):
            layers, recomputed = moved(stages, seed)
            ticks = split_ticks(stages, layers, recomputed)
            holds = split_fits(stages, layers, recomputed)
            again = np.where(has_all[:, None], layers, recomputed)
            for row in np.flatnonzero(holds)[:8]:
                pins = Pins(recompute_layers=tuple(again[row].tolist()))
                pinned = with_pinned_recompute(pins, stages)
                same = holds & (again == again[row]).all(axis=1)
                bound = lower_bound(pinned, np.inf)
                assert fits(pinned)[same].all()
                assert (bound <= ticks)[same].all()
                closer += int((bound > lower_bound(stages, np.inf))[same].sum())
                seen += int(same.sum())
    assert seen > 100
    assert closer > 0


@pytest.mark.parametrize("rows", [1, nearest_miss.FEW_ROWS, nearest_miss.FEW_ROWS + 1])
def test_rows_fit_in_the_least_capacity_and_in_no_less(rows: int) -> None:
    job = make_job(load_spec("llama3-70b-128xa100"))
    costs = scaled_memory(job, build_lattice(job).rows)
    for index, part in costs_by_pp(costs):
        some = np.random.default_rng(len(index)).choice(len(index), rows)
        few = part.take(some)
        least = nearest_miss.least_capacity(job, few).astype(np.int64)[:, None]
        assert fits(nearest_miss._stages(job, few, least)).all()
        assert not fits(nearest_miss._stages(job, few, least - 1)).any()


@pytest.mark.parametrize("name", ["llama3-70b-16xa100", "llama3-8b-2x4090-pcie"])
def test_the_nearest_miss_needs_the_least_memory_of_all_rows(name: str) -> None:
    job = make_job(load_spec(name))
    lattice = build_lattice(job)
    costs = scaled_memory(job, lattice.rows)
    least = min(
        float(nearest_miss.least_capacity(job, part).min())
        for _, part in costs_by_pp(costs)
    )
    found = nearest_miss.nearest_miss(job, lattice)
    assert found.memory is not None
    assert found.memory.total_gib == pytest.approx(least * 1024 / GIB, rel=1e-5)
    assert [rule.rule for rule in found.broken_rules] == ["memory"]
    assert found.plan is not None
    assert found.description == str(found.plan)
    priced, _ = checked(job, found.plan)
    parts = ("weights", "gradients", "optimizer")
    of_state = [stage.parts[part] for stage in priced.stages for part in parts]
    shares = found.plan.world_size / found.plan.pp
    assert found.state_gib == pytest.approx(sum(of_state) * shares)
    assert found.memory.total_gib == max(one.total_gib for one in priced.stages)
