"""The exact Pareto front of rows over a few metrics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshwright.plans.columns import Floats, Ints
from meshwright.sweeps.metrics import METRICS
from meshwright.sweeps.row import Row


def front(rows: Sequence[Row], metrics: Sequence[str]) -> list[Row]:
    """Return the rows that no other row dominates; equal rows are all kept.

    Rows that lack a metric take no part. The first metric orders the front, best first.
    """
    known = [row for row in rows if None not in _values(row, metrics)]
    if not known:
        return []
    signs = [1.0 if METRICS[name].better == "min" else -1.0 for name in metrics]
    costs = np.array([_values(row, metrics) for row in known], dtype=float) * signs
    return [known[index] for index in undominated(costs)]


def _values(row: Row, metrics: Sequence[str]) -> list[float | None]:
    return [getattr(row, name) for name in metrics]


def undominated(costs: Floats) -> Ints:
    """Return the rows of which no other is as low everywhere and lower somewhere.

    Rows are visited in the order of their columns. What dominates a row is visited
    before it, so a row is compared only with the front found so far.
    """
    found: list[int] = []
    for index in np.lexsort(costs.T[::-1]):
        known = costs[found]
        is_above = (known <= costs[index]).all(axis=1)
        is_above &= (known < costs[index]).any(axis=1)
        if not is_above.any():
            found.append(int(index))
    return np.array(found, dtype=np.int64)
