"""Simulates the step of a plan: jitter, slow GPUs, and the wait for the slowest.

The model is the schedule's task graph. Compute of every task is disturbed; messages
take what the cost model says. GPUs that exchange messages inside a layer wait for each
other in every task, pipelines of different replicas only at the end of the step.
Without disturbance the step is that of the task graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from meshwright.check.scored import Scored, score
from meshwright.check.timeline import timeline
from meshwright.cost.job import Job
from meshwright.economics.planned_run import PlannedRun
from meshwright.plans.columns import Floats
from meshwright.plans.plan import Plan
from meshwright.results.priced_plan import PricedPlan
from meshwright.results.simulation import (
    Disturbance,
    Losses,
    SimulatedStage,
    Simulation,
)
from meshwright.results.timeline import StageTimeline
from meshwright.simulation.draws import Draws
from meshwright.simulation.failed_runs import failed_runs
from meshwright.simulation.spread import histogram, spread
from meshwright.simulation.walk import Walked, walk

MOST_DRAWS = 20_000_000
"""Most tasks of all samples that are walked for replicas of their own."""

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
    """Return the steps of a plan over so many samples; see `api.simulate`."""
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
            _stage(own, float(share))
            for own, share in zip(
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
    return max(gpus, plan.ep)


def _walk(
    scored: Scored,
    draws: Draws,
    replicas: int,
    samples: int,
    on_progress: OnProgress,
) -> tuple[Walked, int]:
    """Return walked pipelines, and how many of them belong to each sample.

    That is every replica where they are few; else samples share what is walked.
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

        def jitter(count: int = count) -> Floats | float:
            return draws.jitter(count)

        parts.append(walk(graph, compute, slow, jitter))
    ends_s = np.concatenate([own.ends_s for own in parts])
    return Walked(ends_s, np.concatenate([own.busy_s for own in parts], axis=1)), each


def compute_shares(scored: Scored) -> list[float]:
    """Return the share of compute in the tasks, in the order of the graph's seconds."""
    stages = timeline(scored.job, scored.plan).stages
    graph = scored.graph
    shares = [0.0] * len(graph.seconds)
    m = graph.tasks.microbatches
    for stage, order in enumerate(graph.orders):
        for number in order:
            task = graph.tasks.task(number)
            parts = stages[stage].parts[task.kind, task.chunk]
            whole_s = math.fsum(parts.values())
            own_s = parts.get("compute", 0.0) + parts.get("recompute", 0.0)
            shares[number // m] = own_s / whole_s if whole_s else 0.0
    return shares


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


def _stage(own: StageTimeline, idle: float) -> SimulatedStage:
    return SimulatedStage(
        idle=idle,
        peak_gib=own.peak_gib,
        usable_gib=own.usable_gib,
        memory=tuple(_memory(own)),
    )


def _memory(own: StageTimeline) -> list[tuple[float, float]]:
    """Return memory over time, the most of equal pieces of it where it is long."""
    fixed = math.fsum(own.fixed_gib.values())
    points = [(h.at_s, fixed + h.activations_gib + h.logits_gib) for h in own.held]
    if len(points) <= POINTS:
        return points
    cuts = np.linspace(0, len(points), POINTS + 1).astype(int).tolist()
    return [max(points[a:b], key=lambda p: p[1]) for a, b in pairwise(cuts)]
