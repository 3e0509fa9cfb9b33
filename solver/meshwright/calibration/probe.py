"""Picks the short runs that say most about which plan is fastest, and which fit.

Candidates are the fastest plans, plans near the memory limit, and plans that vary one
technique each; only plans that a framework can launch are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist

import numpy as np

from meshwright.calibration.beliefs import NOISE, prior_covariance
from meshwright.calibration.responses import (
    LEAST_GIB,
    Alternative,
    Hypotheses,
    Response,
    alternatives,
    departures,
    responses_of,
)
from meshwright.check.check import predict
from meshwright.cost.job import make_job
from meshwright.cost.profile import Profile
from meshwright.errors import SpecError
from meshwright.evidence.memory_spread import BIAS_SD
from meshwright.evidence.price import Priced, with_published_fields
from meshwright.evidence.runs import Run
from meshwright.explanations.decisions import with_pins
from meshwright.exports.target import export_plan, target_of
from meshwright.frameworks.base.switches import said_switches
from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from meshwright.plans.columns import Floats
from meshwright.plans.plan import Plan
from meshwright.spec.goals import card_gib, normal_cdf
from meshwright.spec.plan_fields import Pins
from meshwright.spec.spec import Spec

PLANS = 8
"""Fastest plans of each spec that are candidates, besides those of `VARIED`."""

MOST_PLANS = 32

RIVAL_LOG = 0.3
"""Log step time above the fastest up to which a plan may still be the best."""

LEAST_FITS = 0.02
"""Least probability of fitting of a plan that may be the best."""


@dataclass(frozen=True)
class Probe:
    """A run to make."""

    plan: Plan
    step_s: float
    """Predicted step time; the memory is predicted too."""
    peak_gib: float
    choice: Choice


@dataclass(frozen=True)
class Probes:
    """Runs to make, the most informative first."""

    spec: Spec
    """The spec of the runs: the one asked about, or the same on fewer nodes."""
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
    """Return the most informative runs as a set, at most `count`.

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
            Probe(
                runs[choice.index].plan,
                steps[choice.index],
                runs[choice.index].peak_gib,
                choice,
            )
            for choice in picked
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
                allocated_gib=fullest.allocated_gib,
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


OVER = 1.12
"""Memory, as a share of the card, up to which plans that do not fit are probed."""

EFFORT = 0.25
"""Deterministic seconds for one of these solves; none of them must be proven best."""

VARIED: tuple[dict[str, object], ...] = (
    {"recompute": "none"},
    {"recompute": "full"},
    {"zero": 1},
    {"zero": 3},
    {"micro_batch": 1},
    {"micro_batch": 2},
    {"micro_batch": 4},
    {"tp": 1},
    {"sequence_parallel": True},
)
"""Pins under which plans are found too, where the spec does not decide the field."""


def worth_running(
    spec: Spec, options: Options, say: Callable[[str], None]
) -> list[Plan]:
    """Return plans that fit, or nearly fit, without repetition; best first."""
    brief = replace(
        options, top=PLANS, is_brief=True, is_by_kind=True, most_effort=EFFORT
    )
    say("solving, for the best plans of each kind")
    found = list(_plans(spec, brief))
    over_gib = OVER * card_gib(spec.cluster.topology.gpu.memory_gib)
    loose = spec.having("limits", memory_gib=over_gib)
    say("solving, for plans that just do not fit")
    found += _plans(loose, brief)
    single = replace(brief, top=1, is_by_kind=False)
    for pins in VARIED:
        if all(getattr(spec.pins, name) is None for name in pins):
            asked = with_pins(loose, Pins.model_validate(pins))
            say("solving, with " + ", ".join(f"{n}={v}" for n, v in pins.items()))
            found += _plans(asked, single)
    return list({plan.model_dump_json(): plan for plan in found}.values())[:MOST_PLANS]


def _plans(spec: Spec, options: Options) -> Iterator[Plan]:
    outcome = solve(spec, options)
    if outcome.best is not None:
        yield outcome.best.plan
    yield from (other.plan for other in outcome.others)
    yield from (kind.best.plan for kind in outcome.by_kind if kind.best is not None)


def launchable(spec: Spec, plans: list[Plan], profile: Profile) -> list[Plan]:
    """Return the plans that can be launched with the framework of a spec.

    All plans are returned where Meshwright writes no files for that framework.
    """
    if not is_exported(spec):
        return plans
    known, to = profile.applied_to(spec), target_of(spec.framework)
    return [plan for plan in plans if _is_launchable(known, plan, to)]


def is_exported(spec: Spec) -> bool:
    """Return whether plans of the framework of a spec can be written as files."""
    try:
        target_of(spec.framework)
    except SpecError:
        return False
    return True


def _is_launchable(spec: Spec, plan: Plan, to: str) -> bool:
    try:
        export_plan(spec, plan, to)
    except SpecError:
        return False
    return True


def on_nodes(spec: Spec, nodes: int | None) -> Spec:
    """Return a spec on some of its nodes, with as many sequences a GPU.

    Raises:
        SpecError: the cluster is not made of so many nodes.
    """
    count = spec.cluster.count
    if nodes is None or nodes == count:
        return spec
    if not 1 <= nodes <= count:
        raise SpecError(f"--nodes {nodes}: expected 1 to {count}, the cluster's count")
    batch = max(1, math.ceil(spec.training.global_batch * nodes / count))
    training = spec.training.model_copy(update={"global_batch": batch})
    cluster = spec.cluster.model_copy(update={"count": nodes})
    changed = {"training": training, "cluster": cluster}
    return Spec.model_validate(
        spec.model_copy(update=changed).model_dump(exclude_defaults=True, by_alias=True)
    )


_NORMAL = NormalDist()

FAR = 6.0
"""Standard deviations beyond which a tail carries no information."""


@dataclass(frozen=True)
class Choice:
    """A run that was picked."""

    index: int
    nats: float
    """Expected information about all quantities that count."""
    fits: float
    """How likely it fits, before any run."""
    tells_of: tuple[Alternative, ...]
    """Switches whose remaining uncertainty it removes most."""


@dataclass(frozen=True)
class Prior:
    """Normal beliefs about plans before any of them is run."""

    responses: tuple[Response, ...]
    sigma: float
    """Standard deviation of ln(need / prediction) of memory."""
    bias: float
    card_gib: float

    @cached_property
    def switches(self) -> tuple[Alternative, ...]:
        """Return the positions of switches that matter to some plan."""
        return alternatives(self.responses)

    @cached_property
    def covariance(self) -> Floats:
        """Return the covariance of log times, log needs and switches, in this order."""
        count = len(self.responses)
        chances = departures(self.switches)
        effects = np.concatenate(
            [self._on_times(), self._on_needs(), np.eye(len(self.switches))], axis=1
        )
        variances = chances * (1 - chances)
        result = effects.T @ (variances[:, None] * effects)
        result[:count, :count] += prior_covariance(self.responses)
        result[count : 2 * count, count : 2 * count] += BIAS_SD**2
        return np.asarray(result)

    @cached_property
    def noise(self) -> Floats:
        """Return the variance of measurements around beliefs."""
        count = len(self.responses)
        return np.repeat([NOISE**2, self.sigma**2], count)

    @cached_property
    def log_room(self) -> Floats:
        """Return ln(card / need), as expected, of every plan."""
        needs = [one.allocated_gib + one.overhead_gib for one in self.responses]
        return np.asarray(math.log(self.card_gib) - np.log(needs) - self.bias)

    @cached_property
    def fits(self) -> Floats:
        """Return how likely each plan fits."""
        count = len(self.responses)
        variance = np.diag(self.covariance)[count : 2 * count] + self.sigma**2
        scaled = self.log_room / np.sqrt(variance)
        return np.array([normal_cdf(room) for room in scaled.tolist()])

    def _on_times(self) -> Floats:
        """Return the change of log times by every switch, (switches, plans)."""
        alone = Hypotheses(self.switches, np.eye(len(self.switches), dtype=bool))
        return alone.log_ratios(self.responses)

    def _on_needs(self) -> Floats:
        """Return the change of log needs by every switch, (switches, plans)."""
        needs = [one.allocated_gib + one.overhead_gib for one in self.responses]
        more = [
            [
                max(need + one.more_gib.get(switch, 0.0), LEAST_GIB) / need
                for one, need in zip(self.responses, needs, strict=True)
            ]
            for switch in self.switches
        ]
        return np.asarray(np.log(np.reshape(more, (-1, len(self.responses)))))


@dataclass(frozen=True)
class Quantities:
    """Quantities that decide: weighted sums of log times and log memory needs."""

    sums: Floats
    """(quantities, 2 x plans): coefficients of log times, then of log needs."""
    weights: Floats

    def variances(self, covariance: Floats, noise: Floats) -> Floats:
        """Return the variance of each, if it were measured."""
        inner = covariance[: len(noise), : len(noise)] + np.diag(noise)
        return np.asarray(np.einsum("qi,ij,qj->q", self.sums, inner, self.sums))


def decisions(
    prior: Prior, steps: Sequence[float], rivals: Sequence[int]
) -> Quantities:
    """Return the quantities that decide which plan is best, and which plans fit.

    They are the step times of the rivals relative to the fastest of them, its step
    time, and the memory needs of the rivals. Uncertain needs weigh most.
    """
    count = len(prior.responses)
    best = min(rivals, key=lambda index: steps[index])
    sums, weights = [], []
    for rival in rivals:
        time = np.zeros(2 * count)
        time[rival] = 1.0
        if rival != best:
            time[best] -= 1.0
        need = np.zeros(2 * count)
        need[count + rival] = 1.0
        doubt = 4 * prior.fits[rival] * (1 - prior.fits[rival])
        sums += [time, need]
        weights += [1.0, doubt]
    return Quantities(np.array(sums), np.array(weights))


def choose(
    prior: Prior, wanted: Quantities, candidates: Sequence[int], count: int
) -> list[Choice]:
    """Return up to `count` candidates; each adds most to those before it.

    Of equal candidates the first is picked.
    """
    covariance, left, found = prior.covariance, list(candidates), list[Choice]()
    while left and len(found) < count:
        before = wanted.variances(covariance, prior.noise)
        after = [measured(prior, covariance, index) for index in left]
        nats = [
            float(wanted.weights @ np.log(before / wanted.variances(one, prior.noise)))
            for one in after
        ]
        place = int(np.argmax(np.round(nats, 9)))
        index = left.pop(place)
        told = _told(prior, covariance, after[place])
        fits = float(prior.fits[index])
        found.append(Choice(index, nats[place] / 2, fits, told))
        covariance = after[place]
    return found


def measured(prior: Prior, covariance: Floats, index: int) -> Floats:
    """Return the expected covariance after a plan was run."""
    count = len(prior.responses)
    fits = float(prior.fits[index])
    covariance = _conditioned(covariance, index, prior.noise[index], fits)
    need = count + index
    variance = covariance[need, need] + prior.noise[need]
    share = fits + (1 - fits) * _told_by_failure(
        float(prior.log_room[index] / math.sqrt(variance))
    )
    return _conditioned(covariance, need, prior.noise[need], share)


def _conditioned(covariance: Floats, index: int, noise: float, share: float) -> Floats:
    """Return a covariance after a measurement that gives a share of its information."""
    column = covariance[:, index]
    gain = share / (covariance[index, index] + noise)
    return np.asarray(covariance - gain * np.outer(column, column))


def _told_by_failure(scaled_room: float) -> float:
    """Return the share by which a variance falls once a value is known to pass a bound.

    The bound is in standard deviations from the mean.
    """
    if abs(scaled_room) > FAR:
        return 0.0 if scaled_room < 0 else 1.0
    hazard = _NORMAL.pdf(scaled_room) / (1 - normal_cdf(scaled_room))
    return hazard * (hazard - scaled_room)


MOST_TOLD = 3
LEAST_TOLD = 0.25
"""Share of its variance that a switch must lose to be named."""


def _told(prior: Prior, before: Floats, after: Floats) -> tuple[Alternative, ...]:
    first = 2 * len(prior.responses)
    lost = 1 - np.diag(after)[first:] / np.maximum(np.diag(before)[first:], 1e-12)
    order = np.argsort(-lost, kind="stable")[:MOST_TOLD]
    return tuple(prior.switches[i] for i in order if lost[i] > LEAST_TOLD)
