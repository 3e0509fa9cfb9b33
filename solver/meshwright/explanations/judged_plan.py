"""A plan that was asked about: given and chosen fields, its slack, its rank."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from meshwright.check.check import plan_values, told
from meshwright.cost.job import Job
from meshwright.explanations.conflict import solve_only_decisions
from meshwright.explanations.decisions import pin_decisions, plan_value
from meshwright.planner.degrees import legal_meshes
from meshwright.planner.integer_costs import TICK_S
from meshwright.planner.memory_fit import (
    MemoryFit,
    measure_stages,
    scaled_costs,
    stages_by_pp,
    with_room,
    with_times,
)
from meshwright.planner.nearest_miss import asked_row, broken_sums, row_value
from meshwright.planner.plans import rounding_s
from meshwright.planner.rows import Lattice, build_lattice
from meshwright.planner.split_bounds import (
    construct_pinned_split,
    lower_bound,
    split_ticks,
)
from meshwright.plans.columns import Floats, Ints, representatives
from meshwright.plans.plan import Plan
from meshwright.plans.skeletons import to_row
from meshwright.results.explanation import JudgedField, NearestPlan, Origin, Rank, Slack
from meshwright.results.outcome import NearMiss
from meshwright.results.outcome_parts import Repair
from meshwright.results.priced_plan import PricedPlan
from meshwright.rules.legality import (
    HOST_MEMORY,
    LINK_SHARE,
    MEMORY,
    OF_STEP,
    degree_pins,
    framework_degree_rules,
    framework_rules,
    mesh_rules,
    plan_pins,
)
from meshwright.rules.sums import WORLD_SIZE
from meshwright.spec.plan_fields import (
    FIELD,
    FIELDS,
    Pins,
    PlanField,
    Range,
    written,
    written_mesh,
)
from meshwright.spec.spec import Spec
from meshwright.topology.groups import price_groups

PER_STAGE = ("layers", "recompute_layers", "mesh")
"""Fields of a plan that have a value for each stage or level."""


DEGREES = {"tp", "cp", "pp", "dp"}
"""The degrees that multiply to the number of GPUs."""


def judged_plan(spec: Spec, plan: Plan) -> tuple[JudgedField, ...]:
    """Return all fields of a plan that was found for the pins of a spec."""
    names = [field.name for field in FIELDS]
    values = {name: getattr(plan, name) for name in names} | {"dp": plan.dp}
    whole = {"layers": plan.pp == 1, "mesh": len(spec.cluster.fan_outs) == 1}
    whole["recompute_layers"] = plan.recompute == "none" or (
        spec.pins.recomputes_all_layers
    )
    follows = _following(spec, values) | {name for name in PER_STAGE if whole[name]}
    has_dp = ("dp",) if spec.pins.dp else ()
    per_stage = PER_STAGE if plan.world_size > 1 else PER_STAGE[:2]
    details = {field.name for field in FIELDS if _is_idle_detail(field, values)}
    shown = [*has_dp, *(name for name in names if name not in details), *per_stage]
    return tuple(
        JudgedField(
            name=name,
            value=_used_mesh(plan) if name == "mesh" else plan_value(plan, name),
            origin=_origin(spec, name, follows, plan),
        )
        for name in shown
    )


def _is_idle_detail(field: PlanField, values: dict[str, Any]) -> bool:
    """Return whether a field details a choice that the plan did not make."""
    is_idle = field.beside_word and not field.is_open(values[field.beside])
    return bool(is_idle) and values[field.name] == field.plain


def _used_mesh(plan: Plan) -> str:
    """Return the factors of the axes above 1; the others have 1 at every level."""
    return written_mesh({a: by for a, by in plan.mesh.items() if math.prod(by) > 1})


def judged_miss(spec: Spec, miss: NearMiss | None) -> tuple[JudgedField, ...]:
    """Return the closest plan, or the known fields of the plan asked for."""
    if miss is None:
        return ()
    if miss.plan is not None:
        return judged_plan(spec, miss.plan)
    return asked_plan(spec) if miss.is_asked else ()


def asked_plan(spec: Spec) -> tuple[JudgedField, ...]:
    """Return the known fields of a plan whose numbers do not add up."""
    given = [
        JudgedField(name=name, value=_written(name, pin), origin="given")
        for name, pin in spec.pins
        if pin is not None
    ]
    row = asked_row(spec, spec.cluster.gpus)
    if row is None or broken_sums(spec, row)[0].name == WORLD_SIZE.name:
        return tuple(given)
    values = {name: row_value(row, name) for name in (*FIELD, "dp")}
    if _open_degrees(spec, values):
        return tuple(given)
    known = {field.name for field in given}
    followed = [name for name in FIELD if name in _following(spec, values) - known]
    return (
        *given,
        *(
            JudgedField(name=name, value=written(values[name]), origin="follows")
            for name in followed
        ),
    )


def _origin(spec: Spec, name: str, follows: set[str], plan: Plan) -> Origin:
    if is_given(spec, name):
        return "given" if _is_as_given(spec.pins, name, plan) else "chosen"
    return "follows" if name in follows else "chosen"


def _is_as_given(pins: Pins, name: str, plan: Plan) -> bool:
    """Return whether a plan has the one value of a field that pins allow.

    The plan that comes closest to pins which no plan keeps may not.
    """
    pin: Any = getattr(pins, name)
    if isinstance(pin, Range | bool):
        wanted = pin.single if isinstance(pin, Range) else pin
        return bool(getattr(plan, name) == wanted)
    if isinstance(pin, tuple):
        return plan_value(plan, name) == (_written(name, pin) or "''")
    return True


def _written(name: str, pin: object) -> str:
    """Return the value of a pin; that of stages is a list also where there is one."""
    if name in PER_STAGE and isinstance(pin, tuple):
        return str(list(pin))
    return written(pin)


def is_given(spec: Spec, name: str) -> bool:
    """Return whether a spec decides the one value of a plan field."""
    if name == "precision":
        return len(spec.training.precisions) == 1 or _is_single(spec.pins, name)
    return _is_single(spec.pins, name)


def _is_single(pins: Pins, name: str) -> bool:
    pin: Any = getattr(pins, name)
    if isinstance(pin, Range):
        return pin.single is not None
    if name in FIELD and isinstance(pin, tuple):
        return len(pin) == 1
    return pin is not None and pin != "any"


def _following(spec: Spec, values: dict[str, Any]) -> set[str]:
    """Return the fields that have one value left, from what the user gave.

    `dp_shard` and `microbatches` follow from the other degrees and from the batch.
    """
    return (
        {"dp_shard", *_last_degrees(spec, values), _last_of_batch(spec)}
        | {
            field.name
            for field in FIELDS
            if field.beside not in ("", field.name) and values[field.beside] == 1
        }
        | set(_without_choice(spec, values))
    )


def _last_degrees(spec: Spec, values: dict[str, Any]) -> Iterator[str]:
    """Yield the degrees that the number of GPUs and the given degrees leave."""
    left = DEGREES - _given_degrees(spec)
    if _open_degrees(spec, values):
        return
    yield from left
    if "dp" in left or values["dp"] == 1 or is_given(spec, "dp_shard"):
        yield "dp_replicate"


def _open_degrees(spec: Spec, values: dict[str, Any]) -> bool:
    """Return whether the given degrees leave more than one way to use all GPUs."""
    given = _given_degrees(spec)
    product = math.prod(int(values[name]) for name in given)
    return len(DEGREES - given) > 1 and product != spec.cluster.gpus


def _given_degrees(spec: Spec) -> set[str]:
    parts = ("dp_shard", "dp_replicate")
    has_dp = is_given(spec, "dp") or all(is_given(spec, name) for name in parts)
    given = {name for name in ("tp", "cp", "pp") if is_given(spec, name)}
    return given | ({"dp"} if has_dp else set())


def _last_of_batch(spec: Spec) -> str:
    """Return the field that the batch leaves: micro-batches, or their size."""
    return "micro_batch" if is_given(spec, "microbatches") else "microbatches"


def _without_choice(spec: Spec, values: dict[str, Any]) -> Iterator[str]:
    """Yield the fields that model and cluster leave no choice."""
    if spec.model.moe is None:
        yield "ep"
    if spec.pins.etp is None:
        yield "etp"
    if values["dp_shard"] * values["cp"] == 1:
        yield "zero"
    if spec.cluster.topology.host is None:
        yield "offload"


def nearest_plan(spec: Spec, repairs: Sequence[Repair]) -> NearestPlan | None:
    """Return the first of the repairs that changes nothing but fields of the plan.

    `repairs` are priced, those with the fewest changes first, then the fastest.
    """
    for repair in repairs:
        names = [edit.partition(":")[0] for edit in repair.edits]
        if repair.changes == "plan" and not any("." in name for name in names):
            return NearestPlan(
                text=_text(spec, repair, names),
                changes=repair.edits,
                kept=tuple(_kept(spec, names)),
                step_s=repair.step_s,
                price=repair.price,
                against=repair.against,
                plan=repair.plan,
            )
    return None


def _kept(spec: Spec, changed: list[str]) -> list[str]:
    """Return the pinned fields that are as they were asked for."""
    names = [
        decision.rule.removeprefix("pins.") for decision in pin_decisions(spec.pins)
    ]
    return [name for name in names if name not in changed]


def _text(spec: Spec, repair: Repair, changed: Sequence[str]) -> str:
    """Return the plan as `--plan` reads it; lists of stages only if they are pinned.

    Fields that plans omit, such as chunks of a single stage, are written if they are
    changed: the pin of the spec would hold otherwise.
    """
    pins, plan = spec.pins, repair.plan
    lists = {"layers": pins.layers, "recompute_layers": pins.stage_recompute}
    pinned = [name for name, pin in (*lists.items(), ("mesh", pins.mesh)) if pin]
    left_out = [n for n in changed if n not in pinned and f",{n}=" not in f",{plan}"]
    named = (f"{name}={plan_value(plan, name)}" for name in (*pinned, *left_out))
    text = ",".join([str(plan), *named])
    is_counted = pins.stage_recompute is not None
    return text.replace(",recompute_layers=any", "") if is_counted else text


MOST_RANKED = 1_000_000
"""Skeletons up to which ranks are told: to count a million takes seconds."""


def standing(job: Job, plan: PricedPlan) -> Rank | None:
    """Return the rank of a plan; others are counted in whole ticks, which round."""
    return rank(job, plan.step_s - rounding_s(job, plan.plan))


def rank(job: Job, step_s: float) -> Rank | None:
    """Return the rank of a plan with this step time among all skeletons that fit.

    None where only a solve tells whether a skeleton keeps every limit, where there are
    more skeletons than `MOST_RANKED`, and where none fits: the plan then replaces pins
    of the spec that leave none.
    """
    if solve_only_decisions(job.spec) or job.spec.cluster.parts:
        return None
    lattice, ticks = build_lattice(job), step_s / TICK_S
    if len(lattice) > MOST_RANKED:
        return None
    counts = [_counted(job, part, ticks) for part in with_room(job, lattice)]
    fit, may_be_faster, are_faster = map(sum, zip((0, 0, 0), *counts, strict=True))
    if not fit:
        return None
    # A plan with layers split worse than in its skeleton's plan is behind that too.
    first = min(fit, 1 + are_faster)
    last = max(first, may_be_faster)
    return Rank(first=first, last=last, of=fit, beaten=1 - last / fit)


def _counted(job: Job, lattice: Lattice, ticks: float) -> tuple[int, int, int]:
    """Return how many skeletons fit, may take less than `ticks`, and surely do."""
    memory = MemoryFit(job, lattice)
    index = np.flatnonzero(memory.is_fitting())
    costs = with_times(job, memory.costs(index), memory.price_group[index])
    least_ticks = measure_stages(job, costs, lambda rows: lower_bound(rows, ticks))
    may_be_faster = index[least_ticks < ticks]
    achieved_ticks = _achieved_ticks(job, lattice, may_be_faster)
    return len(index), len(may_be_faster), int((achieved_ticks < ticks).sum())


def _achieved_ticks(job: Job, lattice: Lattice, index: Ints) -> Floats:
    """Return the step time of a split of each skeleton, on the first of its meshes."""
    chosen, number = representatives(lattice.degree[index])
    degrees = lattice.degrees[lattice.degree[index][chosen]]
    shape = (len(degrees), *degrees.shape[1:], len(job.fabric.sizes))
    first = [legal_meshes(job, one)[0] for one in degrees]
    meshes = np.array(first, dtype=np.int64).reshape(shape)[number]
    rows = lattice.take(index).rows
    experts = rows.expert_key if job.spec.model.moe else None
    paths = price_groups(job.fabric, meshes, experts)
    costs = scaled_costs(job, rows.on_meshes(paths, np.arange(len(rows))))
    ticks = np.empty(len(costs))
    for same_pp, stages in stages_by_pp(job, costs):
        ticks[same_pp] = split_ticks(
            stages, *construct_pinned_split(job.spec.pins, stages)
        )
    return ticks


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
        unit=OF_STEP,
        where=busiest.link if busiest else "",
    )


def _user_rules(job: Job, plan: PricedPlan) -> Iterator[Slack]:
    """Yield the rules of the user that a plan keeps, with their two sides."""
    values = plan_values(job, plan.plan)
    for rule in job.spec.rules:
        kept = told(rule, values)
        sentence = f"{kept.sentence} ({kept.arithmetic})"
        sides = {"have": kept.have, "need": kept.need, "unit": kept.unit}
        yield Slack(rule=kept.rule, sentence=sentence, **sides)


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
