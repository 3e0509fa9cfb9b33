"""Writes an answer as files: `meshwright.export`, `meshwright.html_report`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from meshwright import DEFAULT_PROFILE
from meshwright.api.arguments import checked
from meshwright.api.load import Question, as_spec
from meshwright.api.options import fixed_spec, read_profile
from meshwright.api.price import job_of, map_of
from meshwright.check.check import check, stage_specs
from meshwright.check.timeline import timeline
from meshwright.cost.profile import Profile
from meshwright.economics.simulate import drawn_step
from meshwright.errors import SpecError
from meshwright.exports.files import Export
from meshwright.exports.target import export_plan, target_of
from meshwright.plans.plan import Plan
from meshwright.report.pages.answer import (
    Drawn,
    ServingAnswer,
    Solved,
    Told,
    answer_data,
    answer_page,
    outcome_of,
    page_of,
    priced_plans,
    serving_plan_data,
    serving_told,
    told_data,
    told_of,
)
from meshwright.results.claims import FASTEST
from meshwright.results.comparison import Comparison
from meshwright.results.explanation import Explanation
from meshwright.results.outcome import Outcome
from meshwright.results.outcome_parts import LatticeMap
from meshwright.results.priced_plan import PricedPlan
from meshwright.results.serving import ServingOutcome
from meshwright.results.simulation import DrawnPlan, KnownPlan, LaunchFiles, Simulation
from meshwright.spec.serving import ServingSpec
from meshwright.spec.spec import Spec

MISS = "This plan does not fit: it is the one that comes closest."

Named = tuple[str, Plan, str]
"""Name, plan, and what to know of it first."""


@checked
def html_report(
    spec: Spec | ServingSpec,
    answer: Drawn | ServingAnswer,
    *,
    profile: str | Profile = DEFAULT_PROFILE,
) -> str:
    """Return an answer as one HTML page that needs no network.

    It has the plan with its launch line, memory and step time by part, the timeline of
    the pipeline, the mesh on the hosts, the loads of links, plans near the fastest,
    what limits are worth where the answer says so, the map of the lattice, and the
    certificate. Of an answer about serving it has the times of a first and of a further
    token, memory, and all that is told.

    Args:
        spec: The model, the cluster and the job, from `meshwright.load`.
        answer: What `solve`, `explain`, `compare` or `simulate` said of the spec.
        profile: The profile of that answer.

    Raises:
        SpecError: the answer is of another spec.

    Example:
        >>> import meshwright as mw
        >>> spec = mw.load("gpt-1.3b-2xh100-nvlink")
        >>> page = mw.html_report(spec, mw.solve(spec))
        >>> page.startswith("<!doctype html>")
        True
    """
    if isinstance(spec, ServingSpec) or isinstance(answer, ServingAnswer):
        return serving_report(spec, answer)
    fitted = read_profile(profile)
    told, drawn = _told_and_drawn(spec, answer, fitted)
    return answer_page(told, drawn, _lattice_map(spec, answer, fitted))


def report_data(
    spec: Spec, answer: Drawn, *, profile: str | Profile = DEFAULT_PROFILE
) -> dict[str, Any]:
    """Return the texts and drawings of an answer's page, as data for its scripts.

    Raises:
        SpecError: the answer is of another spec.
    """
    return answer_data(*_told_and_drawn(spec, answer, read_profile(profile)))


def _lattice_map(spec: Spec, answer: Drawn, profile: Profile) -> LatticeMap | None:
    """Return the map of the lattice that an answer was proven on, if it has one."""
    outcome = answer.best if isinstance(answer, Explanation) else answer
    if isinstance(answer, Explanation) and outcome is None:
        return map_of(spec, (), profile) if answer.plan is None else None
    if not isinstance(outcome, Outcome) or outcome.status == "unknown":
        return None
    found = (outcome.best, outcome.optimum)
    return map_of(
        spec, [priced.plan for priced in found if priced is not None], profile
    )


def _told_and_drawn(
    spec: Spec, answer: Drawn, profile: Profile
) -> tuple[Told, list[DrawnPlan]]:
    """Return the texts of an answer, and its plans as drawings."""
    near: list[KnownPlan] = []
    if isinstance(answer, Simulation):
        drawn = list(_simulated_steps(spec, answer, profile))
    else:
        named_plans = [one for one in _named_plans(answer) if _is_drawable(spec, one)]
        drawn = [_drawn(spec, named, profile) for named in named_plans]
        near = _near(spec, answer, profile)
    return told_of(answer, near, spec.limits.risk), drawn


def _is_drawable(spec: Spec, named: Named) -> bool:
    """Return whether a plan can be drawn; misses may have other layers."""
    _, plan, note = named
    legal = sum(stage.layers for stage in plan.stages) == spec.model.n_layers
    dp, each = plan.dp_replicate * plan.dp_shard, plan.micro_batch * plan.microbatches
    return not note or (legal and dp * each == spec.training.global_batch)


def _simulated_steps(
    spec: Spec, told: Simulation, profile: Profile
) -> Iterator[DrawnPlan]:
    """Yield the plan with a disturbed step of one pipeline, and with a calm one."""
    calm = _drawn(spec, ("the step, undisturbed", told.plan, ""), profile)
    job = job_of(spec, told.plan, profile)
    step = drawn_step(job, told.plan, told.disturbance, told.seed)
    name = f"a step of one pipeline with jitter, drawn with seed {told.seed}"
    yield replace(calm, name=name, timeline=step)
    yield calm


def _drawn(spec: Spec, named: Named, profile: Profile) -> DrawnPlan:
    name, plan, note = named
    job = job_of(spec, plan, profile)
    return DrawnPlan(
        name=name,
        priced=check(job, plan),
        timeline=timeline(job, plan),
        capacity_gib=tuple(
            spec.cluster.topology.gpu.memory_gib for spec in stage_specs(job, plan.pp)
        ),
        cluster=job.spec.cluster,
        launch=_launch(job.spec, plan) if not note else LaunchFiles(),
        note=note,
    )


def _launch(spec: Spec, plan: Plan) -> LaunchFiles:
    try:
        exported = export_plan(spec, plan, target_of(spec.framework))
    except SpecError as error:
        return LaunchFiles(refused=str(error))
    files = tuple((file.name, file.text) for file in exported.files)
    return LaunchFiles(exported.target, exported.version, files)


def _named_plans(answer: Solved) -> list[Named]:
    """Return the plans that are drawn: the one asked about or the miss first."""
    named = [(name, priced.plan, "") for name, priced in priced_plans(answer)]
    miss = _miss(answer)
    return named if miss is None else [("the nearest miss", miss, MISS), *named]


def _miss(answer: Solved) -> Plan | None:
    """Return the plan that is drawn where none fits, or not the one asked about."""
    if isinstance(answer, Comparison):
        return None
    if isinstance(answer, Explanation):
        return answer.nearest if answer.plan is None else None
    miss = answer.near_miss
    if answer.best is not None or miss is None or miss.is_asked:
        return None
    return miss.plan


def _near(spec: Spec, answer: Solved, profile: Profile) -> list[KnownPlan]:
    """Return the plans that an answer knows, the fastest first, each once."""
    found: dict[str, KnownPlan] = {}
    for plan, why in _known_plans(answer):
        key = plan.model_dump_json()
        if key not in found:
            priced = check(job_of(spec, plan, profile), plan)
            found[key] = KnownPlan(priced, why, is_first=not found)
    return sorted(found.values(), key=lambda near: near.priced.step_s)


def _known_plans(answer: Solved) -> Iterator[tuple[Plan, str]]:
    if isinstance(answer, Comparison):
        for compared in answer.plans:
            if compared.plan is not None:
                yield compared.plan.plan, compared.name
    elif isinstance(answer, Explanation):
        is_best = answer.best is not None and answer.best.best == answer.plan
        if answer.plan is not None and not is_best:
            yield answer.plan.plan, "the plan asked about"
        if answer.best is not None:
            yield from _plans_of_outcome(answer.best)
        for axis in answer.degrees.axes if answer.degrees else ():
            for other in axis.others:
                if other.plan is not None:
                    yield other.plan, f"{axis.axis} {other.degree}"
    else:
        yield from _plans_of_outcome(answer)


def _plans_of_outcome(outcome: Outcome) -> Iterator[tuple[Plan, str]]:
    if outcome.best is None:
        return
    for name, priced in priced_plans(outcome):
        yield priced.plan, name
    if outcome.fastest is not None:
        yield outcome.fastest.plan, FASTEST
    for rank, other in enumerate(outcome.others, 2):
        yield other.plan, f"rank {rank}"
    for kind in outcome.by_kind:
        if kind.best is not None:
            name = "fastest" if kind.is_proven else "a plan"
            yield kind.best.plan, f"{name} of {kind.kind}"
    for choice in outcome.safety:
        if choice.plan is not None:
            yield choice.plan, f"recommended at a risk of {choice.oom_risk:g}"
    if outcome.runner_up is not None:
        yield outcome.runner_up.plan, "next fastest that was met"
    if outcome.rival is not None:
        yield outcome.rival.plan, "faster by the task graph"


def serving_report(spec: Spec | ServingSpec, answer: Drawn | ServingAnswer) -> str:
    """Return the page of an answer: times by part, memory, and all that is told.

    Raises:
        SpecError: one of spec and answer is about training.
    """
    if not (isinstance(spec, ServingSpec) and isinstance(answer, ServingAnswer)):
        raise SpecError("answer: is of another spec: one of both is about training")
    best = outcome_of(answer).best
    gpu = spec.cluster.topology.gpu
    drawn = [] if best is None else [serving_plan_data(best, gpu)]
    return page_of(told_data(serving_told(answer), drawn))


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
        to: What starts the plan, one of `meshwright.exports.TARGETS`; without: the one
            that launches plans of the spec's framework.
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
