"""Solves a serving spec: deployments, bounds, proof, check, and the alternatives.

Beside the best stand degrees and techniques, crossovers, and near misses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version

import numpy as np

from meshwright import __version__
from meshwright.deadline import Deadline
from meshwright.errors import InternalError, SpecError
from meshwright.explanations.compare import part_differences
from meshwright.planner.best_split import best_split, least_ticks
from meshwright.planner.integer_costs import TICK_S, seconds
from meshwright.planner.model import ANY_SPLIT, ENDLESS_TICKS, Demand, Table
from meshwright.planner.narrow import MODEL_ROWS
from meshwright.planner.options import Options
from meshwright.planner.pipeline import LARGEST_HORIZON, Pairs, Pipeline, Proof
from meshwright.planner.prove import Search
from meshwright.plans.columns import Bools, Floats, Ints, total
from meshwright.results.outcome import Certificate, Counts, NearMiss
from meshwright.results.result import Status
from meshwright.results.serving import (
    DegreeChoice,
    KindCrossover,
    Largest,
    PricedServing,
    ServingKind,
    ServingOutcome,
    ServingPlan,
)
from meshwright.serving.check import broken_rules, check, checked
from meshwright.serving.deployment import (
    Deployments,
    ServingJob,
    make_serving_job,
    remarks_on,
    serving_rules,
)
from meshwright.serving.lattice import (
    Lattice,
    bounded,
    build_lattice,
    distinct_rows,
    enumerate_deployments,
    make_pipeline,
)
from meshwright.serving.price import memory, price, wait_s
from meshwright.spec.base import MAX_COUNT, divisors
from meshwright.spec.serving import ServingSpec
from meshwright.spec.units import GIB

TECHNIQUES = ("TP", "attention DP", "PP", "replicas")

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
    degrees = (rows.tp, rows.attention_dp, rows.pp, rows.dp_replicate)
    is_used = np.stack(degrees, axis=1) > 1
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
    axes = ("tp", "attention_dp", "pp") if lattice.job.model.moe else ("tp", "pp")
    for axis in axes:
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


DECISIONS = ("tp", "pp", "dp_replicate", "microbatches", "attention_dp")
"""The decisions of a deployment."""

OBJECTIVES = {
    "latency": "the first token and all others of a request",
    "throughput": "the prefill and all tokens of the requests of a replica",
}


def solve_serving(spec: ServingSpec, options: Options | None = None) -> ServingOutcome:
    """Return the best plan of a spec with its certificate, or why there is none.

    Raises:
        SpecError: requests take days, so that their times do not fit the solver.
        InternalError: the checker disagrees with the solver about a plan.
    """
    options = options or Options()
    deadline = Deadline(options.time_limit_s, options.interrupt)
    outcome = _solve(make_serving_job(spec), options, deadline)
    return outcome.model_copy(update={"is_stopped": deadline.has_passed})


def _solve(job: ServingJob, options: Options, deadline: Deadline) -> ServingOutcome:
    options.on_progress("bounding deployments")
    lattice = build_lattice(job)
    if not lattice.possible.any():
        return _outcome(job, "infeasible", near_miss=nearest_miss(lattice))
    options.interrupt.is_heeded = True
    outcome = _proven(lattice, options, deadline)
    best = outcome.best
    if best is None:
        return outcome
    return options.interrupt.unless_asked(
        lambda: outcome.model_copy(update=_alternatives(lattice, best, options)),
        outcome,
    )


def _alternatives(
    lattice: Lattice, best: PricedServing, options: Options
) -> dict[str, object]:
    """Return the fields of an outcome on plans and requests other than the best."""
    job = lattice.job
    fields: dict[str, object] = {"largest": largest_load(job, best.plan)}
    fields["degrees"] = tuple(best_by_degree(lattice, best))
    if options.is_by_kind:
        options.on_progress("comparing kinds of plans")
        fields["by_kind"] = tuple(best_by_technique(lattice))
        fields["flips"] = tuple(crossovers(job.spec))
        fields["tp_against_pp"] = tuple(crossovers(job.spec, ("TP", "PP")))
    return fields


def _proven(lattice: Lattice, options: Options, deadline: Deadline) -> ServingOutcome:
    """Return the proven best plan of a lattice that has one, with its certificate."""
    job, best = lattice.job, int(lattice.upper.min())
    if best > LARGEST_HORIZON:
        days = seconds(LARGEST_HORIZON) / 86_400
        raise SpecError(f"{job.spec.title}: every plan takes more than {days:.1f} days")
    left = np.flatnonzero(lattice.possible)
    if options.is_pruning and len(left) > MODEL_ROWS:
        left = np.flatnonzero(lattice.lower <= best)
    options.on_progress(f"proving among {len(left):,} deployments")
    proof, plan = _proof(lattice, distinct_rows(lattice.rows, left), options, deadline)
    certificate = _certificate(lattice, plan, proof, len(left), options.seed)
    is_optimal = proof.status == "optimal" and certificate.gap == 0
    return _outcome(
        job,
        "optimal" if is_optimal else "feasible",
        best=_checked(job, plan, proof),
        remarks=remarks_on(job.spec, plan.tp),
        certificate=certificate,
    )


def _proof(
    lattice: Lattice, left: Ints, options: Options, deadline: Deadline
) -> tuple[Proof, ServingPlan]:
    """Return the proof of the best row of some, and its plan.

    Raises:
        InternalError: nothing is found although the bounds have a plan.
    """
    lower = lattice.lower[left] if options.is_pruning else 0 * left
    table = Table(
        decisions={name: getattr(lattice.rows, name)[left] for name in DECISIONS},
        least_ticks={ANY_SPLIT: lower},
        most_ticks=np.full(len(left), ENDLESS_TICKS),
    )
    is_left = np.ones(len(left), dtype=bool)
    splits = _Splits(lattice, left)
    search = Search(table, lattice.upper[left], is_left, splits, deadline, options.seed)
    proof = search.fastest()
    if not proof.has_plan:
        raise InternalError(
            f"no plan for {lattice.job.spec.title}, but bounds have one"
        )
    split = np.array([layers for layers, _ in proof.split], dtype=np.int64)
    return proof, lattice.plan(int(left[proof.row]), split)


@dataclass(frozen=True)
class _Splits:
    """Splits the layers of some deployments of a lattice."""

    lattice: Lattice
    left: Ints

    def prove(self, row: int, _demand: Demand, below: int) -> Proof:
        """Return the proof of a row's best split below some ticks."""
        ticks = least_ticks(self._pipeline(row), below)
        status = "optimal" if ticks < below else "slower"
        return Proof(status, (), ticks, float(ticks))

    def unique(self, row: int, _demand: Demand, proof: Proof) -> Proof:
        """Return a proof with the most even split, then the first."""
        found = best_split(self._pipeline(row), proof.ticks + 1)
        return proof if found is None else replace(proof, split=found[1])

    def constructed(self, row: int) -> Pairs:
        """Return the split of a row that its upper bound is about."""
        return tuple((n, 0) for n in self.lattice.layers[self.left[row]].tolist())

    def _pipeline(self, row: int) -> Pipeline:
        one = self.lattice.rows.take(self.left[row : row + 1])
        return make_pipeline(self.lattice.job, one)


def _certificate(
    lattice: Lattice, plan: ServingPlan, proof: Proof, survivors: int, seed: int
) -> Certificate:
    bound = min(proof.bound, proof.ticks)
    possible = int(lattice.possible.sum())
    return Certificate(
        objective=OBJECTIVES[lattice.job.inference.objective],
        bound_s=seconds(bound),
        gap=1 - bound / proof.ticks,
        rounding_s=_rounding_s(plan),
        counts=Counts(
            skeletons=len(lattice),
            no_memory=len(lattice) - possible,
            bounded=possible - survivors,
            survivors=survivors,
        ),
        seed=seed,
    )


def _rounding_s(plan: ServingPlan) -> float:
    """Return how far ticks may be off floats: half a tick per term, m + 1 times."""
    terms = 2 * (sum(plan.layers) + 3 * plan.pp)
    return 0.5 * TICK_S * terms * (plan.microbatches + 1)


def _checked(job: ServingJob, plan: ServingPlan, proof: Proof) -> PricedServing:
    """Return a proven plan re-scored in floats.

    Raises:
        InternalError: the plan breaks a rule, or its time is not what was proven.
    """
    priced, broken = checked(job, plan)
    if broken:
        raise InternalError(f"{plan} was proven but breaks {broken[0].rule}")
    off_s = abs(priced.objective_s - seconds(proof.ticks))
    if off_s > _rounding_s(plan):
        raise InternalError(f"{plan}: checked {off_s:.3g} s off what was proven")
    return priced


def _outcome(job: ServingJob, status: Status, **fields: object) -> ServingOutcome:
    return ServingOutcome.model_validate(
        {
            "title": job.spec.title,
            "status": status,
            "capacity_gib": job.spec.usable_gib,
            "gpus": int(np.prod(job.fabric.sizes)),
            "versions": {"meshwright": __version__, "ortools": version("ortools")},
            **fields,
        }
    )
