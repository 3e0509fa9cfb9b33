"""Picks the short runs that would tell most about which plan is best, and what fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.calibration.candidates import (
    is_exported,
    launchable,
    on_nodes,
    worth_running,
)
from meshwright.calibration.design import Choice, Prior, choose, decisions
from meshwright.calibration.responses import Response, responses_of
from meshwright.check.check import predict
from meshwright.cost.job import make_job
from meshwright.cost.profile import Profile
from meshwright.errors import SpecError
from meshwright.evidence.price import Priced
from meshwright.evidence.run import Run
from meshwright.evidence.spec_runs import with_published_fields
from meshwright.frameworks.base.switches import said_switches
from meshwright.plans.plan import Plan
from meshwright.search.options import Options
from meshwright.spec.card import card_gib
from meshwright.spec.spec import Spec

RIVAL_LOG = 0.3
"""Most by which a plan that may still be the best is slower, as a logarithm."""

LEAST_FITS = 0.02
"""Least probability with which it fits."""


@dataclass(frozen=True)
class Probe:
    """A run to make."""

    plan: Plan
    step_s: float
    """Predicted, and so is the memory."""
    peak_gib: float
    choice: Choice


@dataclass(frozen=True)
class Probes:
    """Runs to make, the one that tells most first."""

    spec: Spec
    """What they are runs of: the spec asked about, or the same on fewer nodes."""
    runs: tuple[Probe, ...]
    candidates: int
    rivals: int
    """Plans of the spec asked about that may be its best."""
    is_exported: bool
    """Whether files are written that start plans of the framework."""


def probes(
    spec: Spec,
    profile: Profile,
    count: int,
    nodes: int | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Probes:
    """Return the runs that tell most beside each other, at most `count`.

    Raises:
        SpecError: no plan is legal, or the cluster has several kinds of GPU.
    """
    if spec.cluster.parts:
        raise SpecError("cluster.parts: probes are of clusters with one kind of GPU")
    options = Options(profile=profile)
    known, small_spec = profile.applied_to(spec), on_nodes(spec, nodes)
    small = profile.applied_to(small_spec)
    wanted = _as_runs(known, worth_running(known, options, on_progress), profile)
    runs, makable = wanted, wanted
    if small.cluster != known.cluster:
        makable = _as_runs(small, worth_running(small, options, on_progress), profile)
        runs = [*wanted, *makable]
    plans = launchable(small, [one.plan for one in makable], profile)
    first = len(runs) - len(makable)
    able = [first + i for i, one in enumerate(makable) if one.plan in plans]
    if not wanted or not able:
        raise SpecError(f"{spec.title}: no plan can be launched")
    on_progress(f"weighing {len(runs)} plans")
    responses = responses_of(runs, profile)
    prior = _prior(small, profile, responses)
    steps = [float(np.exp(one.log_s)) for one in responses]
    rivals = _rivals(prior, steps[: len(wanted)])
    weighed = decisions(prior, steps, rivals)
    picked = choose(prior, weighed, able, count)
    return Probes(
        spec=small_spec,
        runs=tuple(
            Probe(runs[own.index].plan, steps[own.index], runs[own.index].peak_gib, own)
            for own in picked
        ),
        candidates=len(able),
        rivals=len(rivals),
        is_exported=is_exported(spec),
    )


def _as_runs(spec: Spec, plans: Sequence[Plan], profile: Profile) -> list[Priced]:
    """Return plans as runs that nobody has made."""
    job = make_job(spec, profile.efficiency(spec))
    result = []
    for plan in plans:
        step_s, stages = predict(job, plan)
        fullest = max(stages, key=lambda stage: stage.total_gib)
        run = Run.model_validate({"id": str(plan), "source_id": "", "spec": "-"})
        result.append(
            Priced(
                run=with_published_fields(run, spec, plan),
                spec=spec.at(plan.precision),
                plan=plan,
                step_s=step_s,
                peak_gib=fullest.total_gib,
                allocated_gib=fullest.total_gib - fullest.parts["overhead"],
                assumed={},
                said=said_switches(spec),
            )
        )
    return result


def _prior(spec: Spec, profile: Profile, responses: tuple[Response, ...]) -> Prior:
    spread = profile.memory_spread(spec.framework)
    whole_gib = spec.cluster.topology.gpu.memory_gib
    return Prior(responses, spread.sigma, spread.bias, card_gib(whole_gib))


def _rivals(prior: Prior, steps: Sequence[float]) -> list[int]:
    """Return the plans that may be the best of the spec: fast ones that may fit."""
    able = [i for i in range(len(steps)) if prior.fits[i] > LEAST_FITS]
    able = able or list(range(len(steps)))
    least = min(steps[i] for i in able)
    return [i for i in able if steps[i] <= least * np.exp(RIVAL_LOG)]
