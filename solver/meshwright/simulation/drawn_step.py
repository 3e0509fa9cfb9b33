"""One disturbed step of a plan on a clock, to look at."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from meshwright.check.scored import score
from meshwright.check.timeline import timeline_at
from meshwright.cost.job import Job
from meshwright.plans.plan import Plan
from meshwright.results.simulation import Disturbance
from meshwright.results.timeline import StageTimeline, Timeline
from meshwright.simulation.draws import Draws
from meshwright.simulation.simulate import compute_shares, lockstep_gpus
from meshwright.simulation.walk import walk_tasks

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
        lambda: draws.jitter(1),
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
    own_s = math.fsum(parts.get(name, 0.0) for name in DISTURBED)
    if not alike or not own_s:
        return parts
    factor = 1 + (mean_s - math.fsum(parts.values())) / own_s
    return {n: s * factor if n in DISTURBED else s for n, s in parts.items()}
