"""The best plan of a spec as a known plan of a spec that was changed a little."""

from __future__ import annotations

import math

from meshwright.check.check import checked
from meshwright.cost.job import Job
from meshwright.planner.plans import rounding_s
from meshwright.plans.plan import Plan


def known_step_s(job: Job, plan: Plan) -> float:
    """Return a step time that the best plan of a job does not exceed.

    It is the step time of a plan of the job before a change, with micro-batches scaled
    like the batch; infinite if that plan breaks a rule of the job.
    """
    per_step = plan.dp * plan.micro_batch
    batch = job.spec.training.global_batch
    if batch % per_step or plan.world_size != math.prod(job.fabric.sizes):
        return math.inf
    plan = plan.model_copy(update={"microbatches": batch // per_step})
    priced, broken = checked(job, plan)
    return math.inf if broken else priced.step_s + rounding_s(job, plan)
