"""The checker prices one plan in floats and tests its rules."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
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
from meshwright.cost.schedule import TaskGraph, task_graph
from meshwright.cost.whole_model import job_flops
from meshwright.plans.columns import Bools, Floats, Ints, Parts, joined, total
from meshwright.plans.plan import Plan
from meshwright.plans.rule import BrokenRule, broken
from meshwright.plans.schedules import schedule_named
from meshwright.plans.simplicity import familiarity
from meshwright.plans.skeletons import Skeletons, Split, to_row, to_split
from meshwright.reading.expression import Call, Compared, Field, Function, Node
from meshwright.results.priced_plan import LinkLoad, PricedPlan, StageMemory
from meshwright.rules.legality import (
    degree_pins,
    framework_degree_rules,
    framework_rules,
    host_memory_rule,
    impossible_stages,
    link_share_rule,
    memory_rule,
    mesh_rules,
    plan_pins,
)
from meshwright.rules.rule_truth import FOLDS, Bounds, exactly, number_of, rule_truth
from meshwright.rules.sums import split_rules
from meshwright.rules.user_rules import SOURCE, rule_name, spec_number
from meshwright.spec.cluster import per_token
from meshwright.spec.plan_fields import FIELD
from meshwright.spec.spec import Spec
from meshwright.spec.units import GIB
from meshwright.spec.user_rules import LINKS, OF_SPEC, Kind, UserRule, kind_of, parts_of
from meshwright.topology.fabric import Place
from meshwright.topology.groups import GROUPS, price_groups_by_gpu_kind


def check(job: Job, plan: Plan) -> PricedPlan:
    """Return the plan with its time, memory and link loads."""
    return _priced(score(job, plan))


def plan_values(job: Job, plan: Plan) -> PlanValues:
    """Return the values of a plan that rules of the user compare."""
    return values_of(score(job, plan))


def broken_rules(job: Job, plan: Plan) -> list[BrokenRule]:
    """Return the rules that a plan breaks, with their numbers; none if it is valid."""
    return broken_of(score(job, plan))


def checked(job: Job, plan: Plan) -> tuple[PricedPlan, list[BrokenRule]]:
    """Return the results of `check` and `broken_rules`; the plan is scored once."""
    scored = score(job, plan)
    return _priced(scored), broken_of(scored)


def _priced(scored: Scored) -> PricedPlan:
    plan, step_s = scored.plan, scored.step_s
    rates, loads = _rates(scored, step_s), _link_loads(scored, step_s)
    return PricedPlan(
        plan=plan,
        step_s=step_s,
        time_parts=scored.step_parts,
        schedule_s=scored.schedule_s,
        stages=stage_memory(scored),
        links=_bottlenecks(loads),
        all_links=tuple(loads),
        link_utilisation=float(scored.busy_s.max() / step_s),
        mfu=rates["mfu"],
        tokens_per_s_per_gpu=rates["tokens_per_s_per_gpu"],
        familiarity=familiarity(scored.job.spec, plan),
    )


def _rates(scored: Scored, step_s: float) -> dict[str, float]:
    """Return the MFU and the tokens per second of a plan."""
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
    step_s = scored.step_s
    rates = _rates(scored, step_s)
    stages = {
        "layers": split.layers,
        "recompute_layers": split.recomputed,
        "memory_gib": total(scored.stage_bytes) / GIB,
        "host_gib": scored.host_gib,
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
    """Return the step seconds and the memory of a plan, as runs measure them."""
    scored = score(job, plan)
    return scored.step_s, stage_memory(scored)


def predict_together(
    job: Job, plans: Sequence[Plan]
) -> list[tuple[float, tuple[StageMemory, ...]]]:
    """Return what `predict` returns for every plan; this is faster for many plans."""
    placed = [to_row(job.fabric, plan) for plan in plans]
    prices = price(job, joined([rows for rows, _ in placed]))
    found = []
    for i, (plan, (_, place)) in enumerate(zip(plans, placed, strict=True)):
        scored = _scored(job, plan, place, prices.take(slice(i, i + 1)))
        found.append((scored.step_s, stage_memory(scored)))
    return found


def schedule_s(job: Job, plan: Plan) -> float:
    """Return the step time of a plan on the task graph of its schedule, seconds."""
    return score(job, plan).schedule_s


def broken_of(scored: Scored) -> list[BrokenRule]:
    """Return the rules that a scored plan breaks, with their numbers."""
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
    parts = {name: part / GIB for name, part in scored.stage_bytes.items()}
    usable = usable_gib(scored.job, scored.plan.pp)
    kinds = stage_specs(scored.job, scored.plan.pp)
    whole, host_gib = total(parts), scored.host_gib
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
    kinds = [kind.spec.usable_gib for kind in job.gpu_kinds or (job,)]
    return np.array(kinds)[job.gpu_kind_of_stage(stages)]


def stage_specs(job: Job, stages: int) -> list[Spec]:
    """Return, for each stage, the spec on GPUs of its kind alone."""
    specs = [kind.spec for kind in job.gpu_kinds or (job,)]
    return [specs[kind] for kind in job.gpu_kind_of_stage(stages).tolist()]


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
    needed = total(scored.stage_bytes) / GIB
    usable = usable_gib(job, scored.plan.pp)
    tightest = int(np.argmax(needed - usable))
    if needed[tightest] > usable[tightest]:
        needed_gib, usable_there = float(needed[tightest]), float(usable[tightest])
        result.append(memory_rule(needed_gib, usable_there, tightest))
    on_host = spec.cluster.gpus_per_host * float(scored.host_gib.max())
    if on_host > spec.usable_host_gib:
        fullest = int(scored.host_gib.argmax())
        result.append(host_memory_rule(on_host, spec.usable_host_gib, fullest))
    if (share := limits.max_link_utilisation) is not None:
        busy_s = scored.busy_s.max(axis=0)
        used = float(busy_s.max()) / scored.step_s
        if used > share:
            busiest = job.fabric.link_names[int(busy_s.argmax())]
            result.append(link_share_rule(used, share, busiest))
    return result


MOST_TASKS = 16_000
"""Most tasks of a schedule's graph that are computed one by one."""


@dataclass(frozen=True)
class Scored:
    """A plan as columns of length one, with its prices and split."""

    job: Job
    plan: Plan
    place: Place
    prices: Prices
    split: Split
    times: StageTimes

    @property
    def rows(self) -> Skeletons:
        """Return the plan as one row."""
        return self.prices.rows

    @cached_property
    def link_s(self) -> Floats:
        """Return the seconds of each group on each link, (stages, groups, links)."""
        return link_seconds(self.job, self.rows, self.split, self.place)

    @property
    def busy_s(self) -> Floats:
        """Return the same for all groups together, (stages, links)."""
        return np.asarray(self.link_s.sum(axis=1))

    @cached_property
    def stage_bytes(self) -> Parts:
        """Return the bytes on a GPU of every stage, by part, (stages,)."""
        return stage_bytes(self.prices, self.split)

    @cached_property
    def host_gib(self) -> Floats:
        """Return the memory that a GPU of every stage has on its host, (stages,)."""
        return stage_host_bytes(self.prices, self.split) / GIB

    @cached_property
    def step_parts(self) -> dict[str, float]:
        """Return the step time by part, in closed form."""
        return step_parts(self.rows, self.times)

    @property
    def step_s(self) -> float:
        """Return the step time in closed form."""
        return math.fsum(self.step_parts.values())

    @cached_property
    def graph(self) -> TaskGraph:
        """Return the schedule's tasks, without micro-batches beyond `MOST_TASKS`."""
        times = self.times
        seconds, forward = total(times.seconds), times.forward_s
        return task_graph(
            forward.tolist(),
            (seconds - forward - times.weight_s).tolist(),
            times.weight_s.tolist(),
            exact_microbatches(self.plan),
            int(self.rows.schedule[0]),
            self.plan.vpp,
            self.chunk_parts,
        )

    @cached_property
    def chunk_parts(self) -> list[list[float]]:
        """Return how often each chunk's layers are in those of its stage.

        A plan that is no more than a near miss may have chunks without layers.
        """
        plan, leading = self.plan, self.job.spec.model.first_dense_layers
        layers = np.array(plan.chunk_layers(leading)).reshape(plan.vpp, plan.pp).T
        whole, empty = layers.sum(axis=1, keepdims=True), np.full(layers.shape, np.inf)
        parts: list[list[float]] = np.divide(
            whole, layers, out=empty, where=layers > 0
        ).tolist()
        return parts

    @property
    def left_out(self) -> int:
        """Return how many micro-batches `graph` leaves out."""
        return self.plan.microbatches - self.graph.tasks.microbatches

    @property
    def left_out_s(self) -> float:
        """Return their seconds, at the rate of a full pipeline."""
        rules = schedule_named(self.plan.schedule)
        rate_s = rules.rate_s(total(self.times.seconds), self.times.forward_s)
        return self.left_out * rate_s

    @property
    def sync_s(self) -> float:
        """Return the seconds of the end of the step, on the slowest stage."""
        return float(total(self.times.sync).max())

    @property
    def schedule_s(self) -> float:
        """Return the step time by the longest path through the schedule's tasks."""
        return self.graph.longest_path_s + self.left_out_s + self.sync_s


def score(job: Job, plan: Plan) -> Scored:
    """Return a plan with its prices and the times of its stages."""
    rows, place = to_row(job.fabric, plan)
    return _scored(job, plan, place, price(job, rows))


def _scored(job: Job, plan: Plan, place: Place, prices: Prices) -> Scored:
    """Return a plan, whose prices have one row, with the times of its stages."""
    rows, split = prices.rows, to_split(plan)
    if not job.gpu_kinds:
        times = stage_times(rows, prices.time, split)
        return Scored(job, plan, place, prices, split, times)
    by_kind = [
        stage_times(row, price(kind, row).time, split)
        for kind, row in rows_by_kind(job, rows, place)
    ]
    times = times_on_kinds(by_kind, job.gpu_kind_of_stage(plan.pp))
    return Scored(job, plan, place, prices, split, times)


def rows_by_kind(
    job: Job, rows: Skeletons, place: Place
) -> list[tuple[Job, Skeletons]]:
    """Return, for each kind of GPU that stages lie on, the job and the row on it."""
    if not job.gpu_kinds:
        return [(job, rows)]
    fabrics = [kind.fabric for kind in job.gpu_kinds]
    by_kind = price_groups_by_gpu_kind(
        fabrics, place.mesh[None], rows.paths, rows.expert_key
    )
    placed = (rows.on_meshes(paths, rows.mesh) for paths in by_kind)
    return list(zip(job.gpu_kinds, placed, strict=True))


def exact_microbatches(plan: Plan) -> int:
    """Return how many micro-batches are computed task by task, in whole rounds."""
    rounds = max(MOST_TASKS // (3 * plan.vpp * plan.pp**2), 2)
    return min(plan.microbatches, rounds * plan.pp)


UNITS = {"memory_gib": "GiB", "host_gib": "GiB", "step_s": "s", LINKS: "of the step"}
"""Units of what is compared, by its name; others have none."""


@dataclass(frozen=True)
class PlanValues:
    """The values that rules compare, of one plan."""

    spec: Spec
    row: Skeletons
    numbers: Mapping[str, float]
    """Numbers of the whole plan: `step_s`, `parts.dp`, ..."""
    stages: Mapping[str, Floats]
    """Numbers of every stage, and the share of the step that each link is busy."""
    link_names: Sequence[str]

    def codes(self, name: str) -> Ints | Bools:
        """Return the codes of a word, or a flag."""
        column: Ints = getattr(self.row, name)
        return column

    def number(self, name: str) -> Bounds:
        """Return a number of the plan; a part of the step that it lacks is 0."""
        if name in OF_SPEC:
            return exactly(np.array([spec_number(self.spec, name)]))
        if name in FIELD or name == "dp":
            return exactly(getattr(self.row, name))
        return exactly(np.array([self.numbers.get(name, 0.0)]))

    def reduced(self, function: Function, name: str) -> Bounds:
        """Return the largest, least or sum of what stages or links have."""
        return exactly(FOLDS[function](self.each(name)))

    def each(self, name: str) -> Floats:
        """Return the value of every stage or link, (1, stages)."""
        return np.asarray(self.stages[name], dtype=np.float64)[None]

    def at(self, name: str, index: int | str) -> Bounds:
        """Return the value of one stage or link."""
        if isinstance(index, str):
            names = list(self.link_names)
            index = names.index(index) if index in names else len(names)
        many = self.stages[name]
        if not -len(many) <= index < len(many):
            return Bounds(np.zeros(1), np.zeros(1), np.ones(1, dtype=bool))
        return exactly(np.asarray(many[index], dtype=np.float64)[None])


def keeps(rule: UserRule, values: PlanValues) -> bool:
    """Return whether a plan keeps a rule."""
    return bool(rule_truth(rule.tree, values).must.all())


def broken_user_rules(values: PlanValues) -> list[BrokenRule]:
    """Return the user's rules that a plan breaks, with the values compared."""
    return [told(rule, values) for rule in values.spec.rules if not keeps(rule, values)]


def told(rule: UserRule, values: PlanValues) -> BrokenRule:
    """Return a rule with the values of a plan, and its two sides where it has two."""
    need, have = _sides(rule.tree, values) or (None, None)
    leaves = dict.fromkeys(_leaves(rule.tree, values))
    names = [name for name in UNITS if name in rule.names]
    return BrokenRule(
        rule=rule_name(rule),
        sentence=rule.sentence,
        need=need,
        have=have,
        unit=UNITS[names[0]] if len(names) == 1 else "",
        arithmetic=", ".join(leaves),
        compared=tuple(name for name in FIELD if name in rule.names),
        source=SOURCE,
    )


def _sides(node: Node, values: PlanValues) -> tuple[float, float] | None:
    """Return the need of a plan and its limit, if a rule compares these."""
    if not (isinstance(node, Compared) and len(node.operands) == 2):
        return None
    if node.operations[0] not in ("<", "<=", ">", ">="):
        return None
    left, right = (number_of(operand, values) for operand in node.operands)
    if left.undefined.any() or right.undefined.any():
        return None
    sides = float(left.low.item()), float(right.low.item())
    return sides if node.operations[0] in ("<", "<=") else (sides[1], sides[0])


def _leaves(node: Node, values: PlanValues) -> Iterator[str]:
    """Yield the values that a rule compares, with their names."""
    if isinstance(node, (Call, Field)):
        yield f"{node.text} {_written(node, values)}"
        return
    for part in parts_of(node):
        yield from _leaves(part, values)


def _written(node: Node, values: PlanValues) -> str:
    if isinstance(node, Field) and kind_of(node) in (Kind.WORD, Kind.FLAG):
        code = values.codes(node.name)[0]
        return str(FIELD[node.name].decoded(int(code))).lower() or "none"
    number = number_of(node, values)
    return "missing" if number.undefined.any() else f"{number.low.item():,.4g}"
