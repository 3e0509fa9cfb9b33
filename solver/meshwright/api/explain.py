"""Explains a plan or a spec, and puts plans side by side: `explain`, `compare`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TypedDict, Unpack, overload

from pydantic import ValidationError

from meshwright import DEFAULT_PROFILE
from meshwright.api.arguments import checked
from meshwright.api.load import Question, as_spec
from meshwright.api.options import (
    OnProgress,
    PlanLike,
    PlansLike,
    named_pins,
    pins_of,
    quiet,
    read_profile,
    refuse_beside_open,
)
from meshwright.cost.profile import Profile
from meshwright.deadline import Deadline, Interrupt
from meshwright.explanations.compare import (
    NamedPins,
    compare_kinds,
    in_full,
    kind_pins,
    with_crossovers,
    with_ledger,
)
from meshwright.explanations.compare import compare as compare_plans
from meshwright.explanations.decisions import with_count
from meshwright.explanations.explain import Explainer
from meshwright.loading.sources import Source
from meshwright.loading.vary import PAIR, Varied, varied
from meshwright.planner.options import Options, tolerance_asked
from meshwright.planner.solve import solve
from meshwright.results.comparison import Comparison
from meshwright.results.explanation import Explanation
from meshwright.results.outcome_parts import NextValue
from meshwright.results.serving import ServingExplanation
from meshwright.serving.explain import explain_serving
from meshwright.spec.open_spec import BATCH, COUNT, OpenSpec
from meshwright.spec.serving import ServingSpec
from meshwright.spec.spec import Spec
from meshwright.surface import option
from meshwright.sweeps.open_choices import (
    Chosen,
    OpenChoice,
    choose,
    loss_of,
    open_choices,
)


class Explaining(TypedDict, total=False):
    """Keywords of `meshwright.explain`."""

    collectives: bool
    notes: list[str] | None
    profile: str | Profile
    on_progress: OnProgress
    interrupt: Interrupt | None


@overload
def explain(
    spec: Spec | OpenSpec, plan: PlanLike | None = None, **how: Unpack[Explaining]
) -> Explanation: ...


@overload
def explain(
    spec: Source, plan: PlanLike | None = None, **how: Unpack[Explaining]
) -> Explanation | ServingExplanation: ...


@overload
def explain(
    spec: ServingSpec, plan: PlanLike | None = None, **how: Unpack[Explaining]
) -> ServingExplanation: ...


@checked
def explain(
    spec: Question,
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
        spec: The model, the cluster and the job: a spec, or what `meshwright.load`
            reads one from. Of a spec that leaves machines or sequences open, the best
            choice is explained, and
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
        ('zero: 0 -> 1', 'offload: none -> optimizer')
    """
    spec = as_spec(spec)
    fitted = read_profile(profile)
    tolerance = tolerance_asked(spec, fitted)
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


NO_LEVEL = "No level joins the two GPUs; {} takes the path of another number."


@checked
def compare(
    spec: Spec | Source,
    plans: PlansLike = (),
    *,
    vary: str | Varied | None = None,
    profile: str | Profile = DEFAULT_PROFILE,
    on_progress: OnProgress = quiet,
) -> Comparison:
    """Return plans of a spec side by side, the fastest first.

    Args:
        spec: The model, the cluster and the job: a spec, or what `meshwright.load`
            reads one from.
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
    spec = as_spec(spec, Spec)
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
        return found.model_copy(update={"note": NO_LEVEL.format(option("vary"))})
    return found


def _found(spec: Spec, plans: NamedPins, options: Options) -> Comparison:
    """Return the plans, or the best of each kind; in full for plans or two GPUs."""
    if plans:
        found = compare_plans(spec, plans, lambda changed: solve(changed, options))
    else:
        found = compare_kinds(spec, solve(spec, replace(options, is_by_kind=True)))
    is_full = plans or spec.cluster.gpus == PAIR
    return in_full(spec, found, options.profile) if is_full else found


def _with_crossovers(
    spec: Spec, found: Comparison, plans: NamedPins, varied: Varied, options: Options
) -> Comparison:
    """Return a comparison with the crossovers of its plans, or of their kinds."""
    kinds = [compared.name for compared in found.plans if compared.plan]
    named = plans or [(kind, kind_pins(spec, kind)) for kind in kinds]
    return with_crossovers(
        found, varied, named, lambda changed: solve(changed, options)
    )


def explain_open(question: OpenSpec, options: Options) -> Explanation:
    """Return why the best plan of the best choice wins, and what binds the choice.

    Where no choice has a plan, it is why the largest one has none.
    """
    deadline = Deadline(options.time_limit_s, options.interrupt)
    chosen = choose(question, options, deadline)
    best = chosen.best
    spec = question.choices[-1] if best is None else best.spec
    told = Explainer(options).spec(spec).model_copy(update={"open": chosen.answer})
    if best is None or told.plan is None:
        return told
    return options.interrupt.unless_asked(
        lambda: told.model_copy(
            update={"next_values": tuple(_next_values(chosen, best))}
        ),
        told,
    )


def _next_values(chosen: Chosen, best: OpenChoice) -> Iterator[NextValue]:
    """Yield the results of the values below and above the chosen ones, by field.

    At an end of the allowed range, that is a value outside it.
    """
    question, spec = chosen.question, best.spec
    is_fixed_machine = (
        len({choice.cluster.topology.name for choice in question.choices}) == 1
    )
    asked = {
        COUNT: (question.counts, spec.cluster.count),
        BATCH: (question.batches, spec.training.global_batch),
    }
    for field, (allowed, value) in asked.items():
        if len(allowed) > 1 and (is_fixed_machine or field == BATCH):
            for other in _neighbours(allowed, value):
                yield _next_value(chosen, best, field, other, other in allowed)


def _neighbours(allowed: tuple[int, ...], value: int) -> Iterator[int]:
    """Yield the values around one; beyond an end, the next at the same distance."""
    place = allowed.index(value)
    below = allowed[place - 1] if place else value - (allowed[1] - allowed[0])
    if below > 0:
        yield below
    is_last = place == len(allowed) - 1
    yield value + (allowed[-1] - allowed[-2]) if is_last else allowed[place + 1]


def _next_value(
    chosen: Chosen, best: OpenChoice, field: str, value: int, is_allowed: bool
) -> NextValue:
    none = NextValue(field=field, value=value, is_allowed=is_allowed, step_s=None)
    try:
        spec = _changed(best.spec, field, value)
    except ValidationError:
        return none
    (other,) = open_choices([spec], chosen.search.options.profile)
    chosen.search.solve(other, math.inf)
    if other.step_s is None:
        return none
    level, loss = loss_of(chosen.levels, other, best)
    plan = other.outcome.best if other.outcome else None
    told = {"step_s": plan and plan.step_s, "level": level, "loss": loss}
    return none.model_copy(update=told)


def _changed(spec: Spec, field: str, value: int) -> Spec:
    """Return a spec with another value of an open field.

    Raises:
        ValidationError: the machines cannot be so many.
    """
    if field == COUNT:
        return with_count(spec, value)
    return spec.having("training", global_batch=value)
