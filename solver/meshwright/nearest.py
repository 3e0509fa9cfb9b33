"""The nearest miss: where nothing fits, the plan that breaks least, with numbers."""

from __future__ import annotations

import math

import numpy as np

from meshwright.check import broken_rules, check
from meshwright.coarse import coarse_rows, with_choices
from meshwright.cost.arrays import Floats, Ints
from meshwright.decode import to_plan
from meshwright.degrees import degree_rows, enumerate_degrees, mesh_rows
from meshwright.job import Job
from meshwright.kinds import kind_of
from meshwright.lattice import Lattice
from meshwright.legality import degree_rules, mesh_rules, plan_rules
from meshwright.meshes import AS_LISTED, enumerate_meshes
from meshwright.plan import NearMiss, Plan
from meshwright.prune import pinned_split, real_split
from meshwright.room import scale_job
from meshwright.rule import Rule, broken
from meshwright.scaling import Scaled, capacity_chunks
from meshwright.skeleton import Skeletons
from meshwright.stages import fits, stages_of
from meshwright.topology.groups import price_groups

BISECTIONS = 48


def nearest_miss(job: Job, lattice: Lattice) -> NearMiss:
    """Return the plan that comes closest to fitting, and the rules it breaks."""
    if len(lattice.rows):
        return _nearest_in_memory(job, lattice)
    return nearest_legal(job)


def describe(job: Job, plan: Plan) -> NearMiss:
    """Return a plan as a near miss."""
    fullest = max(check(job, plan).stages, key=lambda stage: stage.total_gib)
    rules = tuple(broken_rules(job, plan))
    return NearMiss(
        description=str(plan), broken_rules=rules, memory=fullest, plan=plan
    )


def _nearest_in_memory(job: Job, lattice: Lattice) -> NearMiss:
    """Return the legal plan that needs the least memory on its fullest GPU."""
    costs = scale_job(job, lattice.rows, lattice.alike)
    needed = np.empty(len(costs))
    for count in np.unique(costs.rows.pp):
        index = np.flatnonzero(costs.rows.pp == count)
        needed[index] = _least_capacity(job, costs.take(index))
    usable = capacity_chunks(job.spec.usable_gib)
    # Among plans that fit, which break another rule, the first is as good as any.
    row = np.array([int(np.argmin(np.maximum(needed, usable)))])
    placed, _ = lattice.on_meshes(row, AS_LISTED)
    if not len(placed):
        return nearest_legal(job)
    one = placed.take(np.array([0]))
    capacity = int(max(needed[row[0]], usable))
    stages = stages_of(scale_job(job, one), job.spec.model, capacity)
    layers, recomputed = pinned_split(job.spec.pins, stages)
    split = real_split(job, one, layers[0], recomputed[0])
    return describe(job, to_plan(one, 0, split, lattice.place(one)))


def _least_capacity(job: Job, costs: Scaled) -> Floats:
    """Return the chunks per GPU with which each row fits; all rows have one pp."""
    low = np.zeros(len(costs), dtype=np.int64)
    high = np.full(len(costs), 2**BISECTIONS, dtype=np.int64)
    for _ in range(BISECTIONS):
        middle = (low + high) // 2
        enough = fits(stages_of(costs, job.spec.model, middle[:, None]))
        high = np.where(enough, middle, high)
        low = np.where(enough, low, middle)
    return high.astype(np.float64)


def nearest_legal(job: Job, kind: int | None = None) -> NearMiss:
    """Return the skeleton that breaks the fewest rules, of one kind or of any."""
    spec, gpus = job.spec, math.prod(job.fabric.sizes)
    degrees, _ = enumerate_degrees((gpus,))
    rows = degree_rows(degrees)
    if kind is not None:
        rows = rows.take(np.flatnonzero(kind_of(rows) == kind))
    legal, best = _least_broken(job, degree_rules(spec), rows)
    if best is not None:
        return best
    degrees = degrees[rows.mesh[legal]]
    coarse = coarse_rows(spec, degrees)
    every = with_choices(spec, coarse.rows, coarse.alike, [])
    legal, best = _least_broken(job, plan_rules(spec), every.rows)
    number = coarse.origin[every.origin[legal]]
    return best or _nearest_on_meshes(job, degrees[np.unique(number)])


def _nearest_on_meshes(job: Job, degrees: Ints) -> NearMiss:
    """Return the mesh of legal degrees that breaks the fewest rules on meshes."""
    sizes = job.fabric.sizes
    meshes = np.concatenate([enumerate_meshes(sizes, own) for own in degrees])
    rows = mesh_rows(meshes, price_groups(job.fabric, meshes))
    _, best = _least_broken(job, mesh_rules(job.spec, meshes), rows)
    return best or NearMiss(description="", broken_rules=())


def _least_broken(
    job: Job, rules: list[Rule], rows: Skeletons
) -> tuple[Ints, NearMiss | None]:
    """Return the rows that break the fewest rules, and the first if it breaks any."""
    counts = _broken_counts(job, rules, rows)
    best = np.flatnonzero(counts == counts.min())
    if counts.min() == 0:
        return best, None
    return best, _describe_row(job, rules, rows.take(best[:1]))


def _broken_counts(job: Job, rules: list[Rule], rows: Skeletons) -> Ints:
    counts = np.zeros(len(rows), dtype=np.int64)
    for rule in rules:
        counts += ~rule.holds(job.spec, rows)
    return counts


def _describe_row(job: Job, rules: list[Rule], rows: Skeletons) -> NearMiss:
    names = ("tp", "pp", "cp", "ep", "dp_replicate", "dp_shard")
    shown = " ".join(f"{name}={getattr(rows, name)[0]}" for name in names)
    return NearMiss(
        description=shown, broken_rules=tuple(broken(rules, job.spec, rows))
    )
