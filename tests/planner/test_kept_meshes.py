"""Which pairs of skeleton and mesh are gone on with, and how often that is asked."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from meshwright.planner.degrees import degree_rows
from meshwright.planner.rows import _keep_on_mesh
from meshwright.plans.columns import Bools, Floats
from meshwright.plans.skeletons import Skeletons
from meshwright.topology.fabric import PathCosts
from meshwright.topology.groups import GROUPS

SEEDS = range(40)


def cost_of(paths: PathCosts) -> Floats:
    """Return a cost that no group's cost lowers, and that tells all groups apart."""
    weights = np.arange(1, len(GROUPS) + 1)
    return np.asarray(paths.s_per_byte @ weights + paths.latency_s @ weights**2)


class Asked:
    """Keeps skeletons whose cost is within a limit, and counts what it is asked."""

    def __init__(self, limit: float) -> None:
        self.limit, self.count = limit, 0

    def __call__(self, rows: Skeletons) -> Bools:
        self.count += len(rows)
        return np.asarray(cost_of(rows.paths) * rows.micro_batch <= self.limit)


class Drawn:
    """Some skeletons on some meshes."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        meshes, rows = int(random.integers(1, 9)), int(random.integers(1, 5))
        few = random.integers(0, 3, (2, meshes, len(GROUPS))).astype(float)
        self.paths = PathCosts(*few)
        plain = degree_rows(np.ones((rows, 5), dtype=np.int64))
        columns: dict[str, Any] = {"micro_batch": np.arange(1, rows + 1)}
        self.rows = plain.take_with(np.arange(rows), **columns)
        pairs = np.array([*product(range(rows), range(meshes))])
        self.row, self.mesh = pairs[random.random(len(pairs)) < 0.8].T
        costs = np.outer(self.rows.micro_batch, cost_of(self.paths))
        self.limit = float(np.median(costs))


@pytest.mark.parametrize("seed", SEEDS)
def test_pairs_are_kept_by_what_their_mesh_costs(seed: int) -> None:
    drawn = Drawn(seed)
    asked = Asked(drawn.limit)
    twice = (
        np.concatenate([drawn.row, drawn.row]),
        np.concatenate([drawn.mesh, drawn.mesh]),
    )
    kept = _keep_on_mesh(drawn.rows, twice[0], drawn.paths, twice[1], asked)
    cost = cost_of(drawn.paths)
    assert kept.tolist() == 2 * [
        bool(cost[mesh] * (row + 1) <= drawn.limit)
        for row, mesh in zip(drawn.row.tolist(), drawn.mesh.tolist(), strict=True)
    ]
    assert asked.count == len(drawn.row)
