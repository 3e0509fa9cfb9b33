"""Solves a serving spec: deployments, bounds, proof, check."""

from __future__ import annotations

from importlib.metadata import version

import numpy as np

from meshwright import __version__
from meshwright.bounds.integer_costs import TICK_S, seconds
from meshwright.cpsat.problem import LARGEST_HORIZON, Proof
from meshwright.cpsat.prove import prove, with_unique_split
from meshwright.deadline import Deadline
from meshwright.errors import InternalError, SpecError
from meshwright.plans.columns import Ints
from meshwright.results.outcome import Certificate, Counts
from meshwright.results.result import Status
from meshwright.results.serving import PricedServing, ServingOutcome, ServingPlan
from meshwright.serving.alternatives import best_by_degree, best_by_technique
from meshwright.serving.bounds import NEVER
from meshwright.serving.check import checked
from meshwright.serving.cpsat_problem import make_problem
from meshwright.serving.crossovers import crossovers
from meshwright.serving.job import ServingJob, make_serving_job
from meshwright.serving.largest_load import largest_load
from meshwright.serving.lattice import Lattice, build_lattice, distinct_rows
from meshwright.serving.nearest_miss import nearest_miss
from meshwright.solver.options import Options
from meshwright.spec.serving import ServingSpec

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
    limit = best if options.is_pruning else NEVER - 1
    left = np.flatnonzero(lattice.lower <= limit)
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
    """Return CP-SAT's proof and its plan; once the time is up, those of the bounds.

    Raises:
        InternalError: CP-SAT finds no plan although the bounds have one.
    """
    problem = make_problem(lattice.job, lattice.rows.take(left))
    limits = (deadline, options.seed, options.workers)
    proof = with_unique_split(problem, prove(problem, *limits), *limits)
    if proof.status == "infeasible":
        raise InternalError(
            f"no plan for {lattice.job.spec.title}, but bounds have one"
        )
    if proof.status == "unknown":
        row = int(lattice.upper.argmin())
        ticks, lower = int(lattice.upper[row]), float(lattice.lower.min())
        bounded = Proof("feasible", row, (), ticks, lower)
        return bounded, lattice.plan(row, lattice.layers[row])
    split = np.array([layers for layers, _ in proof.split], dtype=np.int64)
    return proof, lattice.plan(int(left[proof.skeleton]), split)


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
