"""The smallest conflict with its values, and the framework rules behind it.

Decisions conflict because the rules of legality leave no way around them. Every
skeleton that keeps the decisions of the conflict, legal or not, breaks some rules. A
smallest set of rules that shares one with each of those sets of broken rules is named
beside the conflict: without these rules there might be a plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.cost.job import Job, make_job
from meshwright.deadline import Deadline, Interrupt
from meshwright.explanations.conflict import (
    BrokenSets,
    Infeasibility,
    NamedBits,
    broken_rule_bits,
    contains_any,
    minimal_sets,
    smallest_hitting_set,
    solve_only_decisions,
)
from meshwright.explanations.decisions import (
    FASTER,
    HOST_MEMORY,
    MEMORY,
    decisions_in,
    without_decisions,
)
from meshwright.frameworks.base.registry import IDEAL, Limit, framework_of, limits_of
from meshwright.planner.degrees import (
    MeshTable,
    degree_rows,
    enumerate_degrees,
    legal_meshes,
)
from meshwright.planner.memory_fit import fitting
from meshwright.planner.nearest_miss import (
    asked_row,
    asked_rows,
    broken_sums,
    sum_rules,
)
from meshwright.planner.options import Options
from meshwright.planner.rows import Lattice
from meshwright.planner.solve import solve
from meshwright.planner.unplaced import list_layouts, list_unplaced
from meshwright.plans.columns import Ints
from meshwright.plans.rule import Rule, holding
from meshwright.plans.skeletons import Skeletons
from meshwright.results.outcome import NearMiss, Outcome
from meshwright.results.outcome_parts import (
    Conflict,
    Constraint,
    FrameworkLimits,
    LiftedLimit,
)
from meshwright.rules.legality import (
    chosen_degree_rules,
    chosen_plan_rules,
    field_pins,
    framework_degree_rules,
    framework_rules,
)
from meshwright.rules.sums import SPLIT_RULES
from meshwright.spec.plan_fields import OFFLOADS, Pins
from meshwright.spec.spec import Spec


def rules_behind(spec: Spec, conflict: Iterable[str]) -> tuple[Constraint, ...]:
    """Return a smallest set of rules that makes the decisions of a conflict clash.

    It is empty where the decisions conflict under any rules of the framework, and where
    only a solve tells whether a decision holds.
    """
    kept = set(conflict)
    others = [d.rule for d in decisions_in(spec) if d.rule not in kept]
    relaxed = without_decisions(spec, others)
    if not spec.cluster.parts and (sums := _broken_sums(relaxed)):
        return sums
    if kept & set(solve_only_decisions(spec)) or spec.cluster.parts:
        return ()
    job = make_job(relaxed)
    degrees = _degrees_within_pins(job)
    degrees = degrees[[_has_mesh(job, one) for one in degrees]]
    if not kept & {MEMORY, HOST_MEMORY} and (rule := _refusing_all(relaxed, degrees)):
        within = _skeletons_within_pins(job, degrees[:1])
        if len(within):
            return _told(relaxed, [rule], within.rows)
    lattice = _skeletons_within_pins(job, degrees)
    rules = [*framework_degree_rules(relaxed), *framework_rules(relaxed)]
    names = _names(rules)
    named = [(rule.name, rule) for rule in rules]
    broken = BrokenSets.of(names, named, relaxed, lattice)
    needs_room = bool(kept & {MEMORY, HOST_MEMORY})

    def first(values: Sequence[int]) -> Skeletons | None:
        rows = broken.breaking(values)
        for part in fitting(job, rows) if needs_room else [rows]:
            if len(part):
                return part.take(np.array([0])).rows
        return None

    sets: list[int] = []
    for value in sorted(broken.values, key=int.bit_count):
        # No skeleton that breaks no rule fits: the decisions are a conflict.
        if value and not contains_any(value, sets) and first([value]) is not None:
            sets.append(value)

    def first_with(bit: int) -> Skeletons | None:
        return first([value for value in broken.values if value & bit])

    return _smallest_reason(relaxed, rules, sets, first_with)


def _refusing_all(spec: Spec, degrees: Ints) -> Rule | None:
    """Return the first rule on degrees that all degrees break, if it stands alone.

    It is the smallest reason for all skeletons of these degrees, which need not be
    listed then: a wide cluster has millions. Rules on whole skeletons may share a name
    with a rule on degrees; then only the skeletons tell which of them is broken.
    """
    rules, rows = framework_degree_rules(spec), degree_rows(degrees)
    names = [rule.name for rule in (*rules, *framework_rules(spec))]
    for rule in rules if len(degrees) else ():
        if names.count(rule.name) > 1:
            return None
        if not rule.holds(spec, rows).any():
            return rule
    return None


def _broken_sums(spec: Spec) -> tuple[Constraint, ...]:
    """Return the rules on sums without which some plan has the pinned fields."""
    asked = asked_row(spec, spec.cluster.gpus)
    if asked is None:
        return ()
    sums = broken_sums(spec, asked)
    if len(sums) == 1:
        return _told(spec, sums, asked)
    rules, rows = sum_rules(spec), asked_rows(spec, spec.cluster.gpus)
    named = [(rule.name, rule) for rule in rules]
    broken = broken_rule_bits(_names(rules), named, spec, rows)

    def first_with(bit: int) -> Skeletons:
        return rows.take(np.flatnonzero(broken & bit)[:1])

    return _smallest_reason(spec, rules, np.unique(broken).tolist(), first_with)


def _names(rules: Iterable[Rule]) -> NamedBits:
    return NamedBits(tuple(dict.fromkeys(rule.name for rule in rules)))


def _smallest_reason(
    spec: Spec,
    rules: Sequence[Rule],
    sets: Iterable[int],
    first_with: Callable[[int], Skeletons | None],
) -> tuple[Constraint, ...]:
    """Return the fewest rules of which each of some sets has one.

    `first_with` returns the first skeleton that breaks a rule of a name. The universal
    rules and a framework may have rules of the same name: that which it breaks is told.
    """
    names = _names(rules)
    hit = smallest_hitting_set(minimal_sets(sets), len(names.names))
    told: list[Constraint] = []
    for name in names.names_of(hit):
        if (row := first_with(names.bits([name]))) is not None:
            of_name = [rule for rule in rules if rule.name == name]
            told.extend(_told(spec, _broken(spec, of_name, row)[:1], row))
    return tuple(told)


def _broken(spec: Spec, rules: Iterable[Rule], row: Skeletons) -> list[Rule]:
    """Return the rules that a row breaks."""
    return [rule for rule in rules if not np.all(rule.holds(spec, row))]


def _told(spec: Spec, rules: Iterable[Rule], rows: Skeletons) -> tuple[Constraint, ...]:
    """Return rules as constraints, with the values that the first row breaks."""
    return tuple(
        Constraint(
            rule=rule.name,
            sentence=rule.sentence,
            arithmetic=rule.arithmetic(spec, rows),
            source=rule.source,
            fails_with=rule.fails_with,
        )
        for rule in rules
    )


def _degrees_within_pins(job: Job) -> Ints:
    """Return all degrees, legal or not, that keep the pins on degrees."""
    spec = job.spec
    degrees, _ = enumerate_degrees((math.prod(job.fabric.sizes),))
    return degrees[holding(chosen_degree_rules(spec), spec, degree_rows(degrees))]


def _has_mesh(job: Job, degrees: Ints) -> bool:
    """Return whether some mesh of these degrees keeps the pins and limits on meshes."""
    is_free = job.spec.pins.mesh is None and job.spec.limits.tp_min_link_gb_s is None
    return is_free or len(legal_meshes(job, degrees)) > 0


OF_LAYOUTS = ("zero", "sequence_parallel", "micro_batch", "microbatches", "etp", "ep")
"""Fields that layouts have already, beside degrees."""


def _skeletons_within_pins(job: Job, degrees: Ints) -> Lattice:
    """Return all skeletons, legal or not, that keep the pins.

    Unless pinned, schedules other than 1F1B and interleaved chunks are left out: they
    need no less memory and break no fewer rules.
    """
    spec = _with_plain_pins(job.spec)
    layouts = list_layouts(spec, degrees, field_pins(spec.pins, OF_LAYOUTS))
    rows = list_unplaced(spec, layouts, chosen_plan_rules(spec))
    copies = np.ones(len(degrees), dtype=np.int64)
    return Lattice(job.fabric, rows, degrees, copies, MeshTable(job))


def _with_plain_pins(spec: Spec) -> Spec:
    """Return the spec with schedule and chunks pinned to 1F1B, unless pinned already.

    All offloads are allowed, since what a framework offloads is one of its rules.
    """
    plain: dict[str, object] = {"schedule": ("1f1b",), "vpp": {"values": (1,)}}
    if spec.cluster.topology.host is not None:
        plain["offload"] = OFFLOADS
    given = {k: v for k, v in plain.items() if getattr(spec.pins, k) is None}
    pins = Pins.model_validate(spec.pins.model_dump() | given)
    return spec.model_copy(update={"pins": pins})


ALL = Limit("all", "all of them together")


def solve_with_limits(spec: Spec, options: Options) -> Outcome:
    """Return the outcome of a spec, with what the limits of its framework cost.

    The time limit holds for all solves together. Limits that it, or an interrupt,
    leaves no time for have the status `unknown`.
    """
    deadline = Deadline(options.time_limit_s, options.interrupt)
    outcome = solve(spec, options)
    costs = _LimitCosts(spec, _step_s(outcome), options, deadline).all_costs()
    return outcome.model_copy(update={"framework_limits": costs})


@dataclass(frozen=True)
class _LimitCosts:
    """Compares the best step time under a framework with those without its limits."""

    spec: Spec
    step_s: float
    """Step time of the fastest plan that keeps every limit; infinite if none does."""
    options: Options
    deadline: Deadline

    def all_costs(self) -> FrameworkLimits:
        limits = limits_of(self.spec)
        together = self._lifted(ALL, limits, "without any of the framework's limits")
        each = [
            together.model_copy(
                update={"limit": limit.name, "sentence": limit.sentence}
            )
            if together.gains_nothing
            else self._lifted(
                limit, [limit], f"{number} of {len(limits)}: {limit.sentence}"
            )
            for number, limit in enumerate(limits, 1)
        ]
        ideal = self._solve(
            self.spec.model_copy(update={"framework": IDEAL}), f"framework: {IDEAL}"
        )
        return FrameworkLimits(
            framework=framework_of(self.spec).title,
            limits=tuple(sorted(each, key=_by_cost)),
            all_lifted=together,
            ideal_step_s=ideal.optimum.step_s if ideal and ideal.optimum else None,
        )

    def _lifted(self, told: Limit, lifted: Sequence[Limit], doing: str) -> LiftedLimit:
        """Return the fastest plan without some limits, as that of the limit `told`."""
        free = self.spec.without_limits(limit.name for limit in lifted)
        outcome = self._solve(free, doing, self.step_s * FASTER)
        result = LiftedLimit(limit=told.name, sentence=told.sentence, status="unknown")
        if outcome is None:
            return result
        found_s, step_s = _step_s(outcome), self.step_s
        update: dict[str, object] = {"status": outcome.status}
        if found_s < step_s * FASTER and outcome.optimum is not None:
            costs = step_s / found_s - 1 if math.isfinite(step_s) else None
            update |= {"step_s": found_s, "costs": costs, "plan": outcome.optimum.plan}
        elif math.isfinite(step_s):
            # The plan that keeps every limit is still there.
            is_proven = outcome.status in ("optimal", "infeasible")
            update["status"] = "optimal" if is_proven else "feasible"
            update |= {"step_s": step_s, "costs": 0.0}
        return result.model_copy(update=update)

    def _solve(
        self, spec: Spec, doing: str, known_s: float = math.inf
    ) -> Outcome | None:
        """Return the outcome of a spec; None where there is no time left for it.

        Plans slower than `known_s` may be left out.
        """
        left_s, interrupt = self.deadline.left_s, self.options.interrupt
        if left_s <= 0:
            return None
        self.options.on_progress(doing)
        brief = replace(
            self.options,
            time_limit_s=left_s,
            top=1,
            is_by_kind=False,
            is_safety=False,
            is_brief=True,
            known_s=known_s,
            on_progress=lambda _: None,
            interrupt=Interrupt(),
        )
        return interrupt.unless_asked(lambda: solve(spec, brief), None)


def _step_s(outcome: Outcome) -> float:
    """Return the step time of the best plan, infinite where none is known."""
    return outcome.optimum.step_s if outcome.optimum else math.inf


def _by_cost(limit: LiftedLimit) -> tuple[bool, float]:
    """Return the place of a limit: first where it leaves no plan, then by its cost."""
    return not limit.gains, -(limit.costs or math.inf) if limit.gains else 0.0


def explained_conflict(
    spec: Spec, infeasibility: Infeasibility, miss: NearMiss | None
) -> Conflict:
    """Return a conflict with the values that clash in the plan that comes closest."""
    names = infeasibility.decisions.names_of(infeasibility.conflict)
    named = [decision for decision in decisions_in(spec) if decision.rule in names]
    return Conflict(
        rules=tuple(_with_state(spec, decision, miss) for decision in named)
        + tuple(
            _as_asked(rule, miss)
            for rule in rules_behind(spec, names) or _split_rules(names, miss)
        ),
        is_minimal=True,
        witness=miss.description if miss else "",
    )


def _split_rules(names: Sequence[str], miss: NearMiss | None) -> tuple[Constraint, ...]:
    """Return the rules on splits behind pinned stages, as the nearest miss tells."""
    if miss is None or not {"pins.layers", "pins.recompute_layers"} & {*names}:
        return ()
    return tuple(
        Constraint(rule=broken.rule, sentence=broken.sentence)
        for broken in miss.broken_rules
        if broken.rule in SPLIT_RULES
    )


def _as_asked(rule: Constraint, miss: NearMiss | None) -> Constraint:
    """Return a rule with the values of the plan asked for, if that breaks it too."""
    told = (
        {broken.rule: broken.arithmetic for broken in miss.broken_rules} if miss else {}
    )
    return rule.model_copy(
        update={"arithmetic": told.get(rule.rule) or rule.arithmetic}
    )


def _with_state(spec: Spec, decision: Constraint, miss: NearMiss | None) -> Constraint:
    """Return a decision; the limit on memory also says what the state alone takes."""
    if decision.rule != MEMORY or miss is None or miss.state_gib is None:
        return decision
    gpus, state_gib = spec.cluster.gpus, round(miss.state_gib)
    held = f"take {state_gib:,} GiB" if state_gib else "are on the hosts"
    all_gib = f", {gpus * spec.usable_gib:,.0f} GiB of all {gpus:,}" if gpus > 1 else ""
    sentence = (
        f"{decision.sentence}{all_gib}; "
        f"weights, gradients and optimizer of the plan that comes closest {held}"
    )
    return decision.model_copy(update={"sentence": sentence})
