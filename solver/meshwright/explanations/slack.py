"""How far a plan that fits is from every rule that it keeps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meshwright.check.check import plan_values, told
from meshwright.cost.job import Job
from meshwright.plans.skeletons import to_row
from meshwright.results.explanation import Slack
from meshwright.results.priced_plan import PricedPlan
from meshwright.rules.legality import (
    framework_degree_rules,
    framework_rules,
    mesh_rules,
)
from meshwright.rules.pins import (
    HOST_MEMORY,
    LINK_SHARE,
    MEMORY,
    degree_pins,
    plan_pins,
)


def slack(job: Job, plan: PricedPlan) -> tuple[Slack, ...]:
    """Return how much memory and bandwidth a plan leaves, and the rules it keeps."""
    kept = (*_user_rules(job, plan), *_kept_rules(job, plan))
    return (*_capacity_slack(job, plan), *kept)


def _capacity_slack(job: Job, plan: PricedPlan) -> Iterator[Slack]:
    """Yield the slack of GPU memory, host memory and links."""
    spec, stages = job.spec, plan.stages
    free_gib = [stage.usable_gib - stage.total_gib for stage in stages]
    tightest = int(np.argmin(free_gib))
    yield Slack(
        rule="memory",
        sentence=MEMORY,
        have=stages[tightest].usable_gib,
        need=stages[tightest].total_gib,
        unit="GiB",
        where=f"stage {tightest}",
    )
    host_gib = [stage.host_gib for stage in stages]
    if any(host_gib):
        yield Slack(
            rule="host_memory",
            sentence=HOST_MEMORY,
            have=spec.usable_host_gib,
            need=max(host_gib) * spec.cluster.gpus_per_host,
            unit="GiB",
            where=f"hosts of stage {int(np.argmax(host_gib))}",
        )
    busiest = max(plan.all_links, key=lambda load: load.utilisation, default=None)
    yield Slack(
        rule="link_utilisation",
        sentence=LINK_SHARE,
        have=spec.limits.max_link_utilisation or 1.0,
        need=plan.link_utilisation,
        unit="of the step",
        where=busiest.link if busiest else "",
    )


def _user_rules(job: Job, plan: PricedPlan) -> Iterator[Slack]:
    """Yield the rules of the user that a plan keeps, with their two sides."""
    values = plan_values(job, plan.plan)
    for rule in job.spec.rules:
        own = told(rule, values)
        sentence = f"{own.sentence} ({own.arithmetic})"
        sides = {"have": own.have, "need": own.need, "unit": own.unit}
        yield Slack(rule=own.rule, sentence=sentence, **sides)


def _kept_rules(job: Job, plan: PricedPlan) -> Iterator[Slack]:
    """Yield the rules of the framework and the pins that a plan keeps."""
    spec = job.spec
    rows, place = to_row(job.fabric, plan.plan)
    rules_on_mesh = mesh_rules(spec, place.mesh[None])
    on_degrees = (*framework_degree_rules(spec), *degree_pins(spec))
    on_plans = (*framework_rules(spec), *plan_pins(spec))
    for rule in (*on_degrees, *rules_on_mesh, *on_plans):
        if rule.holds(spec, rows)[0]:
            yield Slack(rule=rule.name, sentence=rule.told(spec, rows))
