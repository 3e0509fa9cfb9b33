"""Proves plans under a limit on links by the problem without it.

Where ranks may sit in many orders, only those are looked for in which some group pays
less than in others. One that is no faster may load links more evenly and keep a limit
that faster ones break, so those orders prove little under a limit. The problem without
the limit they prove. If its best plan keeps the limit, no plan that keeps it is faster;
and if not, none takes less than that one.
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
from meshwright.solver.options import Options
from meshwright.solver.prepared import Prepared
from meshwright.solver.proof import Run


def best_outcome(prepared: Prepared, options: Options, deadline: Deadline) -> Outcome:
    """Return the best plans of a lattice with their certificate, or why none is.

    Raises:
        SpecError: steps take days.
        InternalError: the checker disagrees with the solver about a plan.
    """
    job, lattice, kin = prepared.job, prepared.lattice, prepared.kin
    own = Run(job, lattice, options, deadline, kin)
    if job.spec.limits.max_link_utilisation is None or not lattice.table.has_choice:
        return own.outcome()
    free_job = _without_limit(job)
    free_lattice = replace(lattice, table=MeshTable(free_job))
    free = Run(free_job, free_lattice, options, deadline, kin).outcome()
    if free.status == "infeasible":
        return free
    if free.best and all(_keeps(job, each.plan) for each in (free.best, *free.others)):
        return _within_limit(job, free)
    floor = ticks_down(free.certificate.bound_s) if free.certificate else 0.0
    return replace(own, floor=floor).outcome()


def _without_limit(job: Job) -> Job:
    free = {"max_link_utilisation": None}
    limits = job.spec.limits.model_copy(update=free)
    kinds = tuple(map(_without_limit, job.kinds))
    spec = job.spec.model_copy(update={"limits": limits})
    return replace(job, spec=spec, kinds=kinds)


def _keeps(job: Job, plan: Plan) -> bool:
    return not broken_rules(job, plan)


def _within_limit(job: Job, free: Outcome) -> Outcome:
    """Return an outcome without the plans beside the best one that break the limit."""
    beside = {"rival": free.rival, "runner_up": free.runner_up}
    broken = {
        name: None for name, own in beside.items() if own and not _keeps(job, own.plan)
    }
    return free.model_copy(update=broken)
