"""Maps the lattice of a spec: what became of every skeleton."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwright.api.price import job_of
from meshwright.check.check import check
from meshwright.cost.profile import Profile
from meshwright.planner.lattice_map import lattice_map
from meshwright.planner.options import tolerance_of
from meshwright.planner.prepared import prepare
from meshwright.plans.plan import Plan
from meshwright.results.lattice_map import LatticeMap
from meshwright.spec.spec import Spec


def map_of(spec: Spec, plans: Sequence[Plan], profile: Profile) -> LatticeMap | None:
    """Return the map of a spec's lattice around plans of an answer, the best first.

    With unlike parts it is the lattice of those that the best plan is on, and None
    where no plan says which.

    Raises:
        SpecError: a plan is of another spec.
    """
    if spec.cluster.parts and not plans:
        return None
    job = job_of(spec, plans[0], profile) if plans else profile.job(spec)
    known = [check(job_of(spec, plan, profile), plan) for plan in plans]
    within = tolerance_of(job.spec, profile).share
    found = lattice_map(prepare(job), known, within)
    return replace(found, is_of_parts=bool(spec.cluster.parts))
