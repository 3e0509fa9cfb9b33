"""The checker prices a plan in floats and tests its rules.

It uses only `cost` and `rules`, and knows nothing of the solver, of whole numbers or of
pruning: it is the specification of what a plan is.
"""

from __future__ import annotations

import math

import numpy as np

from meshwright.check.rule_values import PlanValues, broken_user_rules
from meshwright.check.scored import Scored, score
from meshwright.cost.job import Job
from meshwright.cost.price import (
    stage_bytes,
    stage_host_bytes,
)
from meshwright.cost.whole_job import job_flops
from meshwright.plans.columns import Floats, Parts, total
from meshwright.plans.plan import Plan
from meshwright.plans.rule import BrokenRule, broken
from meshwright.results.priced_plan import LinkLoad, PricedPlan, StageMemory
from meshwright.rules.legality import (
    framework_degree_rules,
    framework_rules,
    mesh_rules,
)
from meshwright.rules.limits import host_memory_rule, link_share_rule, memory_rule
from meshwright.rules.pins import degree_pins, impossible_stages, plan_pins
from meshwright.rules.splits import split_rules
from meshwright.spec.prices import per_token
from meshwright.spec.spec import Spec
from meshwright.spec.units import GIB
from meshwright.topology.groups import GROUPS


def check(job: Job, plan: Plan) -> PricedPlan:
    """Return the plan with its time, memory and link loads."""
    return _priced(score(job, plan))


def plan_values(job: Job, plan: Plan) -> PlanValues:
    """Return the values of a plan that rules of the user compare."""
    return values_of(score(job, plan))


def broken_rules(job: Job, plan: Plan) -> list[BrokenRule]:
    """Return the rules that a plan breaks, with their numbers; none if it is valid."""
    return _broken(score(job, plan))


def checked(job: Job, plan: Plan) -> tuple[PricedPlan, list[BrokenRule]]:
    """Return the results of `check` and `broken_rules`; the plan is scored once."""
    scored = score(job, plan)
    return _priced(scored), _broken(scored)


def _priced(scored: Scored) -> PricedPlan:
    plan, time_parts = scored.plan, scored.step_parts
    step_s = math.fsum(time_parts.values())
    rates, loads = _rates(scored, step_s), _link_loads(scored, step_s)
    return PricedPlan(
        plan=plan,
        step_s=step_s,
        time_parts=time_parts,
        schedule_s=scored.schedule_s,
        stages=stage_memory(scored),
        links=_bottlenecks(loads),
        all_links=tuple(loads),
        link_utilisation=float(scored.busy_s.max() / step_s),
        mfu=rates["mfu"],
        tokens_per_s_per_gpu=rates["tokens_per_s_per_gpu"],
    )


def _rates(scored: Scored, step_s: float) -> dict[str, float]:
    """Return what a plan makes of its GPUs, in MFU and tokens per second."""
    job, gpus = scored.job, scored.plan.world_size
    training, peak = job.spec.training, _peak_flops(job, scored.plan)
    tokens = training.seq_len * training.global_batch
    return {
        "mfu": job_flops(job.spec) / (gpus * peak * step_s),
        "tokens_per_s": tokens / step_s,
        "tokens_per_s_per_gpu": tokens / step_s / gpus,
    }


def values_of(scored: Scored) -> PlanValues:
    """Return the values of a scored plan that rules of the user compare."""
    spec, split, parts = scored.job.spec, scored.split, scored.step_parts
    step_s = math.fsum(parts.values())
    rates = _rates(scored, step_s)
    stages = {
        "layers": split.layers,
        "recompute_layers": split.recomputed,
        "memory_gib": total(stage_bytes(scored.prices, split)) / GIB,
        "host_gib": stage_host_bytes(scored.prices, split) / GIB,
        "links": scored.busy_s.max(axis=0) / step_s,
    }
    return PlanValues(
        spec,
        scored.rows,
        {
            "step_s": step_s,
            **{f"parts.{name}": part for name, part in parts.items()},
            **rates,
            **per_token(spec, rates["tokens_per_s"]),
        },
        stages,
        scored.job.fabric.link_names,
    )


def _peak_flops(job: Job, plan: Plan) -> float:
    """Return the matmul peak of a GPU in FLOP/s, the mean over all stages."""
    peaks = [
        kind.spec.at(plan.precision).peak_flops for kind in job.gpu_kinds or (job,)
    ]
    return float(np.mean(np.array(peaks)[job.gpu_kind_of_stage(plan.pp)]))


def predict(job: Job, plan: Plan) -> tuple[float, tuple[StageMemory, ...]]:
    """Return what runs measure of a plan: its step time in seconds, and its memory."""
    scored = score(job, plan)
    return math.fsum(scored.step_parts.values()), stage_memory(scored)


def schedule_s(job: Job, plan: Plan) -> float:
    """Return the step time of a plan on the task graph of its schedule, seconds."""
    return score(job, plan).schedule_s


def _broken(scored: Scored) -> list[BrokenRule]:
    spec = scored.job.spec
    on_mesh = mesh_rules(spec, scored.place.mesh[None])
    pins = [*degree_pins(spec), *impossible_stages(spec)]
    on_degrees = [*framework_degree_rules(spec), *pins]
    rules = [*on_degrees, *on_mesh, *framework_rules(spec), *plan_pins(spec)]
    found = broken(rules, spec, scored.rows)
    found += [*split_rules(spec, scored.plan), *_limit_rules(scored)]
    return found + (broken_user_rules(values_of(scored)) if spec.rules else [])


def stage_memory(scored: Scored) -> tuple[StageMemory, ...]:
    """Return the memory of a GPU of every stage."""
    parts = _gib(stage_bytes(scored.prices, scored.split))
    usable = usable_gib(scored.job, scored.plan.pp)
    kinds = _gpu_kind_specs(scored.job, scored.plan.pp)
    whole = total(parts)
    host_gib = stage_host_bytes(scored.prices, scored.split) / GIB
    return tuple(
        StageMemory(
            total_gib=float(whole[e]),
            parts={name: float(part[e]) for name, part in parts.items()},
            host_gib=float(host_gib[e]),
            usable_gib=float(usable[e]),
            fit_probability=kinds[e].fit_probability(float(whole[e])),
        )
        for e in range(len(whole))
    )


def usable_gib(job: Job, stages: int) -> Floats:
    """Return the memory per GPU that a plan may use on each stage, GiB."""
    return np.array([kind.usable_gib for kind in _gpu_kind_specs(job, stages)])


def _gpu_kind_specs(job: Job, stages: int) -> list[Spec]:
    """Return, for each stage, the spec on GPUs of its kind alone."""
    specs = [kind.spec for kind in job.gpu_kinds or (job,)]
    return [specs[kind] for kind in job.gpu_kind_of_stage(stages).tolist()]


def _gib(parts: Parts) -> Parts:
    return {name: part / GIB for name, part in parts.items()}


def _link_loads(scored: Scored, step_s: float) -> list[LinkLoad]:
    """Return the load of every link by every group, the most loaded links first."""
    job, seconds = scored.job, scored.link_s.max(axis=0)
    loads = [
        LinkLoad(
            link=job.fabric.link_names[link],
            phase=GROUPS[group],
            gb=float(seconds[group, link]) * job.fabric.link_gb_s[link],
            seconds=float(seconds[group, link]),
            utilisation=float(seconds[group, link]) / step_s,
        )
        for group, link in np.argwhere(seconds > 0).tolist()
    ]
    return sorted(loads, key=lambda load: -load.seconds)


def _bottlenecks(loads: list[LinkLoad]) -> tuple[LinkLoad, ...]:
    """Return the most loaded link of each group; of equals, the first."""
    by_phase = {load.phase: load for load in reversed(loads)}
    return tuple(by_phase[name] for name in GROUPS if name in by_phase)


def _limit_rules(scored: Scored) -> list[BrokenRule]:
    job, spec, limits = scored.job, scored.job.spec, scored.job.spec.limits
    result = []
    needed = total(stage_bytes(scored.prices, scored.split)) / GIB
    usable = usable_gib(job, scored.plan.pp)
    tightest = int(np.argmax(needed - usable))
    if needed[tightest] > usable[tightest]:
        needed_gib, usable_there = float(needed[tightest]), float(usable[tightest])
        result.append(memory_rule(needed_gib, usable_there, tightest))
    on_host_gib = stage_host_bytes(scored.prices, scored.split) / GIB
    on_host = spec.cluster.gpus_per_host * float(on_host_gib.max())
    if on_host > spec.usable_host_gib:
        fullest = int(on_host_gib.argmax())
        result.append(host_memory_rule(on_host, spec.usable_host_gib, fullest))
    share, busy_s = limits.max_link_utilisation, scored.busy_s
    used = float(busy_s.max()) / math.fsum(scored.step_parts.values())
    if share is not None and used > share:
        busiest = job.fabric.link_names[int(busy_s.max(axis=0).argmax())]
        result.append(link_share_rule(used, share, busiest))
    return result
