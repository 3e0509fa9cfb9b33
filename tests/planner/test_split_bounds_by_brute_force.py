"""Bounds against every split, on small skeletons whose costs are a few whole numbers.

A tick is much there: a bound that is one too high shows, or lower than it could be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise, product
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest

from meshwright.planner.degrees import degree_rows
from meshwright.planner.integer_costs import Scaled, zero_costs
from meshwright.planner.split_bounds import (
    _next_pace,
    _pace_of_whole,
    bubble_bound,
    bubble_rounding,
    construct_split,
    least_bubble,
    lower_bound,
    split_fits,
    split_ticks,
    time_only_bound,
)
from meshwright.planner.stages import (
    Stages,
    fits,
    may_fit,
    on_gpu_kinds,
    quick_fits,
    stages_of,
)
from meshwright.planner.table import memory_of_stages
from meshwright.plans.columns import Floats, Ints
from meshwright.spec.model import Model
from meshwright.spec.plan_fields import FULL, GPIPE, NONE, ONE_F_ONE_B

MANY = 600

SHAPE = {"n_layers": 6, "d_model": 64, "n_heads": 4, "d_ff": 64, "vocab": 64}
MODEL = Model.model_validate(SHAPE)

LEADING = range(MANY, 2 * MANY)
"""Seeds of interleaved stages, of which the first hold leading dense layers."""

CHUNKED = ((4, 2), (7, 2), (8, 2), (6, 3), (8, 4))
"""Layers, and stages of two chunks."""


TERMS = (
    {"layer", "recompute", "lead", "first", "last", "send"},
    {
        *("pace_layer", "pace_recompute", "pace_lead", "pace_first", "pace_last"),
        "pace_send",
    },
    {"sync_layer", "sync_lead", "sync_first", "sync_last"},
)
"""What a step adds up: all stages, the slowest one, and the last to end."""


class Drawn(NamedTuple):
    """One skeleton, and all its splits."""

    model: Model
    stages: Stages
    layers: Ints
    recomputed: Ints
    """(splits, stages), each."""


def drawn(seed: int) -> Drawn:
    random = Random(seed)
    count, layers = random.choice([1, 2, 2, 3, 3]), random.randint(3, 7)
    recomputes = random.random() < 0.7
    model = MODEL.model_copy(update={"n_layers": layers})
    if seed in LEADING:
        layers, count = random.choice(CHUNKED)
        most = -(-layers // count) // 2 * count
        model = with_leading(layers, random.randint(1, min(most, layers - 1)))
    base = costs(random, count, recomputes)
    if seed in LEADING:
        base = led(random, base)
    capacity = random.randint(10, 60)
    stages = stages_of(base, model, capacity)
    if count > 1 and random.random() < 0.4:
        stages = unlike(random, base, model, capacity)
    found = np.array(list(every_split(layers, count, recomputes)))
    if seed in LEADING:
        is_whole = (found[:, 0] >= stages.least) & (found[:, 0] <= -(-layers // count))
        found = found[is_whole.all(axis=1)]
    return Drawn(model, stages, found[:, 0], found[:, 1])


def with_leading(layers: int, leading: int) -> Model:
    moe = {"n_experts": 2, "top_k": 1, "d_ff": 64, "first_dense_layers": leading}
    return Model.model_validate(SHAPE | {"n_layers": layers, "moe": moe})


def led(random: Random, base: Scaled) -> Scaled:
    """Return costs of two chunks, and of leading layers that differ from others."""
    one = np.ones(1, dtype=np.int64)
    lead: dict[str, Any] = {
        f"{name}lead": one * random.randint(-int(getattr(base, f"{name}layer")[0]), 6)
        for name in ("", "pace_", "sync_")
    }
    held: dict[str, Any] = {
        "lead_state": one * random.randint(-int(base.state[0]), 3),
        "lead_activations": one * random.randint(-2, 2),
        "beside_lead": one * random.randint(0, 2),
    }
    first: dict[str, Any] = {f"{name}first": one * 0 for name in ("", "pace_", "sync_")}
    rows = replace(base.rows, vpp=2 * one, schedule=ONE_F_ONE_B * one)
    return replace(base, rows=rows, **first, **lead, **held)


def costs(random: Random, count: int, recomputes: bool) -> Scaled:
    """Return the costs of one skeleton: few ticks, few chunks."""
    degrees = np.array([[1, 1, 1, 1, count]])
    one = np.ones(1, dtype=np.int64)
    rows = replace(
        degree_rows(degrees),
        microbatches=one * random.randint(1, 4),
        recompute=one * (FULL if recomputes else NONE),
        schedule=one * random.choice([ONE_F_ONE_B, GPIPE]),
    )
    few = {
        "layer": 9, "pace_layer": 9, "pace_recompute": 6, "send": 3, "pace_send": 3,
        "last": 9, "pace_last": 9, "sync_layer": 5, "sync_last": 9, "state": 3,
        "last_state": 3, "last_activations": 3, "fixed": 3, "outputs": 1,
    }  # fmt: skip
    found = {name: random.randint(0, most) for name, most in few.items()}
    # A recomputed layer takes time, and frees no more than there is.
    found |= {"recompute": random.randint(1, 6), "activations": random.randint(2, 4)}
    found["state"] += 1
    found["freed"] = random.randint(1, found["activations"])
    # A leading layer may take less than one that repeats, and not less than nothing.
    for name, of_layer in (
        ("first", "layer"),
        ("pace_first", "pace_layer"),
        ("sync_first", "sync_layer"),
    ):
        found[name] = random.randint(-found[of_layer], 9)
    found["first_state"] = random.randint(0, 3)
    if random.random() < 0.3:
        # One term alone: what it is bounded by has nothing to hide behind.
        alone = random.choice(TERMS)
        found |= dict.fromkeys({name for term in TERMS for name in term} - alone, 0)
        found["recompute"] = max(found["recompute"], 1)
    columns: dict[str, Any] = {name: one * value for name, value in found.items()}
    return replace(zero_costs(rows), **columns)


def unlike(random: Random, base: Scaled, model: Model, capacity: int) -> Stages:
    """Return stages on two kinds of GPUs, of which one is slower."""
    slower: dict[str, Any] = {
        name: getattr(base, name) + random.randint(0, 5)
        for name in ("layer", "pace_layer", "recompute", "pace_recompute")
    }
    kinds = [base, replace(base, **slower)]
    kind = np.array([random.randint(0, 1) for _ in range(int(base.rows.pp[0]))])
    found = [stages_of(each, model, capacity) for each in kinds]
    return on_gpu_kinds(found, Scaled.least(kinds), kind)


def every_split(
    layers: int, count: int, recomputes: bool
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield layers and recomputed layers of every stage."""
    for cut in combinations(range(1, layers), count - 1):
        ends = [0, *cut, layers]
        sizes = [b - a for a, b in pairwise(ends)]
        each = [range(n + 1) if recomputes else range(1) for n in sizes]
        yield from ((sizes, list(again)) for again in product(*each))


def ticks_of(given: Drawn) -> tuple[float, float]:
    """Return the least ticks of splits that fit, and of all that are splits."""
    rows = np.zeros(len(given.layers), dtype=np.int64)
    many = take_rows(given.stages, rows)
    ticks = split_ticks(many, given.layers, given.recomputed)
    fitting = split_fits(many, given.layers, given.recomputed)
    return float(ticks[fitting].min(initial=math.inf)), float(ticks.min())


def take_rows(stages: Stages, index: Ints) -> Stages:
    columns: dict[str, Any] = {
        name: column[index]
        for name, column in vars(stages).items()
        if isinstance(column, np.ndarray) and column.ndim == 2
    }
    return replace(stages, costs=stages.costs.take(index), **columns)


@pytest.mark.parametrize("seed", [*range(MANY), *LEADING])
def test_no_split_is_below_a_bound(seed: int) -> None:
    found = drawn(seed)
    least, least_of_all = ticks_of(found)
    assert time_only_bound(found.stages.costs, found.model)[0] <= least_of_all
    if math.isinf(least):
        return
    assert fits(found.stages)[0]
    # Against whatever best plan is known, up to this one itself.
    for best in (math.inf, least + 7.0, least + 1.0, least):
        assert lower_bound(found.stages, best)[0] <= least
    layers, recomputed = construct_split(found.stages)
    assert split_fits(found.stages, layers, recomputed)[0]
    assert split_ticks(found.stages, layers, recomputed)[0] >= least


def bubbles_of(given: Drawn) -> Floats:
    """Return what fills the pipeline in each split beside its slowest stage, ticks."""
    stages = given.stages
    fill = (
        given.layers * stages.layer + given.recomputed * stages.recompute + stages.extra
    )
    pace = given.layers * stages.pace_layer + given.recomputed * stages.pace_recompute
    slowest = (fill + pace + stages.pace_extra).argmax(axis=1)
    return np.asarray(fill.sum(axis=1) - fill[np.arange(len(fill)), slowest], float)


def test_no_split_has_less_bubble_than_its_bounds() -> None:
    tight = within = 0
    for seed in (*range(MANY), *LEADING):
        found = drawn(seed)
        stages, bubbles = found.stages, bubbles_of(found)
        rounding = bubble_rounding(stages.costs, stages.layers)[0]
        alone = bubble_bound(stages.costs, found.model)[0] + rounding
        assert alone <= bubbles.min()
        many = take_rows(stages, np.zeros(len(found.layers), dtype=np.int64))
        fitting = split_fits(many, found.layers, found.recomputed)
        if not fitting.any():
            continue
        ticks = split_ticks(many, found.layers, found.recomputed)
        free = least_bubble(stages, math.inf)[0] + rounding
        assert free <= bubbles[fitting].min()
        tight += stages.count > 1 and free == bubbles[fitting].min()
        for best in np.unique(ticks[fitting]):
            known = least_bubble(stages, best)[0] + rounding
            assert known <= bubbles[fitting & (ticks <= best)].min()
            within += known > free
    assert (tight, within) == (612, 102)


def test_first_fullest_inner_and_last_stage_say_whether_a_split_fits() -> None:
    found = set()
    for seed in range(MANY):
        stages = drawn(seed).stages
        need, has = memory_of_stages(stages, fits(stages))
        left = has[0] - need[0]
        assert (left >= 0).all() == fits(stages)[0]
        found.add((stages.count, bool(fits(stages)[0])))
        if stages.count > 2 and fits(stages)[0]:
            layers, recomputed = construct_split(stages)
            held = layers * stages.per_layer - recomputed * stages.freed
            room = (stages.layer_capacity - held)[0]
            assert left.tolist() == [room[0], room[1:-1].min(), room[-1]]
    assert found >= {(3, True), (3, False)}


def test_what_is_told_of_memory_before_the_stages_are_listed_is_so() -> None:
    told, true = np.zeros(3, dtype=int), np.zeros(2, dtype=int)
    capacity = np.arange(4, 100, 4)
    for seed in (*range(0, MANY, 6), *LEADING[::6]):
        found = drawn(seed)
        costs = found.stages.costs.take(np.zeros(len(capacity), dtype=np.int64))
        can, cannot = quick_fits(costs, found.model, capacity)
        may = may_fit(costs, found.model, capacity[:, None])
        exact = fits(stages_of(costs, found.model, capacity[:, None]))
        assert not (can & ~exact).any()
        assert not (exact & (cannot | ~may)).any()
        told += can.sum(), cannot.sum(), (~may).sum()
        true += exact.sum(), (~exact).sum()
    # Few are left to look at stage by stage.
    share = told / true[[0, 1, 1]]
    assert (share > (0.9, 0.44, 0.76)).all(), share


def test_a_stage_alone_is_bounded_exactly() -> None:
    """It has one split, and where nothing is recomputed, one step time."""
    exact = 0
    for seed in range(MANY):
        found = drawn(seed)
        least, _ = ticks_of(found)
        is_one = found.stages.count == 1 and len(found.layers) == 1
        if is_one and not math.isinf(least):
            assert lower_bound(found.stages, math.inf)[0] == least
            exact += 1
    assert exact > 10


@pytest.mark.parametrize("seed", range(120))
def test_float_noise_raises_no_bound(seed: int) -> None:
    """Where memory forces whole layers, the fluid bound is exact but for noise.

    Of n layers that hold `held` chunks each, r give back `freed`: room is n x held - r
    x freed to the chunk.
    """
    random = Random(seed)
    layers, held = random.randint(3, 90), random.randint(100_000, 3_000_000)
    # Little given back makes noise of chunks large, long layers that of ticks.
    freed = held // random.choice([2, 5_000])
    longest = random.choice([10**4, 10**12])
    layer, again = random.randint(1, longest), random.randint(1, longest)
    forced = random.randint(1, layers)
    none = costs(random, 1, recomputes=True)
    one = np.ones(1, dtype=np.int64)
    changed = replace(
        zero_costs(none.rows),
        layer=one * layer,
        recompute=one * again,
        state=one * (held - freed),
        activations=one * freed,
        freed=one * freed,
    )
    changed = replace(changed, rows=replace(changed.rows, microbatches=one))
    model = MODEL.model_copy(update={"n_layers": layers})
    stages = stages_of(changed, model, layers * held - forced * freed)
    least = layers * layer + forced * again
    assert split_ticks(stages, one[None] * layers, one[None] * forced)[0] == least
    assert least * (1 - 2e-12) - 1 <= lower_bound(stages, math.inf)[0] <= least


@pytest.mark.parametrize(
    ("seeds", "most"),
    [(range(MANY), (1479, 1541, 2642)), (LEADING, (2295, 2295, 6712))],
    ids=["alike", "leading"],
)
def test_bounds_are_no_looser_than_they_were(
    seeds: range, most: tuple[int, int, int]
) -> None:
    """Ticks between bounds and the best split, over all skeletons that fit.

    A bound that leaves something out is still a bound, and makes the search slow.
    """
    fluid = known = cheap = 0.0
    for seed in seeds:
        found = drawn(seed)
        least, least_of_all = ticks_of(found)
        cheap += least_of_all - time_only_bound(found.stages.costs, found.model)[0]
        if not math.isinf(least):
            fluid += least - lower_bound(found.stages, math.inf)[0]
            known += least - lower_bound(found.stages, least)[0]
    assert (known, fluid, cheap) == most


def test_the_next_pace_is_exact_until_a_stage_takes_a_third_layer_more() -> None:
    exact = 0
    for seed in range(0, MANY, 8):
        stages, chooser = drawn(seed).stages, np.random.default_rng(seed)
        most = chooser.integers(0, 3, (1, stages.count)).astype(np.float64)
        short = int(chooser.integers(1, 7))
        more = np.concatenate([_pace_of_whole(stages, most + n) for n in range(1, 8)])
        least = np.sort(more, axis=None)[short - 1]
        known = _next_pace(stages, most, np.array([float(short)]))[0]
        assert known <= least
        if (more[2] > least).all():
            exact += 1
            assert known == least
    assert 10 < exact < MANY // 8
