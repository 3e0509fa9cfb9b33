"""Rows are priced together as each is alone: columns share kernels, state and links."""

from __future__ import annotations

from dataclasses import is_dataclass
from random import Random
from typing import Any

import numpy as np
import pytest

from meshwright.cost.job import Job, make_job
from meshwright.cost.links import group_bytes
from meshwright.cost.price import Prices, price, step_seconds
from meshwright.planner.rows import build_lattice
from meshwright.plans.columns import FEW
from meshwright.plans.skeletons import Skeletons, Split
from tests.helpers.strategies import FRAMEWORKS
from tests.recomputed.plans import random_efficiency
from tests.recomputed.specs import random_spec

ALONE = 25
"""Rows of each spec that are priced alone too."""


def many_rows(seed: int) -> tuple[Job, Skeletons]:
    """Return so many rows that those alike are told apart; some have one precision."""
    random = Random(seed)
    while True:
        spec = random_spec(random, FRAMEWORKS, has_host=seed % 2 == 0)
        job = make_job(spec, random_efficiency(random))
        lattice = build_lattice(job)
        if len(lattice) > FEW // 4:
            rows, _ = lattice.on_meshes(np.arange(len(lattice)), None)
            if len(rows) > FEW:
                return job, rows


def columns(value: Any, name: str = "") -> dict[str, Any]:
    """Return all columns of costs, by what they are called."""
    if not isinstance(value, dict) and not is_dataclass(value):
        return {name: value}
    found: dict[str, Any] = {}
    for key, one in (value if isinstance(value, dict) else vars(value)).items():
        found |= columns(one, f"{name}.{key}")
    return found


def costs(prices: Prices) -> dict[str, Any]:
    return columns(prices.time, "time") | columns(prices.memory, "memory")


@pytest.mark.parametrize("seed", range(10))
def test_rows_are_priced_together_as_alone(seed: int) -> None:
    job, rows = many_rows(seed)
    together = costs(price(job, rows))
    for row in Random(seed).sample(range(len(rows)), ALONE):
        alone = costs(price(job, rows.take(np.array([row]))))
        assert alone.keys() <= together.keys()
        for name, column in together.items():
            assert len(column) == len(rows)
            # What other rows alone have is nothing here.
            found = alone.get(name, np.zeros(1))
            assert column[row] == pytest.approx(found[0], rel=1e-12, abs=1e-18), name


@pytest.mark.parametrize("seed", range(4))
def test_steps_and_links_of_many_rows_are_those_of_each(seed: int) -> None:
    job, rows = many_rows(seed)
    count, layers = int(np.bincount(rows.pp).argmax()), job.spec.model.n_layers
    rows = rows.take(np.flatnonzero(rows.pp == count))
    base = np.full((len(rows), count), layers // count)
    base[:, 0] += layers - base.sum(axis=1)
    split = Split(base, base // 2 * (rows.recompute > 0)[:, None])
    step_s = step_seconds(rows, price(job, rows).time, split)
    passed = group_bytes(job, rows, split)
    for row in Random(seed).sample(range(len(rows)), ALONE):
        found, index = rows.take(np.array([row])), slice(row, row + 1)
        one = Split(split.layers[index], split.recomputed[index])
        alone_s = step_seconds(found, price(job, found).time, one)
        assert step_s[row] == pytest.approx(alone_s[0], rel=1e-12)
        np.testing.assert_allclose(passed[row], group_bytes(job, found, one)[0], 1e-12)
