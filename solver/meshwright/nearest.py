"""The nearest miss: where nothing fits, the plan that breaks least, with numbers."""

from __future__ import annotations

import numpy as np

from meshwright.check import broken_rules, check
from meshwright.cost.arrays import Floats, Ints
from meshwright.decode import to_plan
from meshwright.job import Job
from meshwright.lattice import Lattice, coarse_rows, degree_rows, enumerate_meshes
from meshwright.legality import degree_rules, mesh_rules, plan_rules
from meshwright.plan import NearMiss, Plan
from meshwright.prune import pinned_split, real_split, scale_job
from meshwright.rule import Rule, broken
from meshwright.scaling import Scaled, capacity_chunks
from meshwright.skeleton import Skeletons
from meshwright.spec.pins import AXES
from meshwright.stages import fits, stages_of
from meshwright.topology.paths import Meshes, free_paths, price_meshes

BISECTIONS = 48


def nearest_miss(job: Job, lattice: Lattice) -> NearMiss:
    """Return the plan that comes closest to fitting, and the rules it breaks."""
    if len(lattice.rows):
        return _nearest_in_memory(job, lattice)
    return nearest_legal(job, enumerate_meshes(job.fabric.sizes))


def describe(job: Job, plan: Plan) -> NearMiss:
    """Return a plan as a near miss."""
    fullest = max(check(job, plan).stages, key=lambda stage: stage.total_gib)
    rules = tuple(broken_rules(job, plan))
    return NearMiss(description=str(plan), broken_rules=rules, memory=fullest)


def _nearest_in_memory(job: Job, lattice: Lattice) -> NearMiss:
    """Return the legal plan that needs the least memory on its fullest GPU."""
    costs = scale_job(job, lattice.rows)
    needed = np.empty(len(costs))
    for count in np.unique(costs.rows.pp):
        index = np.flatnonzero(costs.rows.pp == count)
        needed[index] = _least_capacity(job, costs.take(index))
    usable = capacity_chunks(job.spec.usable_gib)
    # Among plans that fit, which break another rule, the first is as good as any.
    row = np.array([int(np.argmin(np.maximum(needed, usable)))])
    one = lattice.on_meshes(row).take(np.array([0]))
    capacity = int(max(needed[row[0]], usable))
    stages = stages_of(scale_job(job, one), job.spec.model.n_layers, capacity)
    layers, recomputed = pinned_split(job.spec.pins, stages)
    split = real_split(job, one, layers[0], recomputed[0])
    return describe(job, to_plan(one, 0, split, lattice.meshes[one.mesh[0]]))


def _least_capacity(job: Job, costs: Scaled) -> Floats:
    """Return the chunks per GPU with which each row fits; all rows have one pp."""
    layers = job.spec.model.n_layers
    low = np.zeros(len(costs), dtype=np.int64)
    high = np.full(len(costs), 2**BISECTIONS, dtype=np.int64)
    for _ in range(BISECTIONS):
        middle = (low + high) // 2
        enough = fits(stages_of(costs, layers, middle[:, None]))
        high = np.where(enough, middle, high)
        low = np.where(enough, low, middle)
    return high.astype(np.float64)


def nearest_legal(job: Job, meshes: Meshes) -> NearMiss:
    """Return the skeleton that breaks the fewest rules, of those on some meshes."""
    spec = job.spec
    every = [*degree_rules(spec), *mesh_rules(spec, meshes)]
    on_degrees = degree_rows(meshes, price_meshes(job.fabric, meshes))
    counts = _broken_counts(job, every, on_degrees)
    best = np.flatnonzero(counts == counts.min())
    if counts.min() > 0:
        return _describe_row(job, every, on_degrees.take(best[:1]))
    degrees = np.unique(meshes[best].prod(axis=2), axis=0)
    rows, _ = coarse_rows(spec, degrees, free_paths(len(degrees), len(AXES)))
    rules = plan_rules(spec)
    row = np.array([int(np.argmin(_broken_counts(job, rules, rows)))])
    return _describe_row(job, rules, rows.take(row))


def _broken_counts(job: Job, rules: list[Rule], rows: Skeletons) -> Ints:
    counts = np.zeros(len(rows), dtype=np.int64)
    for rule in rules:
        counts += ~rule.holds(job.spec, rows)
    return counts


def _describe_row(job: Job, rules: list[Rule], rows: Skeletons) -> NearMiss:
    names = ("tp", "pp", "dp_replicate", "dp_shard")
    shown = " ".join(f"{name}={getattr(rows, name)[0]}" for name in names)
    return NearMiss(
        description=shown, broken_rules=tuple(broken(rules, job.spec, rows))
    )
