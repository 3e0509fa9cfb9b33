"""Explains a spec, or a plan on it: what breaks, what repairs it, what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from meshwright.cost.job import Job, make_job
from meshwright.deadline import Interrupt
from meshwright.explanations.conflict import Clash, clash_of, costly_decisions, has_room
from meshwright.explanations.degrees import degrees, solver_at
from meshwright.explanations.fixed import (
    HOST_MEMORY,
    MEMORY,
    chosen,
    fixed_in,
    with_plan,
    without,
)
from meshwright.explanations.framework_rules import rules_behind
from meshwright.explanations.gap import gap
from meshwright.explanations.hardware_repairs import bought
from meshwright.explanations.lighter_repairs import lightened
from meshwright.explanations.marginal_values import marginal_values
from meshwright.explanations.repairs import given_up, priced
from meshwright.explanations.slack import slack
from meshwright.explanations.standing import standing
from meshwright.results.explanation import (
    Change,
    Conflict,
    Explanation,
    Fixed,
    Repair,
    Slack,
    Verdict,
)
from meshwright.results.outcome import NearMiss, Outcome
from meshwright.results.priced_plan import PricedPlan
from meshwright.solver.options import Options
from meshwright.solver.pipeline import solve
from meshwright.solver.prepared import Prepared, prepare
from meshwright.spec.pins import Pins
from meshwright.spec.spec import Spec

FASTER = 1 - 1e-9
"""What is faster by less is the same plan, rounded otherwise."""


class Explainer:
    """Explains with one profile and one seed."""

    def __init__(self, options: Options) -> None:
        """Keep how to solve; plans of other kinds are asked for where they matter."""
        self._say = options.on_progress
        self._options = replace(options, on_progress=_nothing)

    def spec(self, spec: Spec) -> Explanation:
        """Return why the best plan of a spec wins, or why there is none."""
        is_mixed = bool(spec.cluster.parts)
        prepared = None if is_mixed else prepare(self._options.profile.job(spec))
        own = replace(self._options, is_by_kind=True)
        outcome = solve(spec, own, prepared)
        best = outcome.best
        if best is None:
            return self._none_fits(spec, outcome, "infeasible", None)
        solve_at = solver_at(spec, prepared, self._solve_briefly)
        told = Explanation(
            title=spec.title,
            status=outcome.status,
            fits=True,
            plan=best,
            cluster=outcome.cluster,
            slack=self._slack(spec, best),
            best=outcome,
        )
        return self._with(
            told,
            lambda: {
                "degrees": degrees(spec, best, solve_at, self._say),
                "binding": tuple(self._binding(spec, best)),
                "marginal_values": tuple(
                    marginal_values(spec, prepared, self._solve_briefly)
                ),
            },
        )

    def plan(self, spec: Spec, plan: Pins) -> Explanation:
        """Return whether a plan fits a spec, and what it loses, or how to mend it.

        Fields that the plan leaves open are chosen for it, as well as they can be.
        """
        asked, best = with_plan(spec, plan), self._solve(spec)
        own = self._solve(asked)
        priced = own.best
        if priced is None:
            return self._none_fits(asked, own, "does_not_fit", best)
        told = Explanation(
            title=spec.title,
            status="fits",
            fits=True,
            plan=priced,
            cluster=own.cluster,
            slack=self._slack(asked, priced),
            gap=gap(priced, best.best) if best.best else None,
            best=best,
        )
        return self._with(
            told,
            lambda: {
                "standing": standing(self._job(spec), priced.step_s),
                "helps": tuple(self._helps(asked, plan, priced)),
            },
        )

    def _with(
        self, told: Explanation, more: Callable[[], dict[str, object]]
    ) -> Explanation:
        """Return an explanation with more of it, unless an interrupt comes first."""
        return self._options.interrupt.unless_asked(
            lambda: told.model_copy(update=more()),
            told.model_copy(update={"is_stopped": True}),
        )

    def _solve(self, spec: Spec) -> Outcome:
        return solve(spec, self._options)

    def _solve_briefly(self, spec: Spec, prepared: Prepared | None = None) -> Outcome:
        own = replace(self._options, is_brief=True, interrupt=Interrupt())
        return solve(spec, own, prepared)

    def _job(self, spec: Spec) -> Job:
        return make_job(spec, self._options.profile.efficiency(spec))

    def _slack(self, spec: Spec, plan: PricedPlan) -> tuple[Slack, ...]:
        return () if spec.cluster.parts else slack(self._job(spec), plan)

    def _none_fits(
        self, spec: Spec, outcome: Outcome, status: Verdict, best: Outcome | None
    ) -> Explanation:
        """Return that a spec has no plan and why, or that this is open."""
        miss = outcome.near_miss
        told = Explanation(
            title=spec.title,
            status=status,
            fits=False,
            broken_rules=miss.broken_rules if miss else (),
            memory=miss.memory if miss else None,
            cluster=outcome.cluster,
            nearest=miss.plan if miss else None,
            best=best,
        )
        if outcome.status == "unknown":
            return told.model_copy(update={"status": "unknown"})
        best_s = best.best.step_s if best and best.best else None
        return self._with(told, lambda: self._reasons(spec, miss, best_s))

    def _reasons(
        self, spec: Spec, miss: NearMiss | None, best_s: float | None
    ) -> dict[str, object]:
        """Return what conflicts in a spec without a plan, and what would mend it."""
        clash = clash_of(spec, self._has_plan)
        return {
            "conflict": _conflict(spec, clash, miss),
            "repairs": tuple(priced(self._repairs(spec, clash, miss), best_s)),
        }

    def _repairs(self, spec: Spec, clash: Clash, miss: NearMiss | None) -> list[Repair]:
        found = given_up(spec, clash, self._solve_briefly)
        if clash.conflict & clash.decisions.bits([MEMORY]):
            needed_gib = miss.memory.total_gib if miss and miss.memory else None
            found += lightened(spec, self._solve_briefly, self._has_plan)
            found += bought(spec, needed_gib, self._solve_briefly, self._has_plan)
        return found

    def _has_plan(self, spec: Spec) -> bool:
        if costly_decisions(spec) or spec.cluster.parts:
            return self._solve_briefly(spec).best is not None
        return has_room(spec)

    def _helps(self, asked: Spec, plan: Pins, own: PricedPlan) -> Iterator[Change]:
        """Yield what each field of the plan brings if it is left open, best first."""
        changes = []
        for name in (name for name, value in plan if value is not None):
            best = self._solve_briefly(without(asked, [f"pins.{name}"])).best
            if best is not None and best.step_s < own.step_s * FASTER:
                edit = chosen(asked, f"pins.{name}", best.plan)
                changes.append(Change(change=edit, step_s=best.step_s))
        yield from sorted(changes, key=lambda change: change.step_s or 0.0)

    def _binding(self, spec: Spec, best: PricedPlan) -> Iterator[Change]:
        """Yield pins and limits without any one of which the best plan is faster.

        What memory holds back, a tenth more of it tells.
        """
        for own in fixed_in(spec):
            if own.rule in (MEMORY, HOST_MEMORY):
                continue
            freed = self._solve_briefly(without(spec, [own.rule])).best
            if freed is not None and freed.step_s < best.step_s * FASTER:
                yield Change(
                    change=f"{own.rule} ({own.sentence})",
                    step_s=freed.step_s,
                    tokens_per_s_per_gpu=freed.tokens_per_s_per_gpu,
                )


def _nothing(_text: str) -> None:
    """Say nothing of single solves: there are many."""


def _conflict(spec: Spec, clash: Clash, miss: NearMiss | None) -> Conflict:
    names = clash.decisions.named(clash.conflict)
    decided = [own for own in fixed_in(spec) if own.rule in names]
    return Conflict(
        rules=tuple(_with_state(spec, own, miss) for own in decided)
        + rules_behind(spec, names),
        is_minimal=True,
        witness=miss.description if miss else "",
    )


def _with_state(spec: Spec, own: Fixed, miss: NearMiss | None) -> Fixed:
    """Return the limit of memory with what the state alone takes of it."""
    if own.rule != MEMORY or miss is None or miss.state_gib is None:
        return own
    gpus = spec.cluster.gpus
    sentence = (
        f"{own.sentence}, {gpus * spec.usable_gib:,.0f} GiB of all {gpus:,}; weights, "
        f"gradients and optimizer of the plan that comes closest take "
        f"{miss.state_gib:,.0f}"
    )
    return own.model_copy(update={"sentence": sentence})
