"""The plan that pins ask for, where no row of the lattice is one.

Fields that are pinned to one value have it. The others follow from them, or are at
their plainest, so that all numbers of a rule that breaks are numbers of the user.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.check.check import checked
from meshwright.cost.job import Job
from meshwright.frameworks.base.registry import partitioned_layers, pinned_chunks
from meshwright.planner.degrees import (
    MeshTable,
    degree_rows,
    enumerate_degrees,
    enumerate_meshes,
    mesh_rows,
)
from meshwright.planner.integer_costs import Scaled, capacity_chunks
from meshwright.planner.legal_ways import LegalWays
from meshwright.planner.memory_fit import (
    MemoryFit,
    costs_by_pp,
    families_fit,
    in_parts,
    scaled_costs,
)
from meshwright.planner.rows import Lattice
from meshwright.planner.split_bounds import (
    construct_pinned_split,
    with_all_recomputed,
)
from meshwright.planner.stages import Stages, fits, stages_of
from meshwright.planner.unplaced import (
    UnplacedSkeletons,
    list_layouts,
    list_unplaced,
)
from meshwright.plans.columns import Bools, Floats, Ints, ranges
from meshwright.plans.plan import Plan
from meshwright.plans.rule import Rule, broken, holding
from meshwright.plans.simplicity import techniques_of
from meshwright.plans.skeletons import Skeletons, to_plan
from meshwright.results.outcome import NearMiss
from meshwright.rules.legality import (
    degree_pins,
    degree_rules,
    framework_degree_rules,
    framework_rules,
    impossible_stages,
    mesh_rules,
    plan_rules,
)
from meshwright.rules.sums import WORLD_DIVISIBLE, WORLD_SIZE, row_rules
from meshwright.spec.plan_fields import AXES, FIELD, FIELDS, Range, written
from meshwright.spec.spec import Spec
from meshwright.topology.fabric import Place
from meshwright.topology.groups import price_groups

NEEDED = 1_000
"""Weight of a rule on sums against a rule of the framework."""

BISECTIONS = 48
"""Halvings of a range of chunks per GPU, up to 2^48."""

CAPACITY_BITS = 6
"""Halvings that are done at once for few rows; a divisor of `BISECTIONS`."""

FEW_ROWS = 16
"""Rows up to which that is faster than one halving after the other."""

STATE = ("weights", "gradients", "optimizer")
"""Parts of memory that do not depend on the batch."""


def nearest_miss(job: Job, lattice: Lattice) -> NearMiss:
    """Return the plan that comes closest to fitting, and the rules it breaks."""
    if len(lattice):
        return _nearest_in_memory(job, lattice)
    return nearest_legal(job)


def nearest_legal(job: Job, techniques: int | None = None) -> NearMiss:
    """Return the plan that breaks the fewest rules, of given techniques or of any.

    Of several it is the one that needs the least memory.
    """
    spec, gpus = job.spec, math.prod(job.fabric.sizes)
    asked = asked_row(spec, gpus) if techniques is None else None
    if asked is not None:
        return _describe_asked(spec, asked)
    degrees, _ = enumerate_degrees((gpus,))
    rows = degree_rows(degrees)
    if techniques is not None:
        rows = rows.take(np.flatnonzero(techniques_of(rows) == techniques))
    counts = _broken_counts(job, degree_rules(spec), rows)
    degrees = degrees[rows.mesh[counts == counts.min()]]
    layouts = list_layouts(spec, degrees)
    fewest, best = _fewest_broken(job, list_unplaced(spec, layouts, []))
    if counts.min() + fewest == 0:
        here = np.unique(best.base_degree[best.legal.counts > 0])
        return _nearest_on_meshes(job, degrees[here])
    copies = np.ones(len(degrees), dtype=np.int64)
    return _nearest_of(job, Lattice(job.fabric, best, degrees, copies, MeshTable(job)))


def _fewest_broken(
    job: Job, unplaced: UnplacedSkeletons
) -> tuple[int, UnplacedSkeletons]:
    """Return the fewest rules that a skeleton breaks, and the skeletons that do."""
    rules = plan_rules(job.spec)
    pattern, rows = unplaced.patterns(job.spec, rules)
    counts = _broken_counts(job, rules, rows).reshape(-1, unplaced.way_count)
    fewest = int(counts.min())
    return fewest, replace(unplaced, legal=LegalWays(pattern, counts == fewest))


def describe(job: Job, plan: Plan) -> NearMiss:
    """Return a plan as a near miss."""
    priced, rules = checked(job, plan)
    stages = priced.stages
    state_gib = math.fsum(stage.parts[name] for stage in stages for name in STATE)
    return NearMiss(
        description=str(plan),
        broken_rules=tuple(rules),
        memory=max(stages, key=lambda stage: stage.total_gib),
        state_gib=state_gib * plan.world_size / plan.pp,
        plan=plan,
    )


def _nearest_in_memory(job: Job, lattice: Lattice) -> NearMiss:
    """Return the plan that needs the least memory on its fullest GPU."""
    row = np.array([_least_full_of(job, lattice)])
    placed, _ = lattice.on_meshes(row, None)
    if not len(placed):
        return nearest_legal(job)
    one = placed.take(np.array([0]))
    return describe(job, _plan_of(job, one, lattice.place(one)))


def _least_full_of(job: Job, lattice: Lattice) -> int:
    """Return the first skeleton of those that need the least memory, as `_least_full`.

    Families whose state alone needs the least, within a factor of two, come first; of
    all others those follow whose state alone needs no more than the best so far.
    """
    start, count = lattice.unplaced.families
    first = lattice.unplaced.take(start)
    capacity = capacity_chunks(job.spec.usable_gib)
    near = families_fit(job, first, capacity)
    while capacity < 2**BISECTIONS and not near.any():
        capacity = 2 * capacity + 1
        near = families_fit(job, first, capacity)

    def least(is_asked: Bools, best: tuple[int, int]) -> tuple[int, int]:
        for family in in_parts(count, is_asked):
            index = ranges(start[family], count[family])
            best = _least_full_among(job, lattice.take(index), index, best)
        return best

    best = least(near, (2**BISECTIONS, 0))
    _, row = least(families_fit(job, first, best[0]) & ~near, best)
    return row


def _least_full_among(
    job: Job, part: Lattice, index: Ints, best: tuple[int, int]
) -> tuple[int, int]:
    """Return the least chunks that a skeleton of a part needs, and its place.

    `index` has the places of the part. No less than the usable memory is told, and
    `best` where no skeleton needs less, or as much at an earlier place.
    """
    costs = MemoryFit(job, part).costs(np.arange(len(part)))
    kept = np.flatnonzero(_fit(job, costs, best[0]))
    if not len(kept):
        return best
    costs = costs.take(kept)
    row = _least_full(job, costs)
    (needed,) = least_capacity(job, costs.take(np.array([row])))
    usable = capacity_chunks(job.spec.usable_gib)
    return min(best, (max(int(needed), usable), int(index[kept[row]])))


def _least_full(job: Job, costs: Scaled) -> int:
    """Return the first row of those that need the least memory on their fullest GPU.

    Rows that fit in the usable memory break another rule; the first is as good as any.
    Bisection drops rows that do not fit in a capacity in which others do.
    """
    left, low = np.arange(len(costs)), capacity_chunks(job.spec.usable_gib)
    high = low
    while not len(fitting := left[_fit(job, costs.take(left), high)]):
        if high >= 2**BISECTIONS:
            return int(left[0])
        low, high = high, 2 * high + 1
    left = fitting
    while high - low > 1 and len(left) > 1:
        middle = (low + high) // 2
        fitting = left[_fit(job, costs.take(left), middle)]
        if len(fitting):
            left, high = fitting, middle
        else:
            low = middle
    return int(left[0])


def _fit(job: Job, costs: Scaled, capacity: int) -> Bools:
    """Return which rows fit in a capacity, in chunks per GPU."""
    result = np.empty(len(costs), dtype=bool)
    for index, part in costs_by_pp(costs):
        result[index] = fits(_stages(job, part, capacity))
    return result


def _stages(job: Job, costs: Scaled, capacity: int | Ints) -> Stages:
    """Return the stages of rows of the same pp on GPUs of a capacity in chunks."""
    fixed = partitioned_layers(job.spec, int(costs.rows.pp[0]))
    pinned = pinned_chunks(job.spec)
    return stages_of(costs, job.spec.model, capacity, partition=fixed, pinned=pinned)


def _plan_of(job: Job, one: Skeletons, place: Place) -> Plan:
    """Return the plan of one row, with a split that needs the least memory."""
    costs = scaled_costs(job, one)
    needed = int(least_capacity(job, costs)[0])
    capacity = max(needed, capacity_chunks(job.spec.usable_gib))
    stages = _stages(job, costs, capacity)
    layers, recomputed = construct_pinned_split(job.spec.pins, stages)
    return to_plan(
        one, 0, with_all_recomputed(job, one, layers[0], recomputed[0]), place
    )


def least_capacity(job: Job, costs: Scaled) -> Floats:
    """Return the least chunks per GPU in which each row fits; all have the same pp.

    Of few rows 63 capacities are looked at together, which takes as long as one.
    """
    bits = CAPACITY_BITS if len(costs) <= FEW_ROWS else 1
    parts = np.arange(1, 2**bits)
    tried = costs.take(np.repeat(np.arange(len(costs)), len(parts)))
    low, width = np.zeros(len(costs), dtype=np.int64), 2**BISECTIONS
    while width > 1:
        width >>= bits
        capacity = (low[:, None] + width * parts).reshape(-1, 1)
        enough = fits(_stages(job, tried, capacity)).reshape(len(costs), -1)
        low += width * (~enough).sum(axis=1)
    return (low + 1).astype(np.float64)


def _nearest_of(job: Job, lattice: Lattice) -> NearMiss:
    """Return the skeleton that needs the least memory as a near miss.

    Skeletons with a stage that has no layer are left out, if there are others.
    """
    spec, base = job.spec, lattice.unplaced.base
    is_any = pinned_chunks(spec) is not None
    parts = base.pp if is_any else base.pp * base.vpp
    can_split = np.flatnonzero(parts <= spec.model.n_layers)
    split = replace(lattice, unplaced=lattice.unplaced.of_bases(can_split))
    # On unlike parts, a plan with no stage on some part has no price.
    if not len(split) or job.gpu_kinds:
        first = lattice.take(np.array([0])).rows
        return _describe_row(job, [*degree_rules(spec), *plan_rules(spec)], first)
    one = split.take(np.array([_least_full_of(job, split)])).rows
    degrees = np.concatenate([getattr(one, axis) for axis in AXES])
    sizes, inside = job.fabric.sizes, spec.tp_levels
    place = Place(enumerate_meshes(sizes, degrees, inside)[0])
    paths = price_groups(job.fabric, place.mesh[None], one.expert_key)
    placed = one.on_meshes(paths, np.zeros(1, dtype=np.int64))
    return describe(job, _plan_of(_split_freely(job, one), placed, place))


def _split_freely(job: Job, one: Skeletons) -> Job:
    """Return the job without pinned layers of other stages, or that no split has."""
    pinned = {
        "layers": job.spec.pins.layers,
        "recompute_layers": job.spec.pins.stage_recompute,
    }
    is_wrong = bool(impossible_stages(job.spec))
    wrong = {
        name: None
        for name, layers in pinned.items()
        if layers and (is_wrong or len(layers) != one.pp[0])
    }
    return replace(job, spec=job.spec.having("pins", **wrong))


def _describe_asked(spec: Spec, row: Skeletons) -> NearMiss:
    """Return a plan whose numbers do not add up, with the rules that it breaks.

    Rules of the framework are named if a pinned field is among what they compare.
    """
    wrong = broken_sums(spec, row)
    rules = framework_degree_rules(spec)
    if wrong[0].name != WORLD_SIZE.name:
        rules = [*rules, *framework_rules(spec)]
    pinned = {name for name, pin in spec.pins if pin is not None}
    of_framework = broken(rules, spec, row)
    asked = [rule for rule in of_framework if pinned & set(rule.compared)]
    sums = broken(wrong, spec, row)
    rules_broken = (*sums, *asked)
    return NearMiss(
        description=described(spec), broken_rules=rules_broken, is_asked=True
    )


def _nearest_on_meshes(job: Job, degrees: Ints) -> NearMiss:
    """Return the mesh of legal degrees that breaks the fewest rules on meshes."""
    sizes, inside = job.fabric.sizes, job.spec.tp_levels
    found = [enumerate_meshes(sizes, axes, inside) for axes in degrees]
    meshes = np.concatenate(found)
    rows = mesh_rows(meshes, price_groups(job.fabric, meshes))
    rules = mesh_rules(job.spec, meshes)
    counts = _broken_counts(job, rules, rows)
    if not counts.min():
        return NearMiss(description="", broken_rules=())
    return _describe_row(job, rules, rows.take(np.array([counts.argmin()])))


def _broken_counts(job: Job, rules: list[Rule], rows: Skeletons) -> Ints:
    """Return how many rules each row breaks; a pin counts more than all others.

    A user who pins a field asks what is in its way, not for another value.
    """
    pins = [rule for rule in rules if rule.name.startswith("pin ")]
    more = (len(rules) - 1) * broken_counts(job.spec, pins, rows)
    return broken_counts(job.spec, rules, rows) + more


def _describe_row(job: Job, rules: list[Rule], rows: Skeletons) -> NearMiss:
    """Return the first row as a near miss, by its degrees alone."""
    names = (name for name in FIELD if name in (*AXES, "ep"))
    shown = ",".join(f"{name}={getattr(rows, name)[0]}" for name in names)
    return NearMiss(
        description=shown, broken_rules=tuple(broken(rules, job.spec, rows))
    )


def asked_row(spec: Spec, gpus: int) -> Skeletons | None:
    """Return the plan that the pins ask for if its numbers do not add up.

    It is None where some row keeps all pins and every rule on sums. Of several plans it
    is the one that breaks the fewest rules, then the one with the fewest stages and
    copies.
    """
    rows = asked_rows(spec, gpus)
    wrong = broken_counts(spec, sum_rules(spec), rows)
    if not wrong.min():
        return None
    legal = [*framework_degree_rules(spec), *framework_rules(spec)]
    counts = NEEDED * wrong + broken_counts(spec, legal, rows)
    best = np.lexsort((rows.dp, rows.pp, counts))[:1]
    return rows.take(best)


def asked_rows(spec: Spec, gpus: int) -> Skeletons:
    """Return the plans with the pinned values, one for each way to complete degrees.

    Where none completes the pinned degrees, the only row has no more than those.
    """
    degrees, _ = enumerate_degrees((gpus,))
    degrees = degrees[holding(degree_pins(spec), spec, degree_rows(degrees))]
    rows = degree_rows(degrees) if len(degrees) else _pinned_degrees(spec)
    plain = _with_pinned(spec, rows)
    if spec.pins.sequence_parallel is not None:
        return plain
    split = replace(plain, sequence_parallel=rows.tp > 1)
    return Skeletons.joined([plain, split])


def sum_rules(spec: Spec) -> list[Rule]:
    """Return the rules on sums; that on GPUs lets free axes multiply the others."""
    world, *others = row_rules(spec)
    dp = ("dp",) if spec.pins.dp else ("dp_shard", "dp_replicate")
    is_free = any(getattr(spec.pins, axis) is None for axis in ("tp", "cp", "pp", *dp))
    return [WORLD_DIVISIBLE if is_free else world, *others]


def broken_sums(spec: Spec, row: Skeletons) -> list[Rule]:
    """Return the rules on sums that a row breaks.

    Where the degrees do not make up the GPUs, nothing else of the plan is known.
    """
    wrong = [rule for rule in sum_rules(spec) if not rule.holds(spec, row)[0]]
    world = [rule for rule in wrong if rule.name == WORLD_SIZE.name]
    if world and (row.tp * row.pp * row.cp * row.dp)[0] > spec.cluster.gpus:
        return [WORLD_SIZE]
    return world or wrong


def broken_counts(spec: Spec, rules: list[Rule], rows: Skeletons) -> Ints:
    """Return how many of the rules each row breaks."""
    counts = np.zeros(len(rows), dtype=np.int64)
    for rule in rules:
        counts += ~np.asarray(rule.holds(spec, rows), dtype=bool)
    return counts


def pinned_value(spec: Spec, name: str) -> int | None:
    """Return the code of the one value that a field is pinned to, if it is."""
    pin: Any = getattr(spec.pins, name)
    if isinstance(pin, bool) or pin is None:
        return pin
    if isinstance(pin, tuple):
        return FIELD[name].encoded(pin[0]) if len(pin) == 1 else None
    single: int | None = pin.single
    return single


def _pinned_degrees(spec: Spec) -> Skeletons:
    """Return the pinned degrees as one row; axes that are free have size 1."""
    sizes = {axis: _least(getattr(spec.pins, axis)) for axis in AXES}
    stages = spec.pins.layers or spec.pins.stage_recompute
    if spec.pins.pp is None and stages is not None:
        sizes["pp"] = len(stages)
    dp, known = _least(spec.pins.dp), sizes["dp_replicate"] * sizes["dp_shard"]
    if dp % known == 0:
        sizes["dp_shard"] *= dp // known
    return degree_rows(np.array([list(sizes.values())], dtype=np.int64))


def _least(pin: Range | None) -> int:
    """Return the first number that a pin on a degree accepts; 1 without a pin."""
    if pin is None:
        return 1
    return max(pin.values[0] if pin.values else pin.min, 1)


def _with_pinned(spec: Spec, rows: Skeletons) -> Skeletons:
    """Return rows of degrees with all other fields as pinned, or as they follow."""
    count = len(rows)
    columns: dict[str, Any] = {}
    for field in FIELDS:
        value = pinned_value(spec, field.name)
        if value is not None and field.name not in AXES:
            columns[field.name] = np.full(count, value, field.dtype)
    per_rank = np.maximum(spec.training.global_batch // rows.dp, 1)
    if "micro_batch" not in columns:
        asked = columns.get("microbatches", per_rank)
        is_whole = per_rank % np.maximum(asked, 1) == 0
        columns["micro_batch"] = np.where(is_whole, per_rank // np.maximum(asked, 1), 1)
    if "microbatches" not in columns:
        columns["microbatches"] = np.maximum(per_rank // columns["micro_batch"], 1)
    if "zero" not in columns:
        columns["zero"] = (rows.dp_shard > 1).astype(np.int64)
    precision = FIELD["precision"].encoded(spec.training.precisions[0])
    columns.setdefault("precision", np.full(count, precision))
    return replace(rows, **columns)


def row_value(row: Skeletons, name: str) -> int | str:
    """Return the value of a field of the first row."""
    code = int(getattr(row, name)[0])
    return FIELD[name].decoded(code) if name in FIELD else code


def described(spec: Spec) -> str:
    """Return the pinned fields of a spec, as `--plan` reads them."""
    given = {name: pin for name, pin in spec.pins if pin is not None}
    return ",".join(f"{name}={written(pin)}" for name, pin in given.items())
