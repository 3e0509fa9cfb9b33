"""Hypotheses on why a run is not as it was modelled, with their probabilities.

Each hypothesis is one fault. It is priced as any plan is. A measured step is likely
under a hypothesis as far as it is near the step modelled there, by the noise that the
profile states; parts that the log tells are compared as shares of the step, and peaks
of memory by the spread that the profile states for memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from meshwright.calibration.beliefs import MEASUREMENT_SD
from meshwright.calibration.calibrate import NINE_IN_TEN
from meshwright.calibration.responses import normalised
from meshwright.check.check import Scored, score, stage_memory
from meshwright.cost.job import Efficiency, Job
from meshwright.cost.profile import Profile
from meshwright.diagnosis.faults import OURS, Case, Fault, PartName, Run, faults
from meshwright.economics.simulate import compute_shares, walk
from meshwright.frameworks.base.switches import SWITCH
from meshwright.plans.columns import Floats, total
from meshwright.spec.spec import Spec


@dataclass(frozen=True)
class Modelled:
    """A step as it is modelled, in the parts that logs have."""

    step_s: float
    parts: Mapping[PartName, float]
    allocated_gib: float
    """Memory of the fullest stage without CUDA context and communication buffers."""
    spread: float
    """Compute of the slowest rank over that of the fastest."""


@dataclass(frozen=True)
class Hypothesis:
    """A fault with its probability after the log, and its likely size."""

    fault: Fault
    prior: float
    probability: float
    case: Case
    """That of the size that is likely."""
    modelled: Modelled
    """The step with the fault of that size."""


LEAST_FELT = 0.01
"""Least share of the step that a fault must change to be told from the run as modelled:
one that changes memory alone says nothing of why a run is slow."""


def modelled(case: Case, profile: Profile) -> Modelled:
    """Return a case as it is priced."""
    scored = _scored(case, case.spec, profile)
    parts = _parts(scored, case.slow)
    hides = SWITCH["overlap.parameters"]
    if not hides.of(case.spec):
        hidden = _scored(case, hides.at(case.spec, True), profile)
        parts["gathers"] = max(_synced_s(scored) - _synced_s(hidden), 0.0)
        parts["gradients"] -= parts["gathers"]
    step_s = math.fsum(scored.step_parts.values())
    if case.slow != 1.0:
        longer_s = _walked_s(scored, case.slow) - scored.schedule_s
        step_s += longer_s
        computed_s = _passes_s(parts) - _passes_s(_parts(scored, 1.0))
        parts["pipeline"] = max(parts["pipeline"] + longer_s - computed_s, 0.0)
    wait_s = case.waits * step_s
    parts["input"] = wait_s
    parts["forward and backward"] = math.fsum(
        parts[name] for name in ("forward", "backward", "pipeline")
    )
    gib = max(one.allocated_gib for one in stage_memory(scored))
    passes = total(scored.times.seconds) - scored.times.seconds["pp"]
    spread = float(passes.max() / passes.min()) * case.slow
    return Modelled(step_s + wait_s, parts, gib, spread)


def _scored(case: Case, spec: Spec, profile: Profile) -> Scored:
    """Return the plan of a case on its machines, with the switches of a spec."""
    job = profile.job(spec)
    slowed = {"dispatch_s": case.host, "microbatch_s": case.host}
    slowed |= dict.fromkeys(("gemm", "attention", "memory"), case.clocks)
    if {*slowed.values()} != {1.0}:
        job = _with_efficiency(job, slowed)
    return score(job, case.plan)


def _with_efficiency(job: Job, factors: Mapping[str, float]) -> Job:
    efficiency: Efficiency = job.efficiency.times(factors)
    kinds = tuple(_with_efficiency(kind, factors) for kind in job.gpu_kinds)
    return replace(job, efficiency=efficiency, gpu_kinds=kinds)


def _parts(scored: Scored, slow: float) -> dict[PartName, float]:
    """Return the parts of a step as timers of the slowest stage measure them."""
    times, m = scored.times, scored.plan.microbatches
    stage = int(total(times.seconds).argmax())
    whole = {name: float(part[stage]) for name, part in times.seconds.items()}
    forward = {name: float(part[stage]) for name, part in times.forward.items()}
    sync = _end_of_step(scored)
    more = (slow - 1) * m
    computed = {n: more * forward.get(n, 0.0) for n in ("compute", "recompute")}
    again = {n: more * whole.get(n, 0.0) for n in ("compute", "recompute")}
    forward_s = m * _sum_but(forward, "pp") + math.fsum(computed.values())
    whole_s = m * _sum_but(whole, "pp") + math.fsum(again.values())
    of_pipeline = m * whole.get("pp", 0.0) + scored.step_parts["bubble"]
    return {
        "forward": forward_s,
        "backward": whole_s - forward_s,
        "gradients": _synced_s(scored),
        "gathers": 0.0,
        "optimizer": sync.get("optimizer", 0.0) + sync.get("offload", 0.0),
        "pipeline": of_pipeline,
    }


def _passes_s(parts: Mapping[PartName, float]) -> float:
    return parts["forward"] + parts["backward"]


def _synced_s(scored: Scored) -> float:
    """Return the seconds of gradients and weights at the end of a step."""
    return _sum_but(_end_of_step(scored), "optimizer", "offload", "host")


def _end_of_step(scored: Scored) -> dict[str, float]:
    """Return the seconds of the end of a step, by part, on the slowest stage."""
    sync = scored.times.sync
    end = int(total(sync).argmax())
    return {name: float(part[end]) for name, part in sync.items()}


def _sum_but(parts: Mapping[str, float], *left_out: str) -> float:
    return math.fsum(s for name, s in parts.items() if name not in left_out)


def _walked_s(scored: Scored, slow: float) -> float:
    """Return the step in which the compute of the busiest stage takes longer.

    The schedule is walked as a simulation walks it: the others wait for that stage.
    """
    factors = np.ones((scored.graph.tasks.stages, 1))
    factors[int(total(scored.times.seconds).argmax())] = slow
    walked = walk(scored.graph, compute_shares(scored), factors, lambda: 1.0)
    ends_s = float(walked.ends_s[0])
    left_out_s = scored.left_out_s * ends_s / scored.graph.longest_path_s
    return ends_s + left_out_s + scored.sync_s


AS_MODELLED = "as modelled: what is left is the error of the model"

NONE = "none of these"

NONE_PRIOR = 0.05
"""Prior odds of a fault that is not listed, against the run as modelled."""

NONE_SD, NONE_SHARE_SD, NONE_MEMORY_SD = 0.7, 0.25, 0.4
"""Spread of a log step time, of shares of the step, and of log memory where the fault
is not listed."""

LEAST_SHARE_SD = 0.02
"""Least spread of the share that a part has of the step: timers do not cover all of
it, and they wait for each other."""


SPREAD_SD = 0.08
"""Spread of the logarithm of the compute of the slowest rank over that of the fastest:
ranks that should be alike differ by some percent, and stages by what is modelled. An
estimate."""


@dataclass(frozen=True)
class Noise:
    """The errors that a profile states for runs like one."""

    step_sd: float
    """Of the logarithm of a step time."""
    memory_bias: float
    memory_sd: float
    """Of the logarithm of memory."""


def noise_of(run: Run, profile: Profile) -> Noise:
    """Return the errors that a profile states for a run; its usual ones where none."""
    errors = profile.errors(run.spec)
    step_sd = errors[1].p90 / NINE_IN_TEN if errors else MEASUREMENT_SD
    memory = profile.memory_spread(run.spec.framework)
    return Noise(step_sd, memory.bias, memory.sigma)


def judged(run: Run, profile: Profile) -> tuple[Hypothesis, ...]:
    """Return all hypotheses, the likely ones first; probabilities add up to 1.

    Faults that do not change the step are part of 'as modelled'.
    """
    noise = noise_of(run, profile)
    base = Case("", run.spec, run.plan)
    calm = modelled(base, profile)
    rows: list[tuple[Fault, Case, Modelled, float]] = []
    plain = Fault(AS_MODELLED, "as modelled", 0.5, OURS, (base,), "none")
    rows.append((plain, base, calm, 0.0))
    for fault in faults(run):
        priced = [(case, modelled(case, profile)) for case in fault.cases]
        if not any(
            abs(told.step_s / calm.step_s - 1) > LEAST_FELT for _, told in priced
        ):
            continue
        log_odds = math.log(fault.prior / (1 - fault.prior) / len(priced))
        rows += [(fault, case, told, log_odds) for case, told in priced]
    logs = [odds + _log_likelihood(run, told, noise) for *_, told, odds in rows]
    unlisted = Fault(NONE, "none", NONE_PRIOR, OURS, (base,), "other")
    rows.append((unlisted, base, calm, math.log(NONE_PRIOR)))
    logs.append(math.log(NONE_PRIOR) + _unlisted_likelihood(run, calm))
    after = normalised(np.array(logs))
    before = normalised(np.array([row[3] for row in rows]))
    return tuple(_by_fault(rows, before, after))


def _by_fault(
    rows: list[tuple[Fault, Case, Modelled, float]], before: Floats, after: Floats
) -> list[Hypothesis]:
    """Return faults with the probabilities of all their sizes together."""
    found: list[Hypothesis] = []
    for fault in dict.fromkeys(row[0] for row in rows):
        members = [i for i, row in enumerate(rows) if row[0] is fault]
        likely = max(members, key=lambda i: float(after[i]))
        found.append(
            Hypothesis(
                fault,
                prior=math.fsum(before[members].tolist()),
                probability=math.fsum(after[members].tolist()),
                case=rows[likely][1],
                modelled=rows[likely][2],
            )
        )
    return sorted(found, key=lambda one: -one.probability)


def _log_likelihood(run: Run, told: Modelled, noise: Noise) -> float:
    """Return the log likelihood of what a log measured, if a fault is there.

    Each part has an error of the profile, and what the step has beside them is one of
    the whole. A part that took longer makes the step longer and all other shares
    smaller: step and shares are one draw of errors that depend on each other.
    """
    measured = np.array([*run.parts.values()]) / run.step_s
    shares = np.array([told.parts[name] / told.step_s for name in run.parts])
    errors = np.array([math.log(run.step_s / told.step_s), *(measured - shares)])
    whole = math.sqrt(max(1 - float(shares @ shares), 0.0))
    # A row for the step and for each share; a column for the whole and for each part.
    moved = np.zeros((len(errors), len(errors)))
    moved[0] = [whole, *shares]
    moved[1:, 1:] = np.diag(shares) - np.outer(shares, shares)
    floor = np.diag([0.0, *np.full(len(shares), LEAST_SHARE_SD)])
    result = _normals(errors, noise.step_sd**2 * moved @ moved.T + floor**2)
    if run.spread is not None:
        result += _normal(math.log(run.spread / told.spread), SPREAD_SD)
    peak_gib = run.log.peak.allocated_gib
    if peak_gib:
        error = math.log(peak_gib / told.allocated_gib) - noise.memory_bias
        result += _normal(error, noise.memory_sd)
    return result


def _normals(errors: Floats, covariance: Floats) -> float:
    """Return the log density of errors with a covariance, but for a constant."""
    _, log_det = np.linalg.slogdet(covariance)
    return float(-errors @ np.linalg.solve(covariance, errors) - log_det) / 2


def _unlisted_likelihood(run: Run, calm: Modelled) -> float:
    """Return the log likelihood under a fault that is not listed."""
    result = _normal(math.log(run.step_s / calm.step_s), NONE_SD)
    for name, seconds in run.parts.items():
        share = calm.parts[name] / calm.step_s
        result += _normal(seconds / run.step_s - share, NONE_SHARE_SD)
    if run.spread is not None:
        result += _normal(math.log(run.spread / calm.spread), NONE_SHARE_SD)
    peak_gib = run.log.peak.allocated_gib
    if peak_gib:
        result += _normal(math.log(peak_gib / calm.allocated_gib), NONE_MEMORY_SD)
    return result


def _normal(error: float, sd: float) -> float:
    return -((error / sd) ** 2) / 2 - math.log(sd)
