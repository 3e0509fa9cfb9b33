"""Finds the best plan: `meshwright.solve`.

Modules that few specs need are imported when a spec needs them.
"""

from __future__ import annotations

from math import inf
from typing import Unpack, overload

from meshwright import DEFAULT_PROFILE
from meshwright.api.arguments import checked
from meshwright.api.load import Asking, Question, as_spec
from meshwright.api.options import (
    Effort,
    OnProgress,
    fixed_spec,
    or_endless,
    quiet,
    read_profile,
    refuse_beside_inference,
    refuse_beside_open,
)
from meshwright.cost.profile import Profile
from meshwright.cost.whole_model import active_params, total_params
from meshwright.deadline import Deadline, Interrupt
from meshwright.errors import SpecError
from meshwright.explanations.levers import levers_beside
from meshwright.explanations.published import with_published
from meshwright.loading.sources import Source
from meshwright.planner.options import (
    NO_TOLERANCE,
    PROVEN_WITHIN,
    Options,
    tolerance_asked,
)
from meshwright.planner.solve import solve as solve_training
from meshwright.results.outcome import Outcome
from meshwright.results.outcome_parts import ModelSize
from meshwright.results.serving import ServingOutcome
from meshwright.spec.open_spec import OpenSpec
from meshwright.spec.serving import ServingSpec
from meshwright.spec.spec import Spec

MOST_GPUS_BY_KIND = 8
"""Largest cluster for which the best plan of every kind is found by default."""

MOST_NEAR = 0.25
"""Largest share of the step time within which every plan is listed."""


class AskedEffort(Effort, Asking, total=False):
    """Keywords of `meshwright.solve` of a question that is not read yet."""


@overload
def solve(spec: Spec | OpenSpec, **how: Unpack[Effort]) -> Outcome: ...


@overload
def solve(spec: ServingSpec, **how: Unpack[Effort]) -> ServingOutcome: ...


@overload
def solve(
    spec: Source | None = None, **how: Unpack[AskedEffort]
) -> Outcome | ServingOutcome: ...


@checked
def solve(
    spec: Question | None = None,
    *,
    time_limit_s: float | None = None,
    seed: int = 0,
    workers: int = 1,
    top: int = 1,
    fastest: bool = False,
    near: float = 0.0,
    by_kind: bool | None = None,
    framework_limits: bool = False,
    safety: bool = True,
    repair: bool | None = None,
    show_model: bool = False,
    profile: str | Profile = DEFAULT_PROFILE,
    on_progress: OnProgress = quiet,
    interrupt: Interrupt | None = None,
    **asking: Unpack[Asking],
) -> Outcome | ServingOutcome:
    """Return the best plan that fits, with its proof, or why there is none.

    That is the simplest of the plans that are hardly slower than the fastest one,
    `Outcome.fastest`, unless the `objective` of the spec is another.

    Args:
        spec: The model, the cluster and the job: a spec, or what `meshwright.load`
            reads one from; not needed with `model` and `cluster`. Of a spec that leaves
            machines or sequences open, the best choice is found too (`Outcome.open`).
        time_limit_s: Stop after so many seconds, with the best plan so far, its lower
            bound and its gap.
        seed: The seed of CP-SAT.
        workers: Threads of CP-SAT; the answer is the same for any number.
        top: How many plans to return, each proven to be next (`Outcome.others`).
        fastest: Whether to return the fastest plan, whatever `objective` the spec has.
        near: Share of the fastest step time, such as 0.02, within which every plan is
            found, and what they share (`Outcome.near`).
        by_kind: Whether to find the best plan of each kind too: TP, PP, DP/ZeRO and
            their mixtures. Without: on clusters of up to 8 GPUs. On larger ones, it is
            proven of kinds within 10 % of the fastest plan; others have a bound.
        framework_limits: Whether to say what the limits of the framework cost: each is
            lifted alone, and the spec solved again (`Outcome.framework_limits`).
        safety: Whether to find what more or less risk of running out of memory would
            change (`Outcome.safety`), for which the spec is solved twice more.
        repair: Whether to find, where no plan fits a spec of training with fixed
            numbers, the smallest conflict and the cheapest repair
            (`Outcome.conflict`, `Outcome.repair`), in what is left of the time limit.
            By default where GPUs are alike and the model has no experts: else `explain`
            is asked, since it takes up to half a minute.
        show_model: Whether to tell the rows, variables and constraints of the model
            that chose the plan (`Outcome.solved_model`).
        profile: Efficiencies: a file of `meshwright calibrate`, or bundled, `measured`
            (fitted to published runs) or `unfitted`.
        on_progress: Called with a line whenever something else is being done.
        interrupt: Brings on the end of the time limit once its `is_asked` is set, as
            the command line does on Ctrl-C.
        **asking: `pins`, `rules`, and what asks without a spec or changes one (`model`,
            `cluster`, `gpus`, ...), all as in `meshwright.load`.

    Raises:
        SpecError: the profile cannot be read, an option is not for this spec, or steps
            take days.
        InternalError: the checker disagrees with the solver about a plan.

    Example:
        >>> import meshwright as mw
        >>> outcome = mw.solve("llama3-8b-2xa100-pcie")
        >>> outcome.status
        'optimal'
        >>> outcome.best.plan.pp, outcome.certificate.gap
        (2, 0.0)
    """
    spec = as_spec(spec, asking=asking)
    is_small = most_gpus(spec) <= MOST_GPUS_BY_KIND
    given = {
        "top": top > 1,
        "profile": profile != DEFAULT_PROFILE,
        "framework_limits": framework_limits,
        "fastest": fastest,
        "show_model": show_model,
        "near": near > 0,
    }
    refuse_beside_inference(spec, given)
    refuse_beside_open(spec, {"framework_limits": framework_limits})
    fitted = read_profile(profile)
    tolerance = NO_TOLERANCE if fastest else tolerance_asked(spec, fitted)
    options = Options(
        time_limit_s=or_endless(time_limit_s),
        seed=seed,
        workers=workers,
        top=top,
        tolerance=tolerance.share,
        tolerance_from=tolerance.source,
        near=_near(spec, near),
        is_by_kind=is_small if by_kind is None else by_kind,
        kinds_within=inf if is_small else PROVEN_WITHIN,
        is_safety=safety,
        shows_model=show_model,
        profile=fitted,
        on_progress=on_progress,
        interrupt=interrupt or Interrupt(),
    )
    deadline = Deadline(options.time_limit_s, options.interrupt)
    size = {"model": model_size(spec)}
    if isinstance(spec, ServingSpec):
        from meshwright.serving.solve import solve_serving

        return solve_serving(spec, options).model_copy(update=size)
    if isinstance(spec, OpenSpec):
        from meshwright.sweeps.open_choices import solve_open

        outcome = solve_open(spec, options)
    elif framework_limits:
        from meshwright.explanations.framework_rules import solve_with_limits

        outcome = solve_with_limits(spec, options)
    else:
        outcome = solve_training(spec, options)
    outcome = outcome.model_copy(update=size)
    if outcome.status == "infeasible" and isinstance(spec, Spec):
        if repair is None:
            repair = spec.model.moe is None and not spec.cluster.parts
        if not repair:
            return outcome
        from meshwright.explanations.explain import Explainer

        on_progress("looking for the conflict and repairs")
        asked = Options(
            seed=seed, workers=workers, profile=fitted, interrupt=options.interrupt
        )
        return Explainer(asked, deadline).mended(spec, outcome)
    if outcome.best is not None:
        resolved = fixed_spec(spec, outcome)
        assert isinstance(resolved, Spec), "of training"
        levers = levers_beside(resolved, outcome, fitted)
        outcome = outcome.model_copy(update={"levers": levers})
    if fastest or isinstance(spec, OpenSpec):
        return outcome
    return with_published(outcome, spec, options)


@checked
def certificate(
    spec: Question,
    outcome: Outcome | ServingOutcome,
    *,
    profile: str | Profile = DEFAULT_PROFILE,
) -> bytes:
    """Return the certificate of an answer: a file by which others can check it.

    `python meshwright_verify.py FILE` checks it with the standard library alone.

    Args:
        spec: The spec that was solved.
        outcome: Its answer, from `meshwright.solve` with the same profile.
        profile: The profile that it was solved with.

    Raises:
        SpecError: the answer is not proven or is that of another spec, or the spec has
            what is not certified yet.

    Example:
        >>> import meshwright as mw
        >>> outcome = mw.solve("llama3-8b-2xa100-pcie")
        >>> data = mw.certificate("llama3-8b-2xa100-pcie", outcome)
        >>> len(data) < 100_000
        True
    """
    spec = as_spec(spec)
    from meshwright.certificates.certificate import certificate as certificate_of
    from meshwright.certificates.certificate import refuse_uncertified

    refuse_uncertified(spec)

    fitted = read_profile(profile)
    if isinstance(spec, Spec) and isinstance(outcome, Outcome) and outcome.best:
        from meshwright.api.price import job_of

        try:
            job_of(spec, outcome.best.plan, fitted)
        except SpecError as error:
            told = f"outcome: not the answer to {spec.title}: {error}"
            raise SpecError(told) from None
    return certificate_of(spec, outcome, fitted)


def certified_as(
    spec: Spec | ServingSpec | OpenSpec, *, profile: str | Profile = DEFAULT_PROFILE
) -> tuple[set[str], str]:
    """Return the sha256 of all choices of a spec, and of a profile."""
    from meshwright.certificates.certificate import digest
    from meshwright.planner.mixed_clusters import arrangements

    fitted = read_profile(profile)
    if isinstance(spec, ServingSpec):
        return {digest(spec)}, digest(fitted)
    specs = spec.choices if isinstance(spec, OpenSpec) else (spec,)
    if isinstance(spec, Spec) and spec.cluster.parts:
        specs = tuple(one.spec for one in arrangements(spec))
    return {digest(fitted.applied_to(one)) for one in specs}, digest(fitted)


def most_gpus(spec: Spec | ServingSpec | OpenSpec) -> int:
    """Return the GPUs of a spec, the most of those that are left open."""
    fixed = spec.choices[-1] if isinstance(spec, OpenSpec) else spec
    return fixed.cluster.gpus


def model_size(spec: Spec | ServingSpec | OpenSpec) -> ModelSize:
    """Return the parameters of the model of a spec."""
    total, active = total_params(spec.model), active_params(spec.model)
    return ModelSize(name=spec.model.name, params=total, active_params=active)


def _near(spec: Spec | ServingSpec | OpenSpec, near: float) -> float:
    """Return the share within which to find every plan.

    Raises:
        SpecError: it is none, or the cluster has unlike parts.
    """
    if not 0 <= near <= MOST_NEAR:
        raise SpecError(f"near: {near!r}: expected a share from 0 to {MOST_NEAR}")
    has_parts = not isinstance(spec, OpenSpec) and spec.cluster.parts
    if near and has_parts:
        raise SpecError("near: not for clusters of unlike parts")
    return near
