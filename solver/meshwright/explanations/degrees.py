"""Reasons for the degrees: the best plan at every other degree, or why none fits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from meshwright.cost.job import make_job
from meshwright.cost.parameters_and_flops import kv_shards
from meshwright.deadline import Deadline
from meshwright.explanations.compare import gap_to_best
from meshwright.explanations.conflict import (
    analyse_infeasibility,
    any_skeleton_fits,
    solve_only_decisions,
)
from meshwright.explanations.decisions import decisions_in, with_pins, without_decisions
from meshwright.explanations.framework_rules import rules_behind
from meshwright.planner.degrees import degree_rows, legal_degrees
from meshwright.planner.families import Prepared, prepare
from meshwright.planner.narrow import MODEL_ROWS
from meshwright.planner.options import PROVEN_WITHIN, Options
from meshwright.planner.parts import Part, PartPlan, can_be_searched
from meshwright.planner.solve import best_of_parts, kinds_in, part_plan, solve
from meshwright.plans.plan import Plan
from meshwright.plans.skeletons import Skeletons
from meshwright.results.explanation import (
    AxisDegrees,
    DegreeReasons,
    OtherDegree,
    Shares,
)
from meshwright.results.outcome import NearMiss, Outcome
from meshwright.results.outcome_parts import Constraint
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.base import divisors
from meshwright.spec.cluster import Cluster
from meshwright.spec.model import Model
from meshwright.spec.plan_fields import Pins
from meshwright.spec.spec import Spec

ALL_DEGREES_AXES = ("tp", "pp")
"""Axes of which every other degree is solved for."""

NEXT_DEGREES_AXES = ("cp", "dp")
"""Axes of which only the next degree below and the next above are solved for."""

GROUPS_OF_PART = {
    "tp": ("tp",),
    "cp": ("cp",),
    "ep": ("ep",),
    "pp": ("pp",),
    "zero": ("dp_shard", "expert_shard"),
    "dp": ("dp_shard", "dp_replicate", "expert_shard", "expert_replicate"),
}
"""Parts of the step that are traffic, and the groups that cause it."""


def best_at(
    spec: Spec,
    parts: Sequence[Part],
    outcome: Outcome,
    prepared: Prepared | None,
    options: Options,
    within: float = PROVEN_WITHIN,
) -> dict[Part, PartPlan]:
    """Return the best plans at other degrees, and those with each set of techniques.

    The `outcome` is that of the spec, whose lattice is `prepared`. All plans of a small
    lattice are proven. Where an axis is pinned, its other degrees are parts of another
    lattice, and on unlike parts each is solved alone.
    """
    if prepared is None:
        asked = ((p, with_degree(spec, p.column, p.value)) for p in parts)
        return {part: part_plan(part, solve(at, options)) for part, at in asked}
    pinned = dict.fromkeys(p.column for p in parts if getattr(spec.pins, p.column))
    of_kinds = kinds_in(prepared.lattice)
    in_lattice = [part for part in parts if part.column not in pinned]
    lattices = [(prepared, [*of_kinds, *in_lattice])]
    for axis in pinned:
        free = without_decisions(spec, [f"pins.{axis}"])
        in_lattice = [part for part in parts if part.column == axis]
        other = prepare(options.profile.job(free))
        lattices.append((other, in_lattice))
    found: dict[Part, PartPlan] = {}
    for one, of_one in lattices:
        share = math.inf if one.lattice.skeletons <= MODEL_ROWS else within
        found |= best_of_parts(one, of_one, options, Deadline(), outcome, share)
    return found


@dataclass(frozen=True)
class DegreeComparison:
    """Compares the best plan of a spec with the best plans at other degrees."""

    spec: Spec
    best: PricedPlan
    tolerance: float | None = None
    """Share of the least doubted step by which it was recommended.

    None where it is the fastest plan, and plans are compared by their step.
    """

    @classmethod
    def of(cls, spec: Spec, outcome: Outcome, prepared: Prepared | None) -> Self:
        """Return the comparison of the recommended plan, or else of the fastest.

        The search for the best plans of parts compares doubted steps; plans that are
        solved for alone are compared by their step.
        """
        assert outcome.best
        assert outcome.optimum
        told = outcome.certificate
        if told and told.doubt and prepared and can_be_searched(prepared):
            return cls(spec, outcome.best, told.tolerance)
        return cls(spec, outcome.optimum)

    def others(self, axis: str) -> list[int]:
        """Return the other degrees of an axis that are told of."""
        degree = degree_of(self.best.plan, axis)
        others = sorted(
            {*divisors(self.spec.cluster.gpus), *divisors(self.best.plan.world_size)}
        )
        if axis in NEXT_DEGREES_AXES:
            others = _neighbours(degree, others)
        return [other for other in others if other != degree]

    def parts(self) -> list[Part]:
        """Return the other degrees that may have a plan."""
        return [
            self._part(axis, degree)
            for axis in (*ALL_DEGREES_AXES, *NEXT_DEGREES_AXES)
            for degree in self.others(axis)
            if self._may_have_plan(axis, degree)
        ]

    def _part(self, axis: str, degree: int) -> Part:
        return Part(axis, degree, is_doubted=self.tolerance is not None)

    def reasons(self, found: Mapping[Part, PartPlan]) -> DegreeReasons:
        """Return why no other degree is better, from the best plans at each."""
        told = tuple(
            AxisDegrees.model_validate(
                {
                    "axis": axis,
                    "degree": degree_of(self.best.plan, axis),
                    "is_pinned": getattr(self.spec.pins, axis) is not None,
                    "link": fullest_links(self.best).get(axis, ""),
                    "others": tuple(
                        self._other(axis, degree, found.get(self._part(axis, degree)))
                        for degree in self.others(axis)
                    ),
                }
            )
            for axis in (*ALL_DEGREES_AXES, *NEXT_DEGREES_AXES)
        )
        shared = shares(self.spec.model, self.best)
        return DegreeReasons(shares=shared, axes=told, tolerance=self.tolerance)

    def _other(self, axis: str, degree: int, plan: PartPlan | None) -> OtherDegree:
        if plan is None or plan.best is None:
            miss = plan.near_miss if plan else None
            rules = self._rules_against(axis, degree, miss)
            return OtherDegree(degree=degree, rules=rules)
        found = plan.best
        return OtherDegree(
            degree=degree,
            plan=found.plan,
            step_s=found.step_s,
            doubted_s=None if self.tolerance is None else found.doubted_s,
            beyond=found.familiarity.beyond if found.familiarity else (),
            bound_s=None if plan.is_proven else plan.bound_s,
            gap=gap_to_best(found, self.best),
            shares=shares(self.spec.model, found),
            links=fullest_links(found),
        )

    def _may_have_plan(self, axis: str, degree: int) -> bool:
        """Return whether a degree is legal; on unlike parts only a solve can tell."""
        is_mixed = bool(self.spec.cluster.parts)
        return is_mixed or degree in getattr(self._legal, axis)

    def _rules_against(
        self, axis: str, degree: int, miss: NearMiss | None
    ) -> tuple[Constraint, ...]:
        """Return the decisions and the framework's rules that conflict with a degree.

        On unlike parts, these are the rules that the nearest plan breaks, unless the
        degree is legal on none of them.
        """
        asked, pin = with_degree(self.spec, axis, degree), f"pins.{axis}"
        is_legal = degree in getattr(self._legal, axis)
        if asked.cluster.parts:
            if is_legal:
                return tuple(_broken_rules(miss))
            alike = Cluster(topology=asked.cluster.topology)
            asked = asked.model_copy(update={"cluster": alike})
        names = (pin, *_conflicting(asked)) if is_legal else (pin,)
        named = [d for d in decisions_in(asked) if d.rule in names and d.rule != pin]
        return (*named, *rules_behind(asked, names))

    @cached_property
    def _legal(self) -> Skeletons:
        """Return the degrees that are legal for the spec without its decisions."""
        decisions = [decision.rule for decision in decisions_in(self.spec)]
        free = without_decisions(self.spec, decisions)
        return degree_rows(legal_degrees(make_job(free))[0])


def with_degree(spec: Spec, axis: str, degree: int) -> Spec:
    """Return the spec with an axis pinned to a degree, in place of any other pin."""
    return with_pins(spec, Pins.model_validate({axis: degree}))


def degree_of(plan: Plan, axis: str) -> int:
    """Return how many GPUs a plan has along an axis."""
    return int(getattr(plan, axis))


def _conflicting(asked: Spec) -> tuple[str, ...]:
    """Return the decisions that conflict in a spec without a plan.

    If a skeleton fits without the decisions that need a solve, these are returned.
    """
    solve_only = solve_only_decisions(asked)
    rest = without_decisions(asked, solve_only)
    if solve_only and any_skeleton_fits(rest):
        return tuple(solve_only)
    found = analyse_infeasibility(rest, any_skeleton_fits)
    return found.decisions.names_of(found.conflict)


def _broken_rules(miss: NearMiss | None) -> Iterator[Constraint]:
    """Yield the rules that a nearest miss breaks, pins left out."""
    for broken in miss.broken_rules if miss else ():
        if not broken.rule.startswith("pin "):
            yield Constraint(rule=broken.rule, sentence=broken.sentence)


def _neighbours(degree: int, others: list[int]) -> list[int]:
    """Return the next lower and the next higher degree, where there is one."""
    below = [other for other in others if other < degree]
    above = [other for other in others if other > degree]
    return [*below[-1:], *above[:1]]


def fullest_links(priced: PricedPlan) -> dict[str, str]:
    """Return the most loaded link of each part of the step that is traffic."""
    result = {}
    for part, groups in GROUPS_OF_PART.items():
        loads = [load for load in priced.links if load.phase in groups]
        if loads:
            result[part] = max(loads, key=lambda load: load.seconds).link
    return result


def shares(model: Model, priced: PricedPlan) -> Shares:
    """Return how much of a layer each GPU has, and of the model each stage."""
    plan, moe = priced.plan, model.moe
    kv_heads = model.n_kv_heads / float(kv_shards(model, np.array(plan.tp)))
    layers = [stage.layers for stage in plan.stages]
    return Shares(
        heads=model.n_heads / plan.tp,
        kv_heads=kv_heads,
        d_ff=moe.d_ff / plan.etp if moe else model.d_ff / plan.tp,
        experts=moe.n_experts / plan.ep if moe else 0.0,
        layers=(min(layers), max(layers)),
        bubble=priced.time_parts["bubble"] / priced.step_s,
    )
