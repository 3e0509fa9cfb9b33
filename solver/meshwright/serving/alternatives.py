"""Deployments beside the best: by degree and technique, crossovers, near misses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial

import numpy as np

from meshwright.explanations.compare import part_differences
from meshwright.plans.columns import Bools, Floats, Ints, total
from meshwright.results.outcome import NearMiss
from meshwright.results.serving import (
    DegreeChoice,
    KindCrossover,
    Largest,
    PricedServing,
    ServingKind,
    ServingPlan,
)
from meshwright.serving.check import broken_rules, check, checked
from meshwright.serving.deployment import Deployments, serving_rules
from meshwright.serving.job import ServingJob, make_serving_job
from meshwright.serving.lattice import (
    Lattice,
    bounded,
    build_lattice,
    enumerate_deployments,
)
from meshwright.serving.memory import memory
from meshwright.serving.price import price, wait_s
from meshwright.spec.base import MAX_COUNT, divisors
from meshwright.spec.serving import ServingSpec
from meshwright.spec.units import GIB

TECHNIQUES = ("TP", "PP", "replicas")

MOST_BATCH = 4096
"""The batch up to which crossovers are searched."""


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


def techniques_of(rows: Deployments) -> list[str]:
    """Return the techniques of every deployment, such as "TP + replicas"."""
    is_used = np.stack([rows.tp > 1, rows.pp > 1, rows.dp_replicate > 1], axis=1)
    return [
        " + ".join(np.array(TECHNIQUES)[used].tolist()) or "one GPU" for used in is_used
    ]


def best_by_technique(lattice: Lattice) -> Iterator[ServingKind]:
    """Yield the best plan of every technique, or the nearest miss where none fits."""
    every, _ = enumerate_deployments(lattice.job)
    legal = np.array(techniques_of(lattice.rows))
    for technique in dict.fromkeys(techniques_of(every)):
        row = lattice.best(legal == technique)
        if row is not None:
            plan = lattice.plan(row, lattice.layers[row])
            yield ServingKind(kind=technique, best=check(lattice.job, plan))
        else:
            miss = nearest_miss(lattice, partial(_uses, technique))
            yield ServingKind(kind=technique, near_miss=miss)


def _uses(technique: str, rows: Deployments) -> Bools:
    return np.array([used == technique for used in techniques_of(rows)], dtype=bool)


def best_by_degree(lattice: Lattice, best: PricedServing) -> Iterator[DegreeChoice]:
    """Yield the best plan with every other degree of tensors and of stages."""
    degrees = divisors(int(np.prod(lattice.job.fabric.sizes)))
    for axis in ("tp", "pp"):
        yield from (_with_degree(lattice, best, axis, degree) for degree in degrees)


def _with_degree(
    lattice: Lattice, best: PricedServing, axis: str, degree: int
) -> DegreeChoice:
    """Return the best plan with a degree, or the rule that leaves it none."""

    def has_degree(rows: Deployments) -> Bools:
        return np.asarray(getattr(rows, axis) == degree)

    row = lattice.best(has_degree(lattice.rows))
    if row is not None:
        priced = check(lattice.job, lattice.plan(row, lattice.layers[row]))
        return _compared(axis, degree, priced, best)
    broken = nearest_miss(lattice, has_degree).broken_rules
    rule = broken[0].rule if broken else "no split of layers"
    return DegreeChoice(axis=axis, degree=degree, because=rule)


def _compared(
    axis: str, degree: int, priced: PricedServing, best: PricedServing
) -> DegreeChoice:
    """Return a degree with the part of the objective that grows most under it."""
    changes = part_differences(priced.objective_parts, best.objective_parts)
    part = max(changes, key=lambda name: changes[name])
    growth = f"{part} {changes[part] / best.objective_s:+.1%}"
    is_best = getattr(best.plan, axis) == degree
    return DegreeChoice(
        axis=axis,
        degree=degree,
        objective_s=priced.objective_s,
        because="the best" if is_best else growth,
    )


def last_true(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the last number below `high` for which a condition holds.

    It is taken to hold at `low`, to fail at `high`, and to turn once in between.
    """
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


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


def largest_load(job: ServingJob, plan: ServingPlan) -> Largest:
    """Return the most requests, and the longest context, that fit with a plan."""
    inference, positions = job.inference, job.model.learned_positions
    batch = largest_batch(job, plan, MAX_COUNT)

    def fits(context: int) -> bool:
        prompt_len = context - inference.output_len
        return _fits(job.with_inference(prompt_len=prompt_len), plan)

    return Largest(
        batch=batch,
        context=_most(fits, inference.output_len + 1, positions or MAX_COUNT),
        tokens_per_s=check(job.with_inference(batch=batch), plan).tokens_per_s,
    )


def largest_batch(job: ServingJob, plan: ServingPlan, wanted: int) -> int:
    """Return the most requests that fit with a plan, up to the number wanted."""
    return _most(lambda batch: _fits(job.with_inference(batch=batch), plan), 1, wanted)


def _fits(job: ServingJob, plan: ServingPlan) -> bool:
    return not any(rule.rule == "memory" for rule in broken_rules(job, plan))


def _most(fits: Callable[[int], bool], least: int, most: int) -> int:
    """Return the largest number that fits; `least` is taken to fit."""
    return most if fits(most) else last_true(fits, least, most)
