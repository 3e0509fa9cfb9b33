"""Explains a spec, or a plan on it: what breaks, what repairs it, what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.explain.conflict import has_room, needs_solve, smallest_conflict
from meshwright.explain.data import Change, Explanation, Gap, Slack, Verdict
from meshwright.explain.fixed import chosen, fixed_in, with_plan, without
from meshwright.explain.margins import marginal_values
from meshwright.explain.repairs import repairs
from meshwright.job import make_job
from meshwright.options import Options
from meshwright.plan import Outcome, PricedPlan
from meshwright.solve import solve
from meshwright.spec.pins import Pins
from meshwright.spec.spec import Spec


class Explainer:
    """Explains with one profile and one seed."""

    def __init__(self, options: Options) -> None:
        """Keep how to solve; plans of other kinds are asked for where they matter."""
        self._options = options

    def spec(self, spec: Spec) -> Explanation:
        """Return why the best plan of a spec wins, or why there is none."""
        outcome = self._solve(spec, is_by_kind=True)
        if outcome.best is None:
            return self._none_fits(spec, outcome, "infeasible", None)
        return Explanation(
            title=spec.title,
            status=outcome.status,
            fits=True,
            plan=outcome.best,
            cluster=outcome.cluster,
            slack=tuple(_slack(spec, outcome.best)),
            best=outcome,
            marginal_values=tuple(marginal_values(spec, self._solve)),
        )

    def plan(self, spec: Spec, plan: Pins) -> Explanation:
        """Return whether a plan fits a spec, and what it loses, or how to mend it.

        Fields that the plan leaves open are chosen for it, as well as they can be.
        """
        asked, best = with_plan(spec, plan), self._solve(spec)
        own = self._solve(asked)
        if own.best is None:
            return self._none_fits(asked, own, "does_not_fit", best)
        return Explanation(
            title=spec.title,
            status="fits",
            fits=True,
            plan=own.best,
            cluster=own.cluster,
            slack=tuple(_slack(spec, own.best)),
            gap=_gap(own.best, best.best) if best.best else None,
            best=best,
            helps=tuple(self._helps(asked, plan, own.best)),
        )

    def _solve(self, spec: Spec, is_by_kind: bool = False) -> Outcome:
        return solve(spec, replace(self._options, is_by_kind=is_by_kind))

    def _none_fits(
        self, spec: Spec, outcome: Outcome, status: Verdict, best: Outcome | None
    ) -> Explanation:
        """Return what conflicts in a spec without a plan, and what would mend it."""
        miss = outcome.near_miss
        fixed = fixed_in(spec)
        witness = miss.description if miss else ""
        conflict = smallest_conflict(spec, fixed, self._is_possible, witness)
        best_s = best.best.step_s if best and best.best else None
        needed_gib = miss.memory.total_gib if miss and miss.memory else None
        return Explanation(
            title=spec.title,
            status=status,
            fits=False,
            broken_rules=miss.broken_rules if miss else (),
            memory=miss.memory if miss else None,
            cluster=outcome.cluster,
            nearest=miss.plan if miss else None,
            conflict=conflict,
            repairs=tuple(
                repairs(spec, fixed, conflict, self._solve, best_s, needed_gib)
            ),
            best=best,
        )

    def _is_possible(self, spec: Spec) -> bool:
        if needs_solve(spec) or spec.cluster.parts:
            return self._solve(spec).best is not None
        return has_room(make_job(spec))

    def _helps(self, asked: Spec, plan: Pins, own: PricedPlan) -> Iterator[Change]:
        """Yield what each field of the plan brings if it is left open, best first."""
        changes = []
        for name in (name for name, value in plan if value is not None):
            best = self._solve(without(asked, [f"pins.{name}"])).best
            if best is not None and best.step_s < own.step_s * (1 - 1e-9):
                edit = chosen(asked, f"pins.{name}", best.plan)
                changes.append(Change(change=edit, step_s=best.step_s))
        yield from sorted(changes, key=lambda change: change.step_s or 0.0)


def _gap(plan: PricedPlan, best: PricedPlan) -> Gap:
    """Return what a plan takes longer than the best, part by part."""
    names = dict.fromkeys([*plan.time_parts, *best.time_parts])
    terms = {
        name: plan.time_parts.get(name, 0.0) - best.time_parts.get(name, 0.0)
        for name in names
    }
    return Gap(terms=terms, step_s=plan.step_s - best.step_s)


def _slack(spec: Spec, plan: PricedPlan) -> Iterator[Slack]:
    """Yield how far a plan is from what limits it."""
    tightest = min(plan.stages, key=lambda stage: stage.usable_gib - stage.total_gib)
    yield Slack(
        rule="memory",
        sentence="the fullest GPU has room left",
        have=tightest.usable_gib,
        need=tightest.total_gib,
        unit="GiB",
    )
    if any(stage.host_gib for stage in plan.stages):
        on_host = max(stage.host_gib for stage in plan.stages)
        yield Slack(
            rule="host_memory",
            sentence="the fullest host has room left",
            have=spec.usable_host_gib,
            need=on_host * spec.cluster.gpus_per_host,
            unit="GiB",
        )
    yield Slack(
        rule="link_utilisation",
        sentence="the busiest link is idle for the rest of the step",
        have=spec.limits.max_link_utilisation or 1.0,
        need=plan.link_utilisation,
        unit="of the step",
    )
