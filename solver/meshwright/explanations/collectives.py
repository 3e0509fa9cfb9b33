"""An explanation with the ledger of collectives of its plan."""

from __future__ import annotations

from meshwright.cost.profile import Profile
from meshwright.economics.ledger import ledger
from meshwright.results.explanation import Explanation
from meshwright.results.ledger import Ledger
from meshwright.spec.spec import Spec


def with_ledger(spec: Spec, explanation: Explanation, profile: Profile) -> Explanation:
    """Return the explanation with the ledger of the collectives of its plan.

    Where no plan fits, it is the ledger of the plan that comes closest; without any
    plan it is an empty ledger.
    """
    plan = explanation.plan.plan if explanation.plan else explanation.nearest
    if plan is None or explanation.cluster is None:
        return explanation.model_copy(update={"collectives": Ledger(stages=())})
    job = profile.job(spec.model_copy(update={"cluster": explanation.cluster}))
    return explanation.model_copy(update={"collectives": ledger(job, plan)})
