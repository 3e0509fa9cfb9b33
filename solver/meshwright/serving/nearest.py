"""The deployment that comes closest where none fits, and the rules it breaks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from meshwright.plans.columns import Bools, Floats, Ints, total
from meshwright.results.outcome import NearMiss
from meshwright.serving.check import broken_rules, check
from meshwright.serving.deployment import Deployments
from meshwright.serving.enumeration import enumerate_deployments
from meshwright.serving.job import ServingJob
from meshwright.serving.lattice import Lattice, bounded
from meshwright.serving.memory import memory
from meshwright.serving.price import price
from meshwright.serving.rounds import wait_s
from meshwright.serving.rules import serving_rules
from meshwright.spec.units import GIB


def miss_among(
    lattice: Lattice, is_asked: Callable[[Deployments], Bools] | None = None
) -> NearMiss:
    """Return the row, of those asked for, that comes closest to a plan.

    Of legal rows that is the one that passes a limit by the least share; where rules
    leave none, the one that breaks the fewest of them.
    """
    own = _asked(lattice.rows, is_asked)
    if len(own):
        return describe(lattice, int(own[_excess(lattice, own).argmin()]))
    job = lattice.job
    rows, meshes = enumerate_deployments(job)
    own = _asked(rows, is_asked)
    rows = rows.take(own)
    rules = serving_rules(job.spec, meshes)
    breaks = np.sum([~rule.holds(job.spec, rows) for rule in rules], axis=0)
    first = rows.take(np.array([int(breaks.argmin())]))
    return describe(bounded(job, first, meshes), 0)


def _asked(rows: Deployments, is_asked: Callable[[Deployments], Bools] | None) -> Ints:
    if is_asked is None:
        return np.arange(len(rows))
    return np.flatnonzero(is_asked(rows))


def describe(lattice: Lattice, row: int) -> NearMiss:
    """Return a row with layers spread evenly, and the rules it breaks."""
    job = lattice.job
    pins = job.spec.pins.layers
    stages = int(lattice.rows.pp[row])
    split = np.array(pins) if pins and len(pins) == stages else even(job, stages)
    plan = lattice.plan(row, split)
    priced = check(job, plan)
    fullest = max(priced.stages, key=lambda stage: stage.total_gib)
    return NearMiss(
        description=f"{plan},layers={list(plan.layers)}".replace(" ", ""),
        broken_rules=tuple(broken_rules(job, plan)),
        memory=fullest,
    )


def even(job: ServingJob, stages: int) -> Ints:
    """Return layers spread evenly, one on each stage at least."""
    layers = job.model.n_layers
    split = np.full(stages, layers // stages, dtype=np.int64)
    split[: layers % stages] += 1
    return np.maximum(split, 1) if layers < stages else split


def _excess(lattice: Lattice, own: Ints) -> Floats:
    """Return by what factor some rows pass the limit they pass most, roughly."""
    job, rows = lattice.job, lattice.rows.take(own)
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
