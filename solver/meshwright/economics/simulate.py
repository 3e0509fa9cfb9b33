"""Simulates steps and runs of a plan: jitter, slow GPUs, stragglers, failures.

The model of a step is the schedule's task graph. Compute of every task is disturbed;
messages take the time of the cost model. GPUs that exchange messages inside a layer
wait for each other in every task, pipelines of different replicas only at the end of
the step. Without disturbance the step is that of the task graph.

A run goes on in segments: an interval of work and the stall of its checkpoint. A
failure loses the segment so far, and a restart may fail too (Daly 2006, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from meshwright.check.check import Scored, score
from meshwright.check.timeline import timeline, timeline_at
from meshwright.cost.job import Job
from meshwright.cost.schedule import TaskGraph
from meshwright.economics.planned_run import PlannedRun
from meshwright.economics.training_run import failures, goodput, restart_s
from meshwright.plans.columns import Floats, Ints
from meshwright.plans.plan import Plan
from meshwright.plans.schedules import KINDS
from meshwright.results.priced_plan import PricedPlan
from meshwright.results.simulation import (
    Disturbance,
    FailedRuns,
    Histogram,
    Losses,
    SimulatedStage,
    Simulation,
    Spread,
    StageTimeline,
    Timeline,
)
from meshwright.spec.units import DAY_S, HOUR_S


class Walked(NamedTuple):
    """End and busy times of many walks."""

    ends_s: Floats
    """When the last micro-batch ends, (samples,)."""
    busy_s: Floats
    """The seconds of the tasks of every stage, (stages, samples)."""


class WalkedTasks(NamedTuple):
    """End of every task, and busy times, of many walks."""

    ends_s: Floats
    """When a task ends, by its number as in `TaskGraph.ends_s`, (tasks, samples)."""
    busy_s: Floats
    """The seconds of the tasks of every stage, (stages, samples)."""


def walk(
    graph: TaskGraph,
    compute: Sequence[float],
    stage_factor: Floats,
    task_factor: Callable[[], Floats | float],
) -> Walked:
    """Return how long a pipeline takes in every sample; see `walk_tasks`."""
    walked = walk_tasks(graph, compute, stage_factor, task_factor)
    last = [order[-1] for order in graph.orders]
    return Walked(walked.ends_s[last].max(axis=0), walked.busy_s)


def walk_tasks(
    graph: TaskGraph,
    compute: Sequence[float],
    stage_factor: Floats,
    task_factor: Callable[[], Floats | float],
) -> WalkedTasks:
    """Return when every task of a pipeline ends in every sample.

    Args:
        graph: The tasks; their seconds are those without disturbance.
        compute: The share of compute in a task's seconds, by its number; the rest is
            the same in all samples.
        stage_factor: On the compute of a stage, (stages, samples).
        task_factor: Returns the factor on the compute of the next task, (samples,).
    """
    tasks, stages = graph.tasks, graph.tasks.stages
    m, samples = tasks.microbatches, stage_factor.shape[1]
    ends_s = np.zeros((len(KINDS) * tasks.per_kind + m, samples))
    clocks_s, busy_s = np.zeros((stages, samples)), np.zeros((stages, samples))
    stage_of = _stages(graph)
    for number in graph.in_order:
        stage = stage_of[number // m]
        steady_s = graph.seconds[number] * (1 - compute[number])
        disturbed_s = graph.seconds[number] * compute[number]
        takes_s = steady_s + disturbed_s * stage_factor[stage] * task_factor()
        start_s = np.maximum(ends_s[tasks.source(number)], clocks_s[stage])
        clocks_s[stage] = ends_s[number] = start_s + takes_s
        busy_s[stage] += takes_s
    return WalkedTasks(ends_s, busy_s)


def _stages(graph: TaskGraph) -> list[int]:
    """Return the stage of a task by its number over the micro-batches."""
    m = graph.tasks.microbatches
    stage_of = [0] * (len(graph.seconds) // m)
    for stage, order in enumerate(graph.orders):
        for number in order:
            stage_of[number // m] = stage
    return stage_of


@dataclass(frozen=True)
class Draws:
    """Draws factors that slow the compute of stages, for GPUs in lockstep."""

    disturbance: Disturbance
    lockstep_gpus: int
    rng: np.random.Generator

    def jitter(self, samples: int) -> Floats | float:
        """Return the factor on the compute of one task, (samples,).

        A GPU's factor is log-normal with mean 1. Of n GPUs the slowest is at the
        quantile u^(1/n) of that, for a uniform u: one draw stands for all n.
        """
        share = self.disturbance.jitter
        if not share:
            return 1.0
        sigma = float(np.sqrt(np.log1p(share**2)))
        return np.asarray(np.exp(sigma * self._slowest(samples) - sigma**2 / 2))

    def _slowest(self, samples: int) -> Floats:
        """Return the largest of n normal numbers, (samples,)."""
        if self.lockstep_gpus == 1:
            return self.rng.standard_normal(samples)
        from scipy.special import ndtri_exp

        log_u = np.log1p(-self.rng.random(samples))
        return np.asarray(ndtri_exp(log_u / self.lockstep_gpus))

    def slow_stages(self, stages: int, samples: int) -> Floats:
        """Return the factor on all compute of stages in a step, (stages, samples).

        A stage is slow if any of its GPUs is.
        """
        told = self.disturbance
        none_slow = (1 - told.slow_gpus) ** self.lockstep_gpus
        is_slow = self.rng.random((stages, samples)) >= none_slow
        return np.where(is_slow, 1 + told.slowdown, 1.0)


MOST_DRAWS = 20_000_000
"""Most tasks of all samples that are walked for each replica separately."""

MOST_AT_ONCE = 4_000_000
"""Most tasks of samples that are held in memory at once."""

POINTS = 64
"""Most points of a stage's memory over time."""

OnProgress = Callable[[str], None]


def simulate(
    job: Job,
    priced: PricedPlan,
    disturbance: Disturbance,
    samples: int,
    seed: int,
    days: float,
    on_progress: OnProgress,
) -> Simulation:
    """Return the steps of a plan over so many samples; see `meshwright.simulate`."""
    plan, rng = priced.plan, np.random.default_rng(seed)
    scored = score(job, plan)
    gpus = lockstep_gpus(plan)
    replicas = max(plan.world_size // plan.pp // gpus, 1)
    walked, each = _walk(
        scored, Draws(disturbance, gpus, rng), replicas, samples, on_progress
    )
    pipelines_s = walked.ends_s + scored.left_out_s * (
        walked.ends_s / scored.graph.longest_path_s
    )
    slowest_s = _slowest(pipelines_s, each, replicas, samples, rng)
    steps_s, alone_s = slowest_s + scored.sync_s, pipelines_s + scored.sync_s
    idle = 1 - walked.busy_s / walked.ends_s * (pipelines_s / alone_s)
    bubble = (walked.ends_s - walked.busy_s.max(axis=0)) / walked.ends_s
    run = PlannedRun(job.at(plan.precision), priced)
    return Simulation(
        title=job.spec.title,
        plan=plan,
        samples=samples,
        seed=seed,
        disturbance=disturbance,
        lockstep_gpus=gpus,
        replicas=replicas,
        closed_form_s=priced.step_s,
        schedule_s=scored.schedule_s,
        step_s=spread(steps_s),
        histogram=histogram(steps_s),
        bubble=spread(bubble * pipelines_s / alone_s),
        losses=Losses(
            undisturbed_s=scored.schedule_s,
            pipeline_s=float(alone_s.mean()) - scored.schedule_s,
            replicas_s=float(steps_s.mean() - alone_s.mean()),
        ),
        stages=tuple(
            _stage(stage, float(share))
            for stage, share in zip(
                timeline(job, plan).stages, idle.mean(axis=1), strict=True
            )
        ),
        runs=failed_runs(run, days, samples, rng),
    )


def lockstep_gpus(plan: Plan) -> int:
    """Return how many GPUs of a stage wait for each other in every task.

    Those of tensor and context parallelism do in every layer, those that share out
    experts too, and under ZeRO-3 all that gather each other's weights.
    """
    gpus = plan.tp * plan.cp
    if plan.zero == 3:
        gpus *= plan.dp_shard
    return max(gpus, plan.expert_gpus)


def _walk(
    scored: Scored, draws: Draws, replicas: int, samples: int, on_progress: OnProgress
) -> tuple[Walked, int]:
    """Return walked pipelines, and how many of them belong to each sample.

    Every replica is walked where tasks are few; else samples share walked pipelines.
    """
    graph = scored.graph
    tasks, stages = len(graph.in_order), graph.tasks.stages
    each = replicas if tasks * samples * replicas <= MOST_DRAWS else 1
    compute, columns = compute_shares(scored), samples * each
    at_once = max(MOST_AT_ONCE // tasks, 1)
    parts = []
    for first in range(0, columns, at_once):
        on_progress(f"{first:,} of {columns:,} pipelines walked")
        count = min(at_once, columns - first)
        slow = draws.slow_stages(stages, count)
        parts.append(walk(graph, compute, slow, partial(draws.jitter, count)))
    ends_s = np.concatenate([part.ends_s for part in parts])
    return Walked(ends_s, np.concatenate([part.busy_s for part in parts], axis=1)), each


def compute_shares(scored: Scored) -> list[float]:
    """Return the share of compute in the tasks, by their numbers."""
    graph, of_stages = scored.graph, list[dict[tuple[str, int], float]]()
    for stage in timeline(scored.job, scored.plan).stages:
        of_stages.append({key: _compute_share(one) for key, one in stage.parts.items()})
    shares = [0.0] * len(graph.seconds)
    for of_chunks, order in zip(of_stages, graph.orders, strict=True):
        for number in order:
            kind, _, chunk = graph.tasks.task(number)
            shares[number] = of_chunks[kind, chunk]
            if number in graph.whole:
                inputs = graph.whole[number]
                shares[number] *= inputs
                shares[number] += (1 - inputs) * of_chunks["W", chunk]
    return shares


def _compute_share(parts: Mapping[str, float]) -> float:
    whole_s = math.fsum(parts.values())
    compute_s = parts.get("compute", 0.0) + parts.get("recompute", 0.0)
    return compute_s / whole_s if whole_s else 0.0


def _slowest(
    pipelines_s: Floats,
    each: int,
    replicas: int,
    samples: int,
    rng: np.random.Generator,
) -> Floats:
    """Return the slowest pipeline of every sample, (samples,).

    Where samples share the pipelines, the slowest of n is at the quantile u^(1/n) of
    them all, for a uniform u.
    """
    if each == replicas:
        return np.asarray(pipelines_s.reshape(samples, each).max(axis=1))
    ranked = np.sort(pipelines_s)
    quantile = rng.random(samples) ** (1 / replicas)
    index = np.minimum((quantile * len(ranked)).astype(np.int64), len(ranked) - 1)
    return np.asarray(ranked[index])


def _stage(stage: StageTimeline, idle: float) -> SimulatedStage:
    return SimulatedStage(
        idle=idle,
        peak_gib=stage.peak_gib,
        usable_gib=stage.usable_gib,
        memory=tuple(_memory(stage)),
    )


def _memory(stage: StageTimeline) -> list[tuple[float, float]]:
    """Return memory over time; of a long series the peak of each of `POINTS` pieces."""
    fixed = math.fsum(stage.fixed_gib.values())
    points = [(h.at_s, fixed + h.activations_gib + h.logits_gib) for h in stage.held]
    if len(points) <= POINTS:
        return points
    cuts = np.linspace(0, len(points), POINTS + 1).astype(int).tolist()
    return [max(points[a:b], key=lambda p: p[1]) for a, b in pairwise(cuts)]


DISTURBED = ("compute", "recompute")
"""Parts of a task that disturbances lengthen; the rest are messages."""


def drawn_step(job: Job, plan: Plan, disturbance: Disturbance, seed: int) -> Timeline:
    """Return the timeline of a step of one pipeline under random disturbance."""
    scored = score(job, plan)
    draws = Draws(disturbance, lockstep_gpus(plan), np.random.default_rng(seed))
    walked = walk_tasks(
        scored.graph,
        compute_shares(scored),
        draws.slow_stages(plan.pp, 1),
        partial(draws.jitter, 1),
    )
    calm = timeline_at(scored, walked.ends_s[:, 0].tolist())
    return replace(calm, stages=tuple(map(_with_disturbed_parts, calm.stages)))


def _with_disturbed_parts(stage: StageTimeline) -> StageTimeline:
    """Return a stage whose parts are the mean of what its tasks took."""
    parts = {key: _disturbed(stage, *key) for key in stage.parts}
    return replace(stage, parts=parts)


def _disturbed(stage: StageTimeline, kind: str, chunk: int) -> Mapping[str, float]:
    parts = stage.parts[kind, chunk]
    alike = [t for t in stage.tasks if (t.kind, t.chunk) == (kind, chunk)]
    mean_s = math.fsum(t.end_s - t.start_s for t in alike) / max(len(alike), 1)
    disturbed_s = math.fsum(parts.get(name, 0.0) for name in DISTURBED)
    if not alike or not disturbed_s:
        return parts
    factor = 1 + (mean_s - math.fsum(parts.values())) / disturbed_s
    return {n: s * factor if n in DISTURBED else s for n, s in parts.items()}


MOST_LOST = 20_000_000
"""Most failures that are drawn, in all samples together."""


def failed_runs(
    run: PlannedRun, days: float, samples: int, rng: np.random.Generator
) -> FailedRuns | None:
    """Return the effect of failures on runs of some useful days.

    None if the spec does not say how often GPUs fail or how checkpoints are written,
    or where failures are so frequent that hardly any work is done.
    """
    told, asked = failures(run), run.asked.checkpoint
    if told is None or asked is None or told.interval_s is None:
        return None
    stall_s, write_s = told.stall_s or 0.0, told.write_s or 0.0
    mtbf_s, again_s = told.mtbf_hours * HOUR_S, restart_s(asked, write_s)
    segments = max(round(days * DAY_S / told.interval_s), 1)
    segment_s = told.interval_s + stall_s
    expected = segments * np.expm1(min((segment_s + again_s) / mtbf_s, 700.0))
    if expected * samples > MOST_LOST:
        return None
    lost = _failed(rng, np.full(samples, segments), segment_s, mtbf_s)
    failed = _failed(rng, lost.count, again_s, mtbf_s)
    whole_s = segments * segment_s + lost.seconds
    whole_s = whole_s + lost.count * again_s + failed.seconds
    useful_s = segments * told.interval_s
    return FailedRuns(
        days=useful_s / DAY_S,
        mtbf_hours=told.mtbf_hours,
        interval_s=told.interval_s,
        failures=spread((lost.count + failed.count).astype(np.float64)),
        goodput=spread(useful_s / whole_s),
        expected_goodput=goodput(told.interval_s, stall_s, again_s, mtbf_s),
    )


class _Failed:
    """Failures before some tries of equal length have all gone well, (samples,)."""

    def __init__(self, count: Ints, seconds: Floats) -> None:
        self.count, self.seconds = count, seconds


def _failed(
    rng: np.random.Generator, tries: Ints, try_s: float, mtbf_s: float
) -> _Failed:
    """Return the failed tries and their seconds; a try ends at its failure."""
    goes_well = float(np.exp(-try_s / mtbf_s))
    some = np.maximum(tries, 1)
    count = np.where(tries > 0, rng.negative_binomial(some, goes_well), 0)
    count = count.astype(np.int64)
    which = np.repeat(np.arange(len(tries)), count)
    early = rng.random(len(which)) * (1 - goes_well)
    seconds = -mtbf_s * np.log1p(-early)
    lost_s = np.bincount(which, weights=seconds, minlength=len(tries))
    return _Failed(count, lost_s.astype(np.float64))


BINS = 20


def spread(values: Floats) -> Spread:
    """Return mean and quantiles of some samples."""
    median, p90, p99 = np.quantile(values, [0.5, 0.9, 0.99])
    return Spread(
        mean=float(values.mean()),
        least=float(values.min()),
        median=float(median),
        p90=float(p90),
        p99=float(p99),
        most=float(values.max()),
    )


def histogram(values: Floats) -> Histogram:
    """Return how many samples lie where; a single bin if all are alike."""
    least, most = float(values.min()), float(values.max())
    if most - least <= 1e-9 * most:
        return Histogram(edges=(least, most), counts=(len(values),))
    counts, edges = np.histogram(values, bins=BINS)
    return Histogram(edges=tuple(edges.tolist()), counts=tuple(counts.tolist()))
