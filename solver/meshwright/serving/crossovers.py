"""The batches at which another technique becomes the best one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import numpy as np

from meshwright.results.serving import KindCrossover
from meshwright.serving.alternatives import techniques_of
from meshwright.serving.bisection import last_true
from meshwright.serving.job import make_serving_job
from meshwright.serving.lattice import build_lattice
from meshwright.spec.serving import ServingSpec

MOST_BATCH = 4096
"""The batch up to which crossovers are searched."""


def crossovers(
    spec: ServingSpec, techniques: Collection[str] | None = None
) -> Iterator[KindCrossover]:
    """Yield the best technique at batch 1, then every one that replaces it.

    Batches are doubled, and where the best technique changes, bisected. Only the given
    techniques are compared, or all.
    """

    def best_at(batch: int) -> KindCrossover | None:
        return _best_technique(spec, batch, techniques)

    current = best_at(1)
    while current is not None:
        yield current
        current = _next_crossover(best_at, current)


def _next_crossover(
    best_at: Callable[[int], KindCrossover | None], current: KindCrossover
) -> KindCrossover | None:
    """Return the first batch, seen by doubling, at which another technique is best."""

    def is_current(batch: int) -> bool:
        best = best_at(batch)
        return best is not None and best.kind == current.kind

    low, high = current.batch, 2 * current.batch
    while (best := best_at(high)) and best.kind == current.kind and high < MOST_BATCH:
        low, high = high, 2 * high
    if best is None or best.kind == current.kind:
        return None
    return best_at(last_true(is_current, low, high) + 1)


def _best_technique(
    spec: ServingSpec, batch: int, techniques: Collection[str] | None
) -> KindCrossover | None:
    """Return the best technique at a batch; None where no plan fits."""
    job = make_serving_job(spec).with_inference(batch=batch)
    lattice = build_lattice(job)
    used = techniques_of(lattice.rows)
    among = np.array([techniques is None or name in techniques for name in used], bool)
    row = lattice.best(among)
    if row is None:
        return None
    plan = lattice.plan(row, lattice.layers[row])
    return KindCrossover(batch=batch, kind=used[row], plan=plan)
