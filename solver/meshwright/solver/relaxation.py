"""Proves plans under a limit on links by the relaxation without the limit.

Where the GPU order of a host is a choice, only orders are searched in which some group
of ranks pays less than in others. An order that is no faster may load links more evenly
and so keep a limit that faster ones break, which is why these orders prove little under
a limit. They do prove the problem without it. If its best plan keeps the limit, that is
the best plan under the limit too; if not, its step time is a lower bound.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.bounds.integer_costs import ticks_down
from meshwright.check.check import broken_rules
from meshwright.cost.job import Job
from meshwright.deadline import Deadline
from meshwright.lattice.mesh_table import MeshTable
from meshwright.plans.plan import Plan
from meshwright.results.outcome import Outcome
from meshwright.search.options import Options
from meshwright.solver.prepared import Prepared
from meshwright.solver.proof import LatticeProof


def best_outcome(prepared: Prepared, options: Options, deadline: Deadline) -> Outcome:
    """Return the best plans of a lattice with their certificate, or why none is.

    Raises:
        SpecError: steps take days.
        InternalError: the checker disagrees with the solver about a plan.
    """
    job, lattice = prepared.job, prepared.lattice
    proof = LatticeProof(job, lattice, options, deadline, prepared.families)
    if job.spec.limits.max_link_utilisation is None or not lattice.table.has_choice:
        return proof.outcome()
    relaxed_job = _without_limit(job)
    relaxed = replace(
        proof,
        job=relaxed_job,
        lattice=replace(lattice, table=MeshTable(relaxed_job)),
    ).outcome()
    if relaxed.status == "infeasible":
        return relaxed
    if relaxed.best and not options.near:
        plans = (relaxed.best.plan, *(other.plan for other in relaxed.others))
        if relaxed.fastest:
            plans = (*plans, relaxed.fastest.plan)
        if all(_keeps(job, plan) for plan in plans):
            return _within_limit(job, relaxed)
    bound = ticks_down(relaxed.certificate.bound_s) if relaxed.certificate else 0.0
    return replace(proof, known_bound=bound).outcome()


def _without_limit(job: Job) -> Job:
    limits = job.spec.limits.model_copy(update={"max_link_utilisation": None})
    kinds = tuple(map(_without_limit, job.gpu_kinds))
    spec = job.spec.model_copy(update={"limits": limits})
    return replace(job, spec=spec, gpu_kinds=kinds)


def _keeps(job: Job, plan: Plan) -> bool:
    return not broken_rules(job, plan)


def _within_limit(job: Job, outcome: Outcome) -> Outcome:
    """Return an outcome without a rival or runner-up that breaks the limit."""
    others = {"rival": outcome.rival, "runner_up": outcome.runner_up}
    broken = {
        name: None
        for name, other in others.items()
        if other and not _keeps(job, other.plan)
    }
    return outcome.model_copy(update=broken)
