"""Explains a plan or a spec: `meshwright.explain`."""

from __future__ import annotations

from dataclasses import replace
from typing import overload

from meshwright import DEFAULT_PROFILE
from meshwright.api.arguments import checked
from meshwright.api.options import OnProgress, quiet, read_profile, refuse_beside_open
from meshwright.api.plans import PlanLike, pins_of
from meshwright.cost.profile import Profile
from meshwright.deadline import Interrupt
from meshwright.explanations.compare import with_ledger
from meshwright.explanations.explain import Explainer
from meshwright.explanations.open_question import explain_open
from meshwright.planner.options import Options, Tolerance, tolerance_of
from meshwright.results.explanation import Explanation
from meshwright.results.serving_explanation import ServingExplanation
from meshwright.serving.explain import explain_serving
from meshwright.spec.open_spec import OpenSpec
from meshwright.spec.serving import ServingSpec
from meshwright.spec.spec import Spec


@overload
def explain(
    spec: Spec | OpenSpec,
    plan: PlanLike | None = None,
    *,
    collectives: bool = False,
    notes: list[str] | None = None,
    profile: str | Profile = DEFAULT_PROFILE,
    on_progress: OnProgress = quiet,
    interrupt: Interrupt | None = None,
) -> Explanation: ...


@overload
def explain(
    spec: ServingSpec,
    plan: PlanLike | None = None,
    *,
    collectives: bool = False,
    notes: list[str] | None = None,
    profile: str | Profile = DEFAULT_PROFILE,
    on_progress: OnProgress = quiet,
    interrupt: Interrupt | None = None,
) -> ServingExplanation: ...


@checked
def explain(
    spec: Spec | ServingSpec | OpenSpec,
    plan: PlanLike | None = None,
    *,
    collectives: bool = False,
    notes: list[str] | None = None,
    profile: str | Profile = DEFAULT_PROFILE,
    on_progress: OnProgress = quiet,
    interrupt: Interrupt | None = None,
) -> Explanation | ServingExplanation:
    """Return why a plan wins, loses or does not fit, and what would mend it.

    Args:
        spec: The model, the cluster and the job, from `meshwright.load`. Of a spec
            that leaves machines or sequences open, the best choice is explained, and
            which range binds it (`Explanation.next_values`).
        plan: The plan to judge: 'tp=8,pp=2', the name of a file of such fields, of an
            answer's JSON or of a framework's configuration, a mapping of fields, or a
            `Plan`. What it leaves open is chosen for it. Without a plan the spec
            itself is explained.
        collectives: Whether to add the ledger of the plan's collectives; for training.
        notes: Gets what is said of the options of a framework's configuration.
        profile: Efficiencies: a file of `meshwright calibrate`, or bundled, `measured`
            (fitted to published runs) or `unfitted`.
        on_progress: Called with a line whenever something else is being done.
        interrupt: Ends the work early once its `is_asked` is set.

    Raises:
        SpecError: the plan or the profile cannot be read.

    Example:
        >>> import meshwright as mw
        >>> spec = mw.load("llama3-8b-2xh100-nvlink")
        >>> told = mw.explain(spec, "tp=1,pp=1,zero=0,offload=none")
        >>> told.fits, told.conflict.rules[0].sentence
        (False, 'zero is 0')
        >>> told.repairs[0].edits
        ('zero: 0 -> 3', 'offload: none -> optimizer')
    """
    fitted, tolerance = read_profile(profile), Tolerance(0.0, "")
    if not isinstance(spec, ServingSpec):
        one = spec.choices[0] if isinstance(spec, OpenSpec) else spec
        tolerance = tolerance_of(one, fitted)
    options = Options(
        tolerance=tolerance.share,
        tolerance_from=tolerance.source,
        profile=fitted,
        on_progress=on_progress,
        interrupt=interrupt or Interrupt(),
    )
    if isinstance(spec, OpenSpec):
        given = {"plan": plan is not None, "collectives": collectives}
        refuse_beside_open(spec, given)
        return explain_open(spec, options)
    pins = None if plan is None else pins_of(plan, spec, notes)
    if isinstance(spec, ServingSpec):
        return explain_serving(spec, pins, replace(options, is_by_kind=pins is None))
    explainer = Explainer(options)
    told = explainer.plan(spec, pins) if pins else explainer.spec(spec)
    return with_ledger(spec, told, options.profile) if collectives else told
