"""Puts the step of one plan on a clock."""

from __future__ import annotations

from meshwright import DEFAULT_PROFILE
from meshwright.api.options import read_profile
from meshwright.api.price import job_of
from meshwright.check.timeline import timeline as timeline_of
from meshwright.cost.profile import Profile
from meshwright.plans.plan import Plan
from meshwright.results.timeline import Timeline
from meshwright.spec.spec import Spec


def timeline(
    spec: Spec, plan: Plan, *, profile: str | Profile = DEFAULT_PROFILE
) -> Timeline:
    """Return when every pipeline stage does what in the step of a plan.

    Args:
        spec: The model, the cluster and the job, from `meshwright.load`.
        plan: A complete plan, such as the `plan` of an outcome's `best`.
        profile: Efficiencies, as for `meshwright.price`.

    Raises:
        SpecError: the plan is of another cluster, model or batch.
    """
    return timeline_of(job_of(spec, plan, read_profile(profile)), plan)
