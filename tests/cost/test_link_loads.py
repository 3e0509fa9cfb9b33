"""What links carry is the same for rows together as for each alone."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
from meshwright.cost.job import make_job
from meshwright.cost.links import busy_seconds, link_seconds
from meshwright.planner.rows import build_lattice
from meshwright.plans.skeletons import Split
from meshwright.spec.plan_fields import FULL


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixtral-8x7b-64xh100", "llama3-70b-128xa100"])
def test_rows_load_links_as_each_does_alone(name: str) -> None:
    job = make_job(mw.load(name, mw.Spec))
    lattice = build_lattice(job)
    stages = 4
    random, compared = np.random.default_rng(3), 0
    some = random.choice(np.flatnonzero(lattice.rows.pp == stages), 300, replace=False)
    rows, _ = lattice.on_meshes(some, None)
    for mesh in np.unique(rows.mesh)[::7]:
        found = rows.take(np.flatnonzero(rows.mesh == mesh))
        layers = random.integers(1, 9, (len(found), stages))
        again = np.where(found.recompute[:, None] == FULL, layers // 2, 0)
        place = lattice.place(found)
        together = busy_seconds(job, found, Split(layers, again), place)
        for row in range(len(found)):
            one = found.take(np.array([row]))
            alone = link_seconds(job, one, Split(layers[row], again[row]), place)
            np.testing.assert_allclose(together[row], alone.sum(axis=1), rtol=1e-12)
            compared += int(again[row].any())
    assert compared > 10
