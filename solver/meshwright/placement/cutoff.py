"""The costs of groups above which no plan can be the best one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.deadline import Deadline
from meshwright.placement.order_costs import GroupTraffic, Limits
from meshwright.plans.columns import Bools, Floats
from meshwright.topology.fabric import PathCosts

STEPS, LARGEST = 12, 64.0
"""Factors tried for each cost: so many, from 1 up to `LARGEST` times the least."""


@dataclass(frozen=True)
class Cutoff:
    """Tells which costs of groups leave room for a plan as good as the best one."""

    best: float
    """Ticks of the best plan known."""
    ticks: Callable[[PathCosts], Floats]
    """Lower bound on the ticks of plans at these costs; infinite if there are none."""
    deadline: Deadline
    """The time after which no more orders are searched."""

    def keeps(self, paths: PathCosts) -> Bools:
        """Return for which costs the lower bound does not exceed the best plan."""
        ticks = self.ticks(paths)
        return np.isfinite(ticks) & (ticks <= self.best)


def limits_of(
    traffic: Sequence[GroupTraffic], floor: PathCosts, cutoff: Cutoff, rounds: int
) -> Limits:
    """Return the costs above which each kind of group alone rules out the best plan.

    Every round narrows the limits, which pays only where CP-SAT searches the orders.
    """
    low = np.ones((len(traffic), 2))
    high = LARGEST * low
    for _ in range(rounds):
        factors = np.geomspace(low, high, STEPS)
        kept = cutoff.keeps(_raised_alone(traffic, floor, factors))
        count = kept.reshape(factors.shape).sum(axis=0)
        bracket = np.array([np.maximum(count - 1, 0), np.minimum(count, STEPS - 1)])
        low, high = np.take_along_axis(factors, bracket, axis=0)
    columns = [group.column for group in traffic]
    least = np.stack([floor.s_per_byte[0], floor.latency_s[0]], axis=1)[columns]
    limits = np.where(low < LARGEST, high * least, np.inf)
    return tuple((s_per_byte, wait_s) for s_per_byte, wait_s in limits.tolist())


def _raised_alone(
    traffic: Sequence[GroupTraffic], floor: PathCosts, factors: Floats
) -> PathCosts:
    """Return the floor with one cost at a time raised by each of its factors.

    `factors` has shape (factors, groups, 2): those of load and of latency.
    """
    trials = factors.size
    load, wait = (
        costs.repeat(trials, axis=0).reshape(*factors.shape, -1)
        for costs in (floor.s_per_byte, floor.latency_s)
    )
    for index, group in enumerate(traffic):
        load[:, index, 0, group.column] *= factors[:, index, 0]
        wait[:, index, 1, group.column] *= factors[:, index, 1]
    return PathCosts(load.reshape(trials, -1), wait.reshape(trials, -1))
