"""The nearest miss: where nothing fits, the deployment that misses least."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from meshwright.plans.columns import Bools, Floats, Ints, total
from meshwright.results.outcome import NearMiss
from meshwright.serving.check import checked
from meshwright.serving.deployment import Deployments
from meshwright.serving.enumeration import enumerate_deployments
from meshwright.serving.job import ServingJob
from meshwright.serving.lattice import Lattice, bounded
from meshwright.serving.memory import memory
from meshwright.serving.price import price
from meshwright.serving.round_time import wait_s
from meshwright.serving.rules import serving_rules
from meshwright.spec.units import GIB


def nearest_miss(
    lattice: Lattice, is_asked: Callable[[Deployments], Bools] | None = None
) -> NearMiss:
    """Return the deployment that comes closest to fitting, of those asked about.

    Among legal deployments it is the one that exceeds a limit by the least factor;
    where none is legal, the one that breaks the fewest rules.
    """
    asked = _asked(lattice.rows, is_asked)
    if len(asked):
        return _describe(lattice, int(asked[_excess(lattice, asked).argmin()]))
    job = lattice.job
    rows, meshes = enumerate_deployments(job)
    rows = rows.take(_asked(rows, is_asked))
    rules = serving_rules(job.spec, meshes)
    broken = np.sum([~rule.holds(job.spec, rows) for rule in rules], axis=0)
    nearest = rows.take(np.array([int(broken.argmin())]))
    return _describe(bounded(job, nearest, meshes), 0)


def _asked(rows: Deployments, is_asked: Callable[[Deployments], Bools] | None) -> Ints:
    if is_asked is None:
        return np.arange(len(rows))
    return np.flatnonzero(is_asked(rows))


def _describe(lattice: Lattice, row: int) -> NearMiss:
    """Return a deployment as a near miss, with its layers pinned or spread evenly."""
    job = lattice.job
    pins = job.spec.pins.layers
    stages = int(lattice.rows.pp[row])
    is_pinned = pins is not None and len(pins) == stages
    split = np.array(pins) if is_pinned else _even_split(job, stages)
    plan = lattice.plan(row, split)
    priced, broken = checked(job, plan)
    return NearMiss(
        description=f"{plan},layers={list(plan.layers)}".replace(" ", ""),
        broken_rules=tuple(broken),
        memory=max(priced.stages, key=lambda stage: stage.total_gib),
    )


def _even_split(job: ServingJob, stages: int) -> Ints:
    """Return layers spread evenly over stages, at least one on each."""
    layers = job.model.n_layers
    split = np.full(stages, layers // stages, dtype=np.int64)
    split[: layers % stages] += 1
    return np.maximum(split, 1) if layers < stages else split


def _excess(lattice: Lattice, asked: Ints) -> Floats:
    """Return, roughly, the factor by which rows exceed the limit they exceed most."""
    job, rows = lattice.job, lattice.rows.take(asked)
    layers, held, prices = job.model.n_layers, memory(job, rows), price(job, rows)
    most = np.ceil(layers / rows.pp)
    ends = np.maximum(total(held.first), total(held.last))
    needed = most * total(held.layer) + ends + total(held.fixed)
    slo = job.inference.slo
    first_s = layers * total(prices.first_token.layer)
    step_s = layers * total(prices.step.layer)
    waits = [first_s / wait_s(slo.ttft_ms), step_s / wait_s(slo.tpot_ms)]
    shares = [needed / (job.spec.usable_gib * GIB), *waits]
    return np.asarray(np.max(shares, axis=0))
