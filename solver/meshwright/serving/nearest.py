"""The deployment that comes closest where none fits, and the rules it breaks."""

from __future__ import annotations

import numpy as np

from meshwright.cost.arrays import Floats, Ints, total
from meshwright.plan import NearMiss
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


def nearest_miss(job: ServingJob, lattice: Lattice) -> NearMiss:
    """Return the legal row that passes limits by the least share, with its numbers.

    Where rules leave no row, the one that breaks the fewest of them.
    """
    if len(lattice):
        row = int(_excess(job, lattice.rows).argmin())
        return describe(lattice, row)
    rows, meshes = enumerate_deployments(job)
    rules = serving_rules(job.spec, meshes)
    breaks = sum(~rule.holds(job.spec, rows) for rule in rules)
    row = int(np.argmin(breaks))
    return describe(bounded(job, rows.take(np.array([row])), meshes), 0)


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
        description=f"{plan} layers={list(plan.layers)}",
        broken_rules=tuple(broken_rules(job, plan)),
        memory=fullest,
    )


def even(job: ServingJob, stages: int) -> Ints:
    """Return layers spread evenly, the larger stages in the middle last."""
    layers = job.model.n_layers
    split = np.full(stages, layers // stages, dtype=np.int64)
    split[: layers % stages] += 1
    return np.maximum(split, 1) if layers < stages else split


def _excess(job: ServingJob, rows: Deployments) -> Floats:
    """Return by what factor rows pass the limit they pass most, roughly."""
    layers, held, prices = job.model.n_layers, memory(job, rows), price(job, rows)
    own = np.ceil(layers / rows.pp)
    ends = np.maximum(total(held.first), total(held.last))
    needed = own * total(held.layer) + ends + total(held.fixed)
    slo = job.inference.slo
    first_s = layers * total(prices.first_token.layer)
    step_s = layers * total(prices.step.layer)
    waits = [first_s / wait_s(slo.ttft_ms), step_s / wait_s(slo.tpot_ms)]
    shares = [needed / (job.spec.usable_gib * GIB), *waits]
    return np.asarray(np.max(shares, axis=0))
