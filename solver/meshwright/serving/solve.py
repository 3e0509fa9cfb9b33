"""Solves a serving spec: deployments, bounds, proof, check."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.metadata import version

import numpy as np

from meshwright import __version__
from meshwright.deadline import Deadline
from meshwright.errors import InternalError, SpecError
from meshwright.planner.best_split import best_split, least_ticks
from meshwright.planner.integer_costs import TICK_S, seconds
from meshwright.planner.model import ANY_SPLIT, ENDLESS_TICKS, Demand, Table
from meshwright.planner.narrow import MODEL_ROWS
from meshwright.planner.options import Options
from meshwright.planner.pipeline import LARGEST_HORIZON, Pairs, Pipeline, Proof
from meshwright.planner.prove import Search
from meshwright.plans.columns import Ints
from meshwright.results.outcome import Certificate, Counts
from meshwright.results.result import Status
from meshwright.results.serving import PricedServing, ServingOutcome, ServingPlan
from meshwright.serving.alternatives import (
    best_by_degree,
    best_by_technique,
    crossovers,
    largest_load,
    nearest_miss,
)
from meshwright.serving.check import checked
from meshwright.serving.job import ServingJob, make_serving_job
from meshwright.serving.lattice import (
    Lattice,
    build_lattice,
    distinct_rows,
    make_pipeline,
)
from meshwright.spec.serving import ServingSpec

DECISIONS = ("tp", "pp", "dp_replicate", "microbatches")
"""The decisions of a deployment."""

OBJECTIVES = {
    "latency": "time to the first token + all other tokens of a request",
    "throughput": "prefill and all tokens of the requests of a replica, once",
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
