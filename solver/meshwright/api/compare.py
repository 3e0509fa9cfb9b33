"""Puts plans side by side: `meshwright.compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwright import DEFAULT_PROFILE
from meshwright.api.arguments import checked
from meshwright.api.options import OnProgress, quiet, read_profile
from meshwright.api.plans import PlansLike, named_pins
from meshwright.cost.profile import Profile
from meshwright.explanations.compare import compare as compare_plans
from meshwright.explanations.compare import (
    compare_kinds,
    in_full,
    kind_pins,
    with_crossovers,
)
from meshwright.loading.vary import PAIR, Varied, varied
from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from meshwright.results.comparison import Comparison
from meshwright.spec.plan_fields import Pins
from meshwright.spec.spec import Spec

Named = Sequence[tuple[str, Pins]]

NO_LEVEL = "No level joins the two GPUs; --vary takes the path of another number."


@checked
def compare(
    spec: Spec,
    plans: PlansLike = (),
    *,
    vary: str | Varied | None = None,
    profile: str | Profile = DEFAULT_PROFILE,
    on_progress: OnProgress = quiet,
) -> Comparison:
    """Return plans of a spec side by side, the fastest first.

    Args:
        spec: The model, the cluster and the job, from `meshwright.load`.
        plans: Plans by name, or plans alone, each as for `meshwright.explain`. Without
            any, the best plan of each kind is taken.
        vary: A number of the spec and a range, 'topology.levels[0].gb_s=8:900': where
            in the range does the order of the plans turn? On two GPUs without plans
            that is the link between them.
        profile: Efficiencies: a file of `meshwright calibrate`, or bundled, `measured`
            (fitted to published runs) or `unfitted`.
        on_progress: Called with a line whenever something else is being done.

    Raises:
        SpecError: a plan, the range or the profile cannot be read.

    Example:
        >>> import meshwright as mw
        >>> spec = mw.load("llama2-13b-8xa100")
        >>> found = mw.compare(spec, {"tensors": "tp=8", "stages": "tp=1,pp=8"})
        >>> [plan.name for plan in found.plans]
        ['stages', 'tensors']
    """
    named = list(named_pins(plans, spec))
    if not isinstance(vary, Varied):
        fields = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
        vary = varied(fields, spec, vary, bool(named))
    options = Options(profile=read_profile(profile))
    on_progress("solving each plan")
    found = _found(spec, named, options)
    if vary and found.fits:
        on_progress(f"varying {vary.name}")
        return _with_crossovers(spec, found, named, vary, options)
    if vary is None and not named and spec.cluster.gpus == PAIR:
        return found.model_copy(update={"note": NO_LEVEL})
    return found


def _found(spec: Spec, plans: Named, options: Options) -> Comparison:
    """Return the plans, or the best of each kind; in full for plans or two GPUs."""
    if plans:
        found = compare_plans(spec, plans, lambda changed: solve(changed, options))
    else:
        found = compare_kinds(spec, solve(spec, replace(options, is_by_kind=True)))
    is_full = plans or spec.cluster.gpus == PAIR
    return in_full(spec, found, options.profile) if is_full else found


def _with_crossovers(
    spec: Spec, found: Comparison, plans: Named, varied: Varied, options: Options
) -> Comparison:
    """Return a comparison with the crossovers of its plans, or of their kinds."""
    kinds = [compared.name for compared in found.plans if compared.plan]
    named = plans or [(kind, kind_pins(spec, kind)) for kind in kinds]
    return with_crossovers(
        found, varied, named, lambda changed: solve(changed, options)
    )
