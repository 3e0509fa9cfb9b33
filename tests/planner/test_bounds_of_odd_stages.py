"""Bounds of stages that few plans have, against every split.

As in `test_split_bounds_by_brute_force`, costs are a few whole numbers. The sums are of
what bounds leave below their splits: looser ones lose no plan, and make a search slow.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np

from meshwright.frameworks.base.framework import ALL_LAYERS, ONE_NUMBER
from meshwright.planner.integer_costs import Scaled
from meshwright.planner.model import DEMANDS, Demand
from meshwright.planner.split_bounds import (
    bubble_bound,
    bubble_rounding,
    construct_pinned_split,
    construct_split,
    least_bubble,
    lower_bound,
    slowest_split_ticks,
    split_fits,
    split_ticks,
    time_only_bound,
    with_pinned_recompute,
)
from meshwright.planner.stages import (
    ENDLESS_CHUNKS,
    fits,
    interleaved_fits,
    may_fit,
    on_gpu_kinds,
    quick_fits,
    stages_of,
)
from meshwright.planner.table import has_parts, least_ticks, memory_of_stages
from meshwright.plans.columns import Bools, Floats
from meshwright.spec.plan_fields import (
    DUALPIPE_V,
    NONE,
    ONE_F_ONE_B,
    ZERO_BUBBLE_V,
    Pins,
)
from tests.planner.test_split_bounds_by_brute_force import (
    MODEL,
    Drawn,
    bubbles_of,
    costs,
    every_split,
    take_rows,
    with_leading,
)

SEEDS = range(400)

KINDS = (
    *("v", "hosted", "leading", "partitioned", "pinned chunks", "scoped", "unlike"),
    "thin",
)


CHUNKED = ("v", "pinned chunks", "scoped")


class Odd(SimpleNamespace):
    """A skeleton of one kind with all its splits, and what its stages are made of."""

    kind: str
    drawn: Drawn
    capacity: int
    on_host: int
    fitting: Bools
    ticks: Floats


def one(value: int) -> Any:
    return np.full(1, value, dtype=np.int64)


def kind_of(seed: int) -> str:
    return KINDS[seed % len(KINDS)]


@cache
def odd(seed: int) -> Odd:
    """Return a skeleton drawn by its seed, whose kind follows from that."""
    random, kind = Random(seed), kind_of(seed)
    count = random.choice([2, 2, 3])
    # Interleaved stages have a layer for each chunk.
    layers = random.randint(2 * count if kind in CHUNKED else 4, 7)
    recomputes = random.random() < 0.7
    model = MODEL.model_copy(update={"n_layers": layers})
    changed, capacity = costs(random, count, recomputes), random.randint(12, 60)
    on_host, partition, pinned = ENDLESS_CHUNKS, None, None
    if kind == "v":
        changed = in_rows(
            changed, vpp=2, schedule=random.choice([ZERO_BUBBLE_V, DUALPIPE_V])
        )
    if kind in ("hosted", "v"):
        host = {"host_layer": 2, "host_lead": 0, "host_first": 3, "host_last": 3}
        changed = having(
            changed, {name: random.randint(0, n) for name, n in host.items()}
        )
        on_host = random.randint(3, 14)
    if kind in ("leading", "partitioned"):
        leading = random.randint(1, min(3, layers - count))
        model = with_leading(layers, leading)
        lead = {f"{name}lead": 6 for name in ("", "pace_", "sync_")}
        lead |= {"lead_state": 3, "lead_activations": 2, "beside_lead": 2}
        changed = having(
            changed, {name: random.randint(-2, n) for name, n in lead.items()}
        )
    if kind == "partitioned":
        partition = np.array(random.choice([s for s, _ in splits(layers, count)]))
    if kind == "pinned chunks":
        changed = in_rows(changed, vpp=2, schedule=ONE_F_ONE_B)
        pinned = random.choice([s for s, _ in splits(layers, count)])
    if kind == "scoped":
        changed = in_rows(changed, vpp=random.choice([1, 2]), schedule=ONE_F_ONE_B)
        changed = in_scope(changed, random.choice([ONE_NUMBER, ALL_LAYERS]))
    made = (model, capacity, on_host, partition, pinned)
    stages = stages_of(changed, *made)
    if kind == "thin":
        held = random.choice([(1, 0, 0), (1, 1, 1), (0, 2, 1), (0, 1, 0)])
        names = ("state", "activations", "freed")
        changed = having(changed, dict(zip(names, held, strict=True)))
        capacity = random.randint(2, 14)
        stages = stages_of(changed, model, capacity)
    if kind == "unlike":
        slower = having(
            changed,
            {
                name: int(getattr(changed, name)[0]) + random.randint(0, 5)
                for name in ("layer", "pace_layer", "recompute", "sync_layer")
            },
        )
        both = [stages_of(changed, *made), stages_of(slower, *made)]
        which = np.array([random.randint(0, 1) for _ in range(count)])
        stages = on_gpu_kinds(both, Scaled.least([changed, slower]), which)
    every = np.array(list(every_split(layers, count, recomputes)))
    drawn = Drawn(model, stages, every[:, 0], every[:, 1])
    many = take_rows(stages, np.zeros(len(every), dtype=np.int64))
    return Odd(
        kind=kind,
        drawn=drawn,
        capacity=capacity,
        on_host=on_host,
        fitting=split_fits(many, every[:, 0], every[:, 1]),
        ticks=split_ticks(many, every[:, 0], every[:, 1]),
    )


def splits(layers: int, count: int) -> Iterator[tuple[list[int], list[int]]]:
    return every_split(layers, count, recomputes=False)


def having(scaled: Scaled, amounts: dict[str, int]) -> Scaled:
    columns: dict[str, Any] = {name: one(value) for name, value in amounts.items()}
    return replace(scaled, **columns)


def in_rows(scaled: Scaled, **codes: int) -> Scaled:
    columns: dict[str, Any] = {name: one(value) for name, value in codes.items()}
    return replace(scaled, rows=replace(scaled.rows, **columns))


def in_scope(scaled: Scaled, scope: int) -> Scaled:
    """Return costs in a scope; recomputation of all layers is part of each of them."""
    if scope != ALL_LAYERS or scaled.rows.recompute[0] == NONE:
        return having(
            scaled, {"recompute_scope": scope if scaled.rows.recompute[0] else 0}
        )
    folded: dict[str, Any] = {
        "layer": scaled.layer + scaled.recompute,
        "pace_layer": scaled.pace_layer + scaled.pace_recompute,
        "activations": scaled.activations - scaled.freed,
    }
    gone = dict.fromkeys(("recompute", "pace_recompute", "freed"), 0)
    return replace(having(scaled, gone | {"recompute_scope": scope}), **folded)


def fitting_ones() -> Iterator[Odd]:
    yield from (each for each in map(odd, SEEDS) if each.fitting.any())


def test_every_kind_has_splits_that_fit_and_splits_that_do_not() -> None:
    fitting = Counter(fitting_one.kind for fitting_one in fitting_ones())
    total = Counter(each.kind for each in map(odd, SEEDS))
    assert all(15 < fitting[kind] < total[kind] for kind in KINDS)
    assert sum(each.fitting.all() for each in map(odd, SEEDS)) < len(SEEDS) / 2


def test_bounds_are_below_every_split_and_close_to_the_best() -> None:
    far = Counter[str]()
    for each in map(odd, SEEDS):
        stages, model = each.drawn.stages, each.drawn.model
        assert fits(stages)[0] == each.fitting.any()
        if not each.fitting.any():
            continue
        least, slowest = each.ticks[each.fitting].min(), each.ticks[each.fitting].max()
        cheap = time_only_bound(stages.costs, model)[0]
        most = slowest_split_ticks(stages, stages.layers)[0]
        assert cheap <= least
        assert slowest <= most
        for best in (math.inf, least + 5.0, least):
            assert lower_bound(stages, best)[0] <= least
        built = construct_split(stages)
        assert split_fits(stages, *built)[0]
        far.update(
            {
                "memory aside": int(least - cheap),
                "against nothing": int(least - lower_bound(stages, math.inf)[0]),
                "against the best": int(least - lower_bound(stages, least)[0]),
                "constructed": int(split_ticks(stages, *built)[0] - least),
                "slowest": int(most - slowest),
            }
        )
    assert far == Counter(
        {
            "memory aside": 2666,
            "against nothing": 1111,
            "against the best": 1089,
            "constructed": 138,
            "slowest": 6713,
        }
    )


def test_no_split_has_less_bubble_than_its_bounds_which_are_close() -> None:
    far = Counter[str]()
    for fitting_one in fitting_ones():
        stages, bubbles = fitting_one.drawn.stages, bubbles_of(fitting_one.drawn)
        rounding = bubble_rounding(stages.costs, stages.layers)[0]
        alone = bubble_bound(
            stages.costs,
            fitting_one.drawn.model,
            has_any_chunks=fitting_one.kind == "pinned chunks",
        )[0]
        least, best = (
            bubbles[fitting_one.fitting].min(),
            fitting_one.ticks[fitting_one.fitting].min(),
        )
        of_best = bubbles[fitting_one.fitting & (fitting_one.ticks <= best)].min()
        free, known = (least_bubble(stages, most)[0] for most in (math.inf, best))
        assert alone + rounding <= least
        assert free + rounding <= least
        assert known + rounding <= of_best
        far.update(
            {
                "memory aside": int(least - alone - rounding),
                "against nothing": int(least - free - rounding),
                "against the best": int(of_best - known - rounding),
            }
        )
    assert far == Counter(
        {"memory aside": 1733, "against nothing": 207, "against the best": 1282}
    )


def test_quick_tests_of_memory_say_what_all_stages_say_of_most() -> None:
    told = Counter[str]()
    for each in map(odd, SEEDS):
        if each.kind in ("partitioned", "pinned chunks", "unlike"):
            continue
        base, model, on_host = each.drawn.stages.costs, each.drawn.model, each.on_host
        capacity = np.arange(4, 100, 4)
        many = base.take(np.zeros(len(capacity), dtype=np.int64))
        exact = fits(stages_of(many, model, capacity[:, None], on_host))
        on_gpu = fits(stages_of(many, model, capacity[:, None]))
        can, cannot = quick_fits(many, model, capacity, on_host)
        may = may_fit(many, model, capacity[:, None])
        assert not (can & ~exact).any()
        assert not (exact & cannot).any()
        assert not (on_gpu & ~may).any()
        told.update(
            {
                "fit": int(exact.sum()),
                "surely": int(can.sum()),
                "surely not": int(cannot.sum()),
                "may": int(may.sum()),
            }
        )
        if base.rows.vpp[0] > 1 and model.n_layers % base.rows.pp[0] == 0:
            for most, has_room in zip(capacity.tolist(), exact, strict=True):
                assert interleaved_fits(base, model, most, on_host)[0] == has_room
    assert told["fit"] == 4673
    assert told["surely"] == 4308
    assert told["surely not"] == 512
    assert told["may"] == 5282


def some_fitting(given: Odd, most: int) -> list[int]:
    index = np.flatnonzero(given.fitting).tolist()
    return Random(len(index)).sample(index, min(most, len(index)))


def test_pinned_recomputation_has_a_bound_and_a_split_that_is_built() -> None:
    """Where all layers are recomputed, their pinned counts are those of the layers."""
    far = Counter[str]()
    for fitting_one in fitting_ones():
        stages, every = fitting_one.drawn.stages, fitting_one.drawn
        is_all = stages.costs.recompute_scope[0] == ALL_LAYERS
        is_all &= stages.costs.rows.recompute[0] != NONE
        counted = every.layers if is_all else every.recomputed
        for row in some_fitting(fitting_one, 3):
            pins = Pins(recompute_layers=tuple(counted[row].tolist()))
            same = fitting_one.fitting & (counted == counted[row]).all(axis=1)
            least = fitting_one.ticks[same].min()
            pinned = with_pinned_recompute(pins, stages)
            bound = lower_bound(pinned, math.inf)[0]
            assert fits(pinned)[0]
            assert bound <= least
            layers, again = construct_pinned_split(pins, stages)
            assert split_fits(stages, layers, again)[0]
            of_pins = layers if is_all else again
            assert of_pins.tolist() == [counted[row].tolist()]
            far.update(
                {
                    "bound": int(least - bound),
                    "constructed": int(split_ticks(stages, layers, again)[0] - least),
                }
            )
            both = pins.model_copy(update={"layers": tuple(every.layers[row].tolist())})
            layers, again = construct_pinned_split(both, stages)
            assert layers.tolist() == [every.layers[row].tolist()]
            assert again.tolist() == [every.recomputed[row].tolist()]
    assert far == Counter({"bound": 2251, "constructed": 152})


def asking(given: Odd) -> Any:
    """Return what the table asks of a job: nothing is pinned, and no link limited."""
    limits = SimpleNamespace(max_link_utilisation=None)
    spec = SimpleNamespace(pins=Pins(), limits=limits)
    return SimpleNamespace(spec=spec, gpu_kinds=given.kind == "unlike")


def test_demands_on_splits_have_bounds_below_those_that_meet_them() -> None:
    """A demand that no split meets has an endless bound."""
    far = Counter[Demand]()
    for fitting_one in fitting_ones():
        stages, every = fitting_one.drawn.stages, fitting_one.drawn
        free = lower_bound(stages, math.inf)
        equal = (every.layers == every.layers[:, :1]).all(axis=1)
        whole = (every.recomputed == every.layers).all(axis=1) | ~has_parts(stages)[0]
        for demand in DEMANDS:
            meets = fitting_one.fitting & (equal | (not demand.equal_stages))
            meets &= whole | (not demand.whole_recompute)
            told = least_ticks(asking(fitting_one), stages, free, demand)[0]
            least = fitting_one.ticks[meets].min(initial=math.inf)
            assert told <= least
            assert math.isinf(least) == math.isinf(told)
            if meets.any():
                far[demand] += int(least - told)
    any_split, equal_ones, whole_ones, both = DEMANDS
    assert far == Counter(
        {any_split: 1111, equal_ones: 157, whole_ones: 4178, both: 386}
    )


def test_the_fullest_stage_of_what_does_not_fit_needs_more_than_it_has() -> None:
    """Layers are then spread evenly, and recomputed where that frees memory."""
    for each in map(odd, SEEDS):
        stages = each.drawn.stages
        need, has = memory_of_stages(stages, fits(stages))
        left = (has - need)[0]
        even = np.full(stages.count, -(-stages.layers // stages.count))
        layers, again = even, np.where(stages.freed[0] > 0, even, 0)
        if each.fitting.any():
            layers, again = (part[0] for part in construct_split(stages))
        held = layers * stages.per_layer[0] - again * stages.freed[0]
        room = stages.layer_capacity[0] - held
        if not each.fitting.any():
            room[room == room.min()] = min(room.min(), -1)
        inner = room[1:-1].min() if stages.count > 2 else room[0]
        assert left.tolist() == [room[0], inner, room[-1]]
        assert (left >= 0).all() == each.fitting.any()
