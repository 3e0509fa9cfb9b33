"""Whether a launch asks Megatron Core to hide the messages of experts."""

from __future__ import annotations

from meshwright.frameworks.base.registry import framework_of, overlap_of
from meshwright.plans.plan import Plan
from meshwright.plans.skeletons import to_unplaced_row
from meshwright.spec.spec import Spec


def hides_experts(spec: Spec, plan: Plan) -> bool:
    """Return whether messages of experts hide: asked for, there, and accepted."""
    if "ep" not in overlap_of(spec) or plan.ep == 1:
        return False
    return bool(framework_of(spec).hides_experts(to_unplaced_row(plan))[0])
