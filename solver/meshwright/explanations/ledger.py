"""The ledger of collectives of the plan that an explanation tells of."""

from __future__ import annotations

from meshwright.cost.profile import Profile
from meshwright.economics.ledger import ledger
from meshwright.results.explanation import Explanation
from meshwright.results.ledger import Ledger
from meshwright.spec.spec import Spec


def with_ledger(spec: Spec, told: Explanation, profile: Profile) -> Explanation:
    """Return an explanation with the ledger of the plan that it tells of.

    That is the nearest plan where none fits; a ledger of nothing where there is none.
    """
    plan = told.plan.plan if told.plan else told.nearest
    if plan is None or told.cluster is None:
        return told.model_copy(update={"collectives": Ledger(stages=())})
    job = profile.job(spec.model_copy(update={"cluster": told.cluster}))
    return told.model_copy(update={"collectives": ledger(job, plan)})
