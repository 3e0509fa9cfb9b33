"""Prices a plan, and simulates its steps: `meshwright.price`, `meshwright.simulate`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import overload

from meshwright import DEFAULT_PROFILE
from meshwright.api.arguments import checked
from meshwright.api.options import OnProgress, PlanLike, pins_of, quiet, read_profile
from meshwright.api.solve import solve
from meshwright.check.check import check
from meshwright.check.timeline import timeline as timeline_of
from meshwright.cost.job import Job
from meshwright.cost.profile import Profile
from meshwright.economics.simulate import simulate as simulate_plan
from meshwright.errors import SpecError
from meshwright.explanations.decisions import with_pins
from meshwright.explanations.lattice_map import lattice_map
from meshwright.planner.families import prepare
from meshwright.planner.mixed_clusters import arrangements
from meshwright.planner.options import tolerance_of
from meshwright.plans.plan import Plan
from meshwright.plans.rule import broken
from meshwright.plans.skeletons import to_unplaced_row
from meshwright.results.outcome_parts import LatticeMap
from meshwright.results.priced_plan import PricedPlan
from meshwright.results.serving import PricedServing, ServingPlan
from meshwright.results.simulation import Disturbance, Simulation, Timeline
from meshwright.rules.sums import EXPERT_RULES, split_rules
from meshwright.serving.check import check as check_serving
from meshwright.serving.deployment import make_serving_job
from meshwright.spec.plan_fields import AXES
from meshwright.spec.serving import ServingSpec
from meshwright.spec.spec import Spec

Mesh = Mapping[str, tuple[int, ...]]


@overload
def price(
    spec: Spec, plan: Plan, *, profile: str | Profile = DEFAULT_PROFILE
) -> PricedPlan: ...


@overload
def price(
    spec: ServingSpec, plan: ServingPlan, *, profile: str | Profile = DEFAULT_PROFILE
) -> PricedServing: ...


@checked
def price(
    spec: Spec | ServingSpec,
    plan: Plan | ServingPlan,
    *,
    profile: str | Profile = DEFAULT_PROFILE,
) -> PricedPlan | PricedServing:
    """Return the time, the memory and the link loads of one complete plan.

    The plan is scored in floats, apart from the solver; it need not fit. Whether it
    does, and which rules it breaks, is what `meshwright.explain` says.

    Args:
        spec: The model, the cluster and the job, from `meshwright.load`.
        plan: A plan of the same number of GPUs, layers and sequences, such as the
            `plan` of an outcome's `best`, or one read by `meshwright.Plan`.
        profile: Efficiencies of training: a file of `meshwright calibrate`, or bundled,
            `measured` (fitted to published runs) or `unfitted`.

    Raises:
        SpecError: the plan is of another cluster, model or batch.

    Example:
        >>> import meshwright as mw
        >>> spec = mw.load("llama3-8b-2xh100-nvlink")
        >>> best = mw.solve(spec).best
        >>> mw.price(spec, best.plan).step_s == best.step_s
        True
        >>> mw.price(mw.load("llama3-8b-2xa100-pcie"), best.plan).step_s > best.step_s
        True
    """
    if isinstance(spec, ServingSpec):
        if not isinstance(plan, ServingPlan):
            raise SpecError("plan: is of training; this spec has inference")
        return _of_serving(spec, plan)
    if not isinstance(plan, Plan):
        raise SpecError("plan: is of serving; this spec has training")
    return check(job_of(spec, plan, read_profile(profile)), plan)


def job_of(spec: Spec, plan: Plan, profile: Profile) -> Job:
    """Return the job that a plan is for; with unlike parts, as the plan uses them.

    Raises:
        SpecError: the plan is for another job.
    """
    is_mixed = bool(spec.cluster.parts)
    uses = [way.spec for way in arrangements(spec)] if is_mixed else [spec]
    problems: list[str] = []
    for arrangement in uses:
        job = profile.job(arrangement)
        problems = list(_problems(job, plan))
        if not problems:
            return job
    raise SpecError(f"plan: is none of this spec: {problems[0]}")


def _problems(job: Job, plan: Plan) -> Iterator[str]:
    """Yield the reasons why a plan is for another job."""
    yield from map(str, split_rules(job.spec, plan))
    rules = [rule for rule in EXPERT_RULES if rule.concerns(job.spec)]
    yield from map(str, broken(rules, job.spec, to_unplaced_row(plan)))
    for kind in job.gpu_kinds or (job,):
        gpu = kind.spec.cluster.topology.gpu
        if plan.precision not in gpu.peak_tflops.known:
            known = ", ".join(gpu.peak_tflops.known)
            yield f"precision: {plan.precision}; {gpu.name} has peaks for {known}"
    degrees = {axis: getattr(plan, axis) for axis in AXES}
    yield from _mesh_problems(plan.mesh, degrees, job.fabric.sizes)
    yield from _seat_problems(plan, job.fabric.seats)
    lies = [stage.gpu for stage in plan.stages]
    if len(lies) == plan.pp and lies != _stage_gpus(job, plan.pp):
        yield f"stages lie on {', '.join(lies)}"


def _stage_gpus(job: Job, stages: int) -> list[str]:
    """Return the GPU of each stage, where they differ; empty names elsewhere."""
    names = [kind.spec.cluster.topology.gpu.name for kind in job.gpu_kinds] or [""]
    return [names[kind] for kind in job.gpu_kind_of_stage(stages).tolist()]


def _mesh_problems(
    mesh: Mesh, degrees: Mapping[str, int], sizes: tuple[int, ...]
) -> Iterator[str]:
    """Yield the reasons why a mesh does not lay these degrees over these levels."""
    if set(mesh) != set(degrees) or {len(factors) for factors in mesh.values()} != {
        len(sizes)
    }:
        yield f"mesh: expected {len(sizes)} factors for each of {', '.join(degrees)}"
        return
    for axis, degree in degrees.items():
        if math.prod(mesh[axis]) != degree:
            yield f"mesh.{axis}: {mesh[axis]} is not {degree}"
    for level, size in enumerate(sizes):
        if math.prod(factors[level] for factors in mesh.values()) != size:
            yield f"mesh: level {level} has {size} children"


def _seat_problems(plan: Plan, ranks: tuple[int, ...]) -> Iterator[str]:
    """Yield the reasons why seats do not order the ranks of each kind of host."""
    if plan.seats and len(plan.seats) != len(ranks):
        yield f"seats: of {len(plan.seats)} kinds of host, the cluster has {len(ranks)}"
        return
    for kind, (seats, count) in enumerate(zip(plan.seats, ranks, strict=False)):
        if sorted(seats) != [*range(count)]:
            yield f"seats.{kind}: expected each of 0 to {count - 1} once"


def _of_serving(spec: ServingSpec, plan: ServingPlan) -> PricedServing:
    job = make_serving_job(spec)
    degrees = dict.fromkeys(AXES, 1)
    degrees |= {"tp": plan.tp, "pp": plan.pp, "dp_replicate": plan.dp_replicate}
    problems = list(_mesh_problems(plan.mesh, degrees, job.fabric.sizes))
    if plan.tp % plan.attention_dp:
        problems.append(f"attention_dp: {plan.attention_dp} for tp {plan.tp}")
    if len(plan.layers) != plan.pp or sum(plan.layers) != spec.model.n_layers:
        problems.append(f"layers: {plan.layers} for {spec.model.n_layers} layers")
    if problems:
        raise SpecError(f"plan: is none of this spec: {problems[0]}")
    return check_serving(job, plan)


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


def map_of(spec: Spec, plans: Sequence[Plan], profile: Profile) -> LatticeMap | None:
    """Return the map of a spec's lattice around plans of an answer, the best first.

    With unlike parts it is the lattice of those that the best plan is on, and None
    where no plan says which.

    Raises:
        SpecError: a plan is of another spec.
    """
    if spec.cluster.parts and not plans:
        return None
    job = job_of(spec, plans[0], profile) if plans else profile.job(spec)
    known = [check(job_of(spec, plan, profile), plan) for plan in plans]
    within = tolerance_of(job.spec, profile).share
    found = lattice_map(prepare(job, keeps_all=True), known, within)
    return replace(found, is_of_parts=bool(spec.cluster.parts))


class NoPlanError(SpecError):
    """No plan fits, so that there is none to simulate."""


JITTER = 0.02
"""Standard deviation of compute times where the spec gives none; an estimate."""


@checked
def simulate(
    spec: Spec,
    plan: PlanLike | None = None,
    *,
    jitter: float | None = None,
    slow_gpus: float = 0.0,
    slowdown: float | None = None,
    samples: int = 1_000,
    seed: int = 0,
    days: float = 30.0,
    profile: str | Profile = DEFAULT_PROFILE,
    on_progress: OnProgress = quiet,
) -> Simulation:
    """Return how long the steps of a plan take where GPUs are not all alike.

    Args:
        spec: The model, the cluster and the job, from `meshwright.load`.
        plan: The plan, as for `meshwright.explain`; what it leaves open is chosen for
            it. Without: the best one.
        jitter: Standard deviation of a GPU's compute time of a task, as a share.
            Without: `run.straggler.jitter` of the spec, else 0.02.
        slow_gpus: Share of GPUs that are slow in a step, each at random.
        slowdown: How much slower their compute is, as a share. Without:
            `run.straggler.slowdown` of the spec, else 0.1.
        samples: Steps to simulate.
        seed: Of the random numbers; the same seed gives the same answer.
        days: Of the runs with failures, where the spec's `run` describes them.
        profile: Efficiencies, as for `meshwright.solve`.
        on_progress: Called with a line whenever something else is being done.

    Raises:
        NoPlanError: no plan fits.
        SpecError: the plan or a number cannot be read.

    Example:
        >>> import meshwright as mw
        >>> spec = mw.load("llama2-13b-8xa100")
        >>> calm = mw.simulate(spec, "pp=4,tp=2", jitter=0.0)
        >>> calm.step_s.p99 - calm.step_s.least < 1e-9
        True
        >>> mw.simulate(spec, "pp=4,tp=2", jitter=0.1).step_s.median > calm.schedule_s
        True
    """
    read = read_profile(profile)
    priced = _priced(spec, plan, read, on_progress)
    job = job_of(spec, priced.plan, read)
    told = _disturbance(spec, jitter, slow_gpus, slowdown)
    on_progress("walking the schedule")
    return simulate_plan(job, priced, told, samples, seed, days, on_progress)


def _priced(
    spec: Spec, plan: PlanLike | None, profile: Profile, on_progress: OnProgress
) -> PricedPlan:
    """Return the plan with its price; a complete one need not fit."""
    if isinstance(plan, Plan):
        return price(spec, plan, profile=profile)
    asked = spec if plan is None else with_pins(spec, pins_of(plan, spec))
    outcome = solve(
        asked, by_kind=False, repair=False, profile=profile, on_progress=on_progress
    )
    if outcome.best is None:
        told = "`meshwright explain` says why, and what would mend it"
        raise NoPlanError(f"no plan fits, so that there is none to simulate; {told}")
    return outcome.best


def _disturbance(
    spec: Spec, jitter: float | None, slow_gpus: float, slowdown: float | None
) -> Disturbance:
    known = spec.run.straggler if spec.run else None
    if jitter is None:
        jitter = known.jitter if known and known.jitter else JITTER
    if slowdown is None:
        slowdown = known.slowdown if known else 0.1
    for name, value, most in (
        ("jitter", jitter, 1.0),
        ("slow_gpus", slow_gpus, 1.0),
        ("slowdown", slowdown, 100.0),
    ):
        if not 0 <= value <= most:
            raise SpecError(f"{name}: {value}; accepted: 0 to {most:g}")
    return Disturbance(jitter=jitter, slow_gpus=slow_gpus, slowdown=slowdown)
