"""The cost of each limit and decision, and the gain from more hardware."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import NamedTuple, TypeVar

from meshwright.deadline import Interrupt
from meshwright.explanations.decisions import (
    FASTER,
    HOST_MEMORY,
    MEMORY,
    USER_RULE,
    decisions_in,
    with_count,
    with_memory,
    with_topology,
    without_decisions,
)
from meshwright.explanations.levers import frees_memory, pulled
from meshwright.planner.families import Prepared
from meshwright.planner.options import Options, tolerance_of
from meshwright.planner.plans import rounding_s
from meshwright.planner.solve import solve
from meshwright.plans.plan import Plan
from meshwright.results.explanation import Change
from meshwright.results.outcome import Outcome
from meshwright.results.outcome_parts import (
    LEVER_EFFECTS,
    Constraint,
    DecisionCost,
    NearDecision,
    NearPlans,
    PricedLever,
)
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.cluster import Cluster
from meshwright.spec.goals import DEFAULT_OBJECTIVE
from meshwright.spec.plan_fields import FIELD
from meshwright.spec.spec import Spec
from meshwright.spec.topology import Level, Link, ScaleOut, Topology

AnyLink = TypeVar("AnyLink", ScaleOut, Level, Link)

MORE = 1.1
"""Factor by which memory and link bandwidth are raised."""


Solve = Callable[[Spec, Prepared | None], Outcome]
"""Solves a spec, from its prepared lattice if there is one."""

Freed = list[tuple[Constraint, Outcome]]
"""Decisions, each with the outcome without it."""

MOST_LEVERS = 3
"""Most levers with which other plans are looked for."""

FOLLOWING = ("microbatches", "dp_shard", "dp_replicate")
"""Fields that follow from other decisions."""


class ChangedSpec(NamedTuple):
    """A spec in which one thing is raised, and the change in words."""

    change: str
    spec: Spec
    link_speedup: float | None = None
    """Factor on the speed of its links; None if its lattice differs from the spec's."""


def marginal_values(
    spec: Spec,
    prepared: Prepared | None,
    solve: Solve,
    levers: Sequence[PricedLever],
) -> Iterator[Change]:
    """Yield the best step time after each change of hardware or training.

    The changes are a tenth more memory, a tenth more bandwidth of each link class, one
    machine more, twice the sequence length, twice the batch, and levers. `prepared` is
    the lattice prepared for the spec, if any, which a change of memory or links keeps.
    """
    changes = _hardware_changes(spec), _training_changes(spec), _pulls(spec, levers)
    for changed in chain.from_iterable(changes):
        start = None
        if prepared is not None and changed.link_speedup is not None:
            start = prepared.on_better_hardware(changed.spec, changed.link_speedup)
        yield _change(changed.change, solve(changed.spec, start))


def _change(told: str, outcome: Outcome) -> Change:
    """Return the step time of an outcome after a change."""
    best = outcome.best
    return Change(
        change=told,
        step_s=best.step_s if best else None,
        tokens_per_s_per_gpu=best.tokens_per_s_per_gpu if best else None,
        is_proven=outcome.status in ("optimal", "infeasible"),
    )


def bolder_plans(spec: Spec, outcome: Outcome) -> Iterator[Change]:
    """Yield the step times at more risk than asked for, which the outcome has."""
    training = spec.training
    tokens = training.global_batch * training.seq_len
    for choice in outcome.safety:
        if choice.oom_risk > spec.limits.risk and choice.step_s is not None:
            rate = tokens / choice.step_s / outcome.gpus
            yield Change(
                change=f"oom_risk {choice.oom_risk:g}",
                step_s=choice.step_s,
                tokens_per_s_per_gpu=rate,
                is_proven=choice.is_proven,
            )


def _hardware_changes(spec: Spec) -> Iterator[ChangedSpec]:
    yield ChangedSpec("memory +10 %", with_memory(spec, spec.usable_gib * MORE), 1.0)
    cluster = spec.cluster
    if cluster.parts:
        return
    for name, topology in _wider_links(cluster):
        yield ChangedSpec(f"{name} +10 %", with_topology(spec, topology), MORE)
    if cluster.topology.scale_out is not None:
        yield ChangedSpec("one machine more", with_count(spec, cluster.count + 1))


def _wider_links(cluster: Cluster) -> Iterator[tuple[str, Topology]]:
    """Yield, for each class of links, its name and the topology with it a tenth wider.

    A class is a level, or all links of a graph with the same bandwidth.
    """
    topology = cluster.topology
    for gb_s in sorted({link.gb_s for link in topology.links}, reverse=True):
        links = tuple(
            _wider(link) if link.gb_s == gb_s else link for link in topology.links
        )
        yield f"links of {gb_s:g} GB/s", topology.model_copy(update={"links": links})
    for index, level in enumerate(topology.levels):
        levels = list(topology.levels)
        levels[index] = _wider(level)
        yield level.name, topology.model_copy(update={"levels": tuple(levels)})
    if topology.scale_out is not None and cluster.count > 1:
        scale_out = _wider(topology.scale_out)
        yield scale_out.name, topology.model_copy(update={"scale_out": scale_out})


def _wider(link: AnyLink) -> AnyLink:
    return link.model_copy(update={"gb_s": link.gb_s * MORE})


def _training_changes(spec: Spec) -> Iterator[ChangedSpec]:
    training = spec.training
    known = spec.model.learned_positions
    if not known or 2 * training.seq_len <= known:
        twice = spec.having("training", seq_len=2 * training.seq_len)
        yield ChangedSpec("sequence x 2", twice)
    twice = spec.having("training", global_batch=2 * training.global_batch)
    yield ChangedSpec("batch x 2", twice)


def worth_other_plans(
    levers: Sequence[PricedLever], plan: Plan
) -> Sequence[PricedLever]:
    """Return the levers of memory that are worth most, where a plan pays time for it.

    Without offload and whole layers repeated, other plans gain little by memory.
    """
    if not plan.pays_for_memory:
        return ()
    of_memory = (one for one in levers if frees_memory(one.switch))
    return [*islice(of_memory, MOST_LEVERS)]


def _pulls(spec: Spec, levers: Sequence[PricedLever]) -> Iterator[ChangedSpec]:
    edits = {one.edit: one for one in levers}
    for one in pulled(spec) if edits else ():
        if one.edit in edits:
            numbers = LEVER_EFFECTS[edits[one.edit].numbers]
            yield ChangedSpec(f"{one.edit} ({numbers})", one.spec)


def without_each(spec: Spec, solve: Callable[[Spec], Outcome]) -> Freed:
    """Return the outcome without each pin, rule and limit.

    Memory is left out: the marginal values have the gain of a tenth more.
    """
    return [
        (decision, solve(without_decisions(spec, [decision.rule])))
        for decision in decisions_in(spec)
        if decision.rule not in (MEMORY, HOST_MEMORY)
    ]


def binding(freed: Freed, best: PricedPlan) -> Iterator[Change]:
    """Yield the pins, rules and limits without which the best plan would be faster."""
    for decision, outcome in freed:
        plan = outcome.best
        if plan is not None and plan.step_s < best.step_s * FASTER:
            yield _change(f"{decision.rule} ({decision.sentence})", outcome)


def rule_prices(freed: Freed) -> Iterator[Change]:
    """Yield the best step time without each rule of the user."""
    for decision, outcome in freed:
        if outcome.best is not None and decision.rule.startswith(USER_RULE):
            yield _change(f"without {decision.rule}", outcome)


def near_decisions(
    options: Options,
    plan: Plan,
    fastest: PricedPlan | None,
    prepared: Prepared | None,
) -> dict[str, object]:
    """Return all plans near the fastest, and the costs of the decisions of a plan.

    Where links are limited and the order of GPUs is a choice, nothing is said: the set
    would be proven by a search of all orders.
    """
    if fastest is None or prepared is None:
        return {}
    spec = prepared.job.spec
    if spec.limits.max_link_utilisation and prepared.lattice.table.has_choice:
        return {}
    share = tolerance_of(spec, options.profile).share
    within = share or DEFAULT_OBJECTIVE.tolerance
    rounded_s = 2 * rounding_s(prepared.job, fastest.plan)
    known_s = fastest.step_s * (1 + within) + rounded_s
    options = replace(options, near=within, known_s=known_s)
    near = solve(spec, replace(options, interrupt=Interrupt()), prepared).near
    return {"near": near, "decisions": decision_costs(plan, near) if near else ()}


def decision_costs(plan: Plan, near: NearPlans) -> tuple[DecisionCost, ...]:
    """Return the cost of each decision of a plan, which need not be a near one."""
    return tuple(
        _cost(plan, decision)
        for decision in near.decisions
        if decision.name not in FOLLOWING
    )


def _cost(plan: Plan, decision: NearDecision) -> DecisionCost:
    field = FIELD[decision.name]
    code = field.encoded(getattr(plan, decision.name))
    losses = {field.encoded(option.value): option.loss for option in decision.values}
    others = [loss for other, loss in losses.items() if other != code]
    return DecisionCost(
        name=decision.name,
        value=field.decoded(code),
        loss=losses.get(code),
        otherwise=min(others, default=None),
    )
