"""What is around the best plan: other kinds and degrees, larger batches, flips."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial

import numpy as np

from meshwright.explanations.time_differences import part_differences
from meshwright.plans.columns import Bools
from meshwright.results.serving import (
    DegreeChoice,
    KindCrossover,
    Largest,
    PricedServing,
    ServingKind,
    ServingPlan,
)
from meshwright.serving.check import broken_rules, check
from meshwright.serving.deployment import Deployments
from meshwright.serving.enumeration import enumerate_deployments
from meshwright.serving.job import ServingJob, make_serving_job
from meshwright.serving.lattice import Lattice, build_lattice
from meshwright.serving.nearest import miss_among
from meshwright.spec.base import MAX_COUNT
from meshwright.spec.divisors import divisors
from meshwright.spec.serving import ServingSpec

KINDS = ("TP", "PP", "replicas")
MOST_BATCH = 4096
"""Up to which flips are looked for."""


def kinds_of(rows: Deployments) -> list[str]:
    """Return which of tensor and pipeline parallelism and replicas rows use."""
    used = np.stack([rows.tp > 1, rows.pp > 1, rows.dp_replicate > 1], axis=1)
    return [
        " + ".join(name for name, is_used in zip(KINDS, own, strict=True) if is_used)
        or "one GPU"
        for own in used.tolist()
    ]


def by_kind(lattice: Lattice) -> Iterator[ServingKind]:
    """Yield the best plan of every kind that the cluster has room for."""
    every, _ = enumerate_deployments(lattice.job)
    legal = np.array(kinds_of(lattice.rows))
    for kind in dict.fromkeys(kinds_of(every)):
        row = lattice.best(legal == kind)
        if row is not None:
            plan = lattice.plan(row, lattice.layers[row])
            yield ServingKind(kind=kind, best=check(lattice.job, plan))
        else:
            miss = miss_among(lattice, partial(_is_kind, kind))
            yield ServingKind(kind=kind, near_miss=miss)


def _is_kind(kind: str, rows: Deployments) -> Bools:
    return np.array([own == kind for own in kinds_of(rows)], dtype=bool)


def largest(job: ServingJob, plan: ServingPlan) -> Largest:
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
    """Return the most requests, up to so many, for which a plan has room."""
    return _most(lambda own: _fits(job.with_inference(batch=own), plan), 1, wanted)


def _fits(job: ServingJob, plan: ServingPlan) -> bool:
    return not any(rule.rule == "memory" for rule in broken_rules(job, plan))


def _most(fits: Callable[[int], bool], least: int, most: int) -> int:
    """Return the most that fits; `least` is taken to, and less than what does not."""
    if fits(most):
        return most
    low, high = least, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def flips(
    spec: ServingSpec, kinds: Collection[str] | None = None
) -> Iterator[KindCrossover]:
    """Yield the kinds that are best as the batch grows, each from where it is on.

    Batches are doubled, and where the kind changes in between, halved in on. Without
    `kinds` all are compared.
    """

    def at(batch: int) -> KindCrossover | None:
        return _winner(spec, batch, kinds)

    last = at(1)
    while last is not None:
        yield last
        last = _next_flip(at, last)


def _next_flip(
    at: Callable[[int], KindCrossover | None], last: KindCrossover
) -> KindCrossover | None:
    """Return the first batch, seen by doubling, at which another kind is best."""
    low, high = last.batch, 2 * last.batch
    while (found := at(high)) and found.kind == last.kind and high < MOST_BATCH:
        low, high = high, 2 * high
    if found is None or found.kind == last.kind:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        own = at(middle)
        is_last = own is not None and own.kind == last.kind
        low, high = (middle, high) if is_last else (low, middle)
    return at(high)


def _winner(
    spec: ServingSpec, batch: int, kinds: Collection[str] | None
) -> KindCrossover | None:
    """Return the best kind at a batch, None where no plan fits."""
    job = make_serving_job(spec).with_inference(batch=batch)
    lattice = build_lattice(job)
    names = kinds_of(lattice.rows)
    among = np.array([kinds is None or name in kinds for name in names], dtype=bool)
    row = lattice.best(among)
    if row is None:
        return None
    plan = lattice.plan(row, lattice.layers[row])
    return KindCrossover(batch=batch, kind=names[row], plan=plan)


def degrees(lattice: Lattice, best: PricedServing) -> Iterator[DegreeChoice]:
    """Yield what other degrees of tensors and stages cost, all else chosen anew."""
    known = divisors(int(np.prod(lattice.job.fabric.sizes)))
    for axis in ("tp", "pp"):
        yield from (_with_degree(lattice, best, axis, degree) for degree in known)


def _with_degree(
    lattice: Lattice, best: PricedServing, axis: str, degree: int
) -> DegreeChoice:
    def is_asked(rows: Deployments) -> Bools:
        return np.asarray(getattr(rows, axis) == degree)

    row = lattice.best(is_asked(lattice.rows))
    if row is not None:
        priced = check(lattice.job, lattice.plan(row, lattice.layers[row]))
        return _choice(axis, degree, priced, best)
    broken = miss_among(lattice, is_asked).broken_rules
    rule = broken[0].rule if broken else "no split of layers"
    return DegreeChoice(axis=axis, degree=degree, because=rule)


def _choice(
    axis: str, degree: int, priced: PricedServing, best: PricedServing
) -> DegreeChoice:
    """Return a degree with the part of the objective that it makes grow most."""
    changes = part_differences(priced.objective_parts, best.objective_parts)
    name = max(changes, key=lambda part: changes[part])
    told = f"{name} {changes[name] / best.objective_s:+.1%}"
    is_best = getattr(best.plan, axis) == degree
    return DegreeChoice(
        axis=axis,
        degree=degree,
        objective_s=priced.objective_s,
        because="the best" if is_best else told,
    )
