"""Limits on what groups of ranks may pay, and orders of GPUs that are worth it."""

from __future__ import annotations

from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshwright.deadline import NEVER
from meshwright.planner import placer
from meshwright.planner.placer import (
    LARGEST,
    MOST_UNITS,
    STEPS,
    Cutoff,
    GroupTraffic,
    combined_orders,
    limits_of,
)
from meshwright.plans.columns import Floats
from meshwright.topology.fabric import PathCosts
from meshwright.topology.groups import GROUPS

TRAFFIC = [GroupTraffic(column, (), 1.0, 0.0) for column in (1, 3)]


class Weighed:
    """Ticks that grow with what each group pays by the byte, and waits."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.weights = random.uniform(0.1, 3, (2, len(GROUPS)))
        self.floor = PathCosts(*random.uniform(1, 2, (2, 1, len(GROUPS))))
        self.best = float(self(self.floor)[0]) * random.uniform(1.01, 9)

    def __call__(self, paths: PathCosts) -> Floats:
        by_byte, by_wait = self.weights
        return np.asarray(paths.s_per_byte @ by_byte + paths.latency_s @ by_wait)

    def most(self, column: int, index: int) -> float:
        """Return what a group may pay at most, if all else is at its least."""
        found = (self.floor.s_per_byte, self.floor.latency_s)[index][0, column]
        spare = self.best - self(self.floor)[0]
        return float(found + spare / self.weights[index, column])


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("rounds", [1, 2])
def test_limits_are_little_above_what_rules_out_the_best_plan(
    seed: int, rounds: int
) -> None:
    """Each round looks at twelve factors between those of the round before."""
    weighed = Weighed(seed)
    cutoff = Cutoff(weighed.best, weighed, NEVER)
    found = limits_of(TRAFFIC, weighed.floor, cutoff, rounds)
    apart = LARGEST ** ((1 / (STEPS - 1)) ** rounds)
    for group, limits in zip(TRAFFIC, found, strict=True):
        for index, limit in enumerate(limits):
            most = weighed.most(group.column, index)
            least = (weighed.floor.s_per_byte, weighed.floor.latency_s)[index]
            if most > LARGEST * least[0, group.column]:
                assert np.isinf(limit)
            else:
                assert most <= limit * (1 + 1e-9)
                assert limit <= most * apart * (1 + 1e-9)


def test_a_plan_that_costs_as_much_as_the_best_is_kept() -> None:
    ticks = np.array([1.0, 2.0, 3.0, np.inf])
    cutoff = Cutoff(2.0, lambda _: ticks, NEVER)
    paths = PathCosts(*np.zeros((2, 4, len(GROUPS))))
    assert cutoff.keeps(paths).tolist() == [True, True, False, False]
    endless = Cutoff(np.inf, lambda _: ticks, NEVER)
    assert endless.keeps(paths).tolist() == [True, True, True, False]


def test_amounts_are_whole_units_and_limits_above_them() -> None:
    amounts = placer._units(np.array([0.0, 2.4, 2.6, 1e40]), 1.0)
    assert amounts.tolist() == [0, 2, 3, MOST_UNITS]
    for units, above in ((0.0, 1), (2.0, 3), (2.4, 3), (np.inf, MOST_UNITS + 1)):
        assert placer._units_above(units) == above


@pytest.mark.parametrize("seed", range(30))
def test_orders_of_all_hosts_together_are_those_that_no_other_is_better_than(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts wait for the slowest of them; of equals the first is kept."""
    draw = Random(seed)
    fronts: list[Any] = [
        [(kind, order) for order in range(draw.randint(1, 4))] for kind in range(2)
    ]
    costs = {
        order: [float(draw.randint(0, 3)) for _ in range(2 * len(TRAFFIC))]
        for front in fronts
        for order in front
    }
    monkeypatch.setattr(placer, "_costs", lambda _, kind: costs[kind.order])
    monkeypatch.setattr(
        placer, "replace", lambda _, order: SimpleNamespace(order=order)
    )
    kinds: Any = [None, None]
    found = combined_orders(TRAFFIC, kinds, fronts)
    every = {
        pair: np.max([costs[order] for order in pair], axis=0)
        for pair in product(*fronts)
    }
    assert len({tuple(every[pair]) for pair in found}) == len(found)
    best = {
        tuple(one)
        for one in every.values()
        if not any((o <= one).all() and (o < one).any() for o in every.values())
    }
    assert {tuple(every[pair]) for pair in found} == best


@pytest.mark.parametrize(
    ("more", "is_above"), [(0.0, False), (1e-12, False), (1e-6, True), (-1e-6, False)]
)
@pytest.mark.parametrize("name", ["s_per_byte", "latency_s"])
def test_one_cost_of_one_group_may_be_above_the_least(
    more: float, is_above: bool, name: str
) -> None:
    floor = PathCosts(*np.ones((2, 3, len(GROUPS))))
    prices = PathCosts(*np.ones((2, 3, len(GROUPS))))
    getattr(prices, name)[1, 2] *= 1 + more
    assert placer._is_above(prices, floor).tolist() == [False, is_above, False]
