"""Writes a plan as files that start a training framework: `meshwright.export`."""

from __future__ import annotations

from meshwright import DEFAULT_PROFILE
from meshwright.api.arguments import checked
from meshwright.api.load import Question, as_spec
from meshwright.api.options import fixed_spec, read_profile
from meshwright.api.price import job_of
from meshwright.errors import SpecError
from meshwright.exports.files import Export
from meshwright.exports.target import export_plan, target_of
from meshwright.plans.plan import Plan
from meshwright.results.outcome import Outcome
from meshwright.results.priced_plan import PricedPlan
from meshwright.results.serving import ServingOutcome
from meshwright.spec.serving import ServingSpec


@checked
def export(
    spec: Question,
    plan: Plan | PricedPlan | Outcome | ServingOutcome,
    *,
    to: str | None = None,
    launcher: str = "torchrun",
) -> Export:
    """Return a plan as files that start a training framework.

    Every line says where its number comes from. A plan that the framework cannot be
    told in whole is refused, with the check of the framework that would fail.

    Args:
        spec: The model, the cluster and the job: a spec, or what `meshwright.load`
            reads one from.
        plan: A plan, or an answer that has one.
        to: megatron, megatron-bridge, deepspeed, torchtitan or accelerate; without: the
            one that launches plans of the spec's framework.
        launcher: torchrun, sbatch, kubernetes or skypilot: what starts every host.

    Raises:
        SpecError: there is no plan, it is of another spec or framework, or the
            framework cannot be told all of it.

    Example:
        >>> import meshwright as mw
        >>> spec = mw.load("gpt-1.3b-2xh100-nvlink")
        >>> exported = mw.export(spec, mw.solve(spec))
        >>> "--micro-batch-size 8" in exported["launch.sh"]
        True
    """
    spec = fixed_spec(as_spec(spec), plan)
    if isinstance(spec, ServingSpec) or isinstance(plan, ServingOutcome):
        raise SpecError("spec: is of serving; only plans of training are exported")
    whole = _plan_of(plan)
    job = job_of(spec, whole, read_profile(DEFAULT_PROFILE))
    return export_plan(job.spec, whole, to or target_of(spec.framework), launcher)


def _plan_of(plan: Plan | PricedPlan | Outcome) -> Plan:
    if isinstance(plan, Outcome):
        if plan.best is None:
            raise SpecError(
                f"plan: there is none to export, the answer is {plan.status}"
            )
        return plan.best.plan
    return plan.plan if isinstance(plan, PricedPlan) else plan
