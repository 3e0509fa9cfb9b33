"""The checker prices a plan in floats and tests its rules.

It uses only `cost` and `rules`, and knows nothing of the solver, of whole numbers or of
pruning: it is the specification of what a plan is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.cost.job import Job
from meshwright.cost.links import link_seconds
from meshwright.cost.price import (
    Prices,
    StageTimes,
    price,
    stage_bytes,
    stage_host_bytes,
    stage_times,
    step_parts,
    times_on_kinds,
)
from meshwright.cost.schedule_tasks import longest_path_s
from meshwright.cost.whole_job import job_flops
from meshwright.plans.columns import Floats, Parts, total
from meshwright.plans.encoding import to_row, to_split
from meshwright.plans.plan import Plan
from meshwright.plans.rule import BrokenRule, broken
from meshwright.plans.schedules.table import schedule_named
from meshwright.plans.skeletons import Skeletons
from meshwright.plans.split import Split
from meshwright.results.priced_plan import LinkLoad, PricedPlan, StageMemory
from meshwright.rules.legality import degree_rules, mesh_rules, plan_rules
from meshwright.rules.limits import host_memory_rule, link_share_rule, memory_rule
from meshwright.rules.splits import split_rules
from meshwright.spec.spec import Spec
from meshwright.spec.units import GIB
from meshwright.topology.fabric import Place
from meshwright.topology.groups import GROUPS, price_groups_by_gpu_kind

MOST_TASKS = 16_000
"""Most tasks of a schedule's graph that are computed one by one."""


@dataclass(frozen=True)
class _Scored:
    """A plan as columns of length one, with its prices and split."""

    job: Job
    plan: Plan
    place: Place
    prices: Prices
    split: Split
    times: StageTimes

    @property
    def rows(self) -> Skeletons:
        return self.prices.rows

    @cached_property
    def link_s(self) -> Floats:
        """Return how long each group keeps each link busy, (stages, groups, links)."""
        return link_seconds(self.job, self.rows, self.split, self.place)

    @property
    def busy_s(self) -> Floats:
        """Return the same for all groups together, (stages, links)."""
        return np.asarray(self.link_s.sum(axis=1))


def check(job: Job, plan: Plan) -> PricedPlan:
    """Return the plan with its time, memory and link loads."""
    return _priced(_score(job, plan))


def broken_rules(job: Job, plan: Plan) -> list[BrokenRule]:
    """Return the rules that a plan breaks, with their numbers; none if it is valid."""
    return _broken(_score(job, plan))


def checked(job: Job, plan: Plan) -> tuple[PricedPlan, list[BrokenRule]]:
    """Return the results of `check` and `broken_rules`; the plan is scored once."""
    scored = _score(job, plan)
    return _priced(scored), _broken(scored)


def _priced(scored: _Scored) -> PricedPlan:
    job, plan = scored.job, scored.plan
    time_parts = _step_parts(scored)
    step_s = sum(time_parts.values())
    training = job.spec.training
    gpus = plan.world_size
    peak, loads = _peak_flops(job, plan), _link_loads(scored, step_s)
    flops = job_flops(job.spec)
    tokens = training.seq_len * training.global_batch
    return PricedPlan(
        plan=plan,
        step_s=step_s,
        time_parts=time_parts,
        schedule_s=_schedule_s(scored),
        stages=_stage_memory(scored),
        links=_bottlenecks(loads),
        all_links=tuple(loads),
        link_utilisation=float(scored.busy_s.max() / step_s),
        mfu=flops / (gpus * peak * step_s),
        tokens_per_s_per_gpu=tokens / step_s / gpus,
    )


def _peak_flops(job: Job, plan: Plan) -> float:
    """Return the matmul peak of a GPU in FLOP/s, the mean over all stages."""
    peaks = [
        kind.spec.at(plan.precision).peak_flops for kind in job.gpu_kinds or (job,)
    ]
    return float(np.mean(np.array(peaks)[job.gpu_kind_of_stage(plan.pp)]))


def predict(job: Job, plan: Plan) -> tuple[float, tuple[StageMemory, ...]]:
    """Return what runs measure of a plan: its step time in seconds, and its memory."""
    scored = _score(job, plan)
    return sum(_step_parts(scored).values()), _stage_memory(scored)


def schedule_s(job: Job, plan: Plan) -> float:
    """Return the step time of a plan on the task graph of its schedule, seconds."""
    return _schedule_s(_score(job, plan))


def _broken(scored: _Scored) -> list[BrokenRule]:
    spec = scored.job.spec
    on_mesh = mesh_rules(spec, scored.place.mesh[None])
    rules = [*degree_rules(spec), *on_mesh, *plan_rules(spec)]
    legal = broken(rules, spec, scored.rows)
    return [*legal, *split_rules(spec, scored.plan), *_limit_rules(scored)]


def rows_by_kind(
    job: Job, rows: Skeletons, place: Place
) -> list[tuple[Job, Skeletons]]:
    """Return, for each kind of GPU that stages lie on, the job and the row on it."""
    if not job.gpu_kinds:
        return [(job, rows)]
    fabrics = [kind.fabric for kind in job.gpu_kinds]
    by_kind = price_groups_by_gpu_kind(fabrics, place.mesh[None], rows.paths, rows.ep)
    placed = (rows.on_meshes(paths, rows.mesh) for paths in by_kind)
    return list(zip(job.gpu_kinds, placed, strict=True))


def _score(job: Job, plan: Plan) -> _Scored:
    rows, place = to_row(job.fabric, plan)
    prices, split = price(job, rows), to_split(plan)
    if not job.gpu_kinds:
        times = stage_times(rows, prices.time, split)
        return _Scored(job, plan, place, prices, split, times)
    by_kind = [
        stage_times(row, price(kind, row).time, split)
        for kind, row in rows_by_kind(job, rows, place)
    ]
    times = times_on_kinds(by_kind, job.gpu_kind_of_stage(plan.pp))
    return _Scored(job, plan, place, prices, split, times)


def _step_parts(scored: _Scored) -> dict[str, float]:
    return step_parts(scored.rows, scored.times)


def _schedule_s(scored: _Scored) -> float:
    """Return the step time by the longest path through the schedule's tasks.

    Micro-batches beyond `MOST_TASKS` are added at the rate of a full pipeline.
    """
    times, plan = scored.times, scored.plan
    seconds, forward = total(times.seconds), times.forward_s
    microbatches = _exact_microbatches(plan)
    path = longest_path_s(
        forward.tolist(),
        (seconds - forward - times.weight_s).tolist(),
        times.weight_s.tolist(),
        microbatches,
        int(scored.rows.schedule[0]),
        plan.vpp,
        _chunk_parts(plan),
    )
    rate_s = schedule_named(plan.schedule).rate_s(seconds, forward)
    sync = float(total(times.sync).max())
    return path + (plan.microbatches - microbatches) * rate_s + sync


def _chunk_parts(plan: Plan) -> list[list[float]]:
    """Return how often each chunk's layers are in those of its stage.

    A plan that is no more than a near miss may have chunks without layers.
    """
    layers = np.array(plan.chunk_layers).reshape(plan.vpp, plan.pp).T
    whole, empty = layers.sum(axis=1, keepdims=True), np.full(layers.shape, np.inf)
    parts: list[list[float]] = np.divide(
        whole, layers, out=empty, where=layers > 0
    ).tolist()
    return parts


def _exact_microbatches(plan: Plan) -> int:
    """Return how many micro-batches are computed task by task, in whole rounds."""
    rounds = max(MOST_TASKS // (3 * plan.vpp * plan.pp**2), 2)
    return min(plan.microbatches, rounds * plan.pp)


def _stage_memory(scored: _Scored) -> tuple[StageMemory, ...]:
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


def _link_loads(scored: _Scored, step_s: float) -> list[LinkLoad]:
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


def _limit_rules(scored: _Scored) -> list[BrokenRule]:
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
    used = float(busy_s.max()) / sum(_step_parts(scored).values())
    if share is not None and used > share:
        busiest = job.fabric.link_names[int(busy_s.max(axis=0).argmax())]
        result.append(link_share_rule(used, share, busiest))
    return result
