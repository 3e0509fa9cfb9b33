"""Explains a spec, or a plan on it: why it wins, or the conflict and its repairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter

from meshwright.check.check import checked
from meshwright.cost.job import Job, make_job
from meshwright.deadline import NEVER, Deadline, Interrupt, OutOfTime
from meshwright.errors import UndecidedError
from meshwright.explanations.compare import gap_to_best
from meshwright.explanations.conflict import (
    Infeasibility,
    analyse_infeasibility,
    any_skeleton_fits,
    solve_only_decisions,
)
from meshwright.explanations.decisions import (
    HOST_MEMORY,
    LIMITS,
    MEMORY,
    NOTICED,
    edit_to_plan,
    with_pins,
    without_decisions,
)
from meshwright.explanations.degrees import DegreeComparison, best_at
from meshwright.explanations.framework_rules import explained_conflict
from meshwright.explanations.judged_plan import (
    judged_miss,
    judged_plan,
    nearest_plan,
    slack,
    standing,
)
from meshwright.explanations.levers import levers_beside
from meshwright.explanations.marginal_values import (
    MORE,
    binding,
    bolder_plans,
    marginal_values,
    near_decisions,
    rule_prices,
    without_each,
    worth_other_plans,
)
from meshwright.explanations.published import with_published
from meshwright.explanations.repairs import (
    OF_NUMBERS,
    plan_repairs,
    repairs,
    with_prices,
)
from meshwright.planner.compute_bound import Wanted, compute_bound
from meshwright.planner.families import Prepared, prepare
from meshwright.planner.options import PROVEN_WITHIN, Options
from meshwright.planner.plans import rounding_s
from meshwright.planner.solve import roomiest_gib, solve, told_kinds
from meshwright.plans.plan import Plan
from meshwright.results.explanation import (
    Change,
    Explanation,
    NearestPlan,
    Slack,
    Verdict,
)
from meshwright.results.outcome import NearMiss, Outcome
from meshwright.results.outcome_parts import PricedLever, Repair
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.plan_fields import Pins
from meshwright.spec.spec import Spec

ANSWERED = "answered; comparing with other plans, training and hardware"
"""Progress once the verdict, its reason and the nearest plan are known."""

MOST_LISTED_AGAIN = 10**9
"""Skeletons of the largest lattice that is listed again for every changed spec."""

LIKELY = 1.25
"""Share of the present time for a token within which a changed spec is solved first."""


class Explainer:
    """Explains specs and plans with one profile and one seed."""

    def __init__(self, options: Options, deadline: Deadline = NEVER) -> None:
        """Keep the options; the tolerance is for the spec's recommended plan alone.

        Conflicts and repairs are looked for until the deadline.
        """
        self._deadline = deadline
        self._say = options.on_progress
        self._recommending = replace(options, on_progress=_say_nothing)
        self._options = replace(self._recommending, tolerance=0.0)

    def spec(self, spec: Spec) -> Explanation:
        """Return why the fastest plan of a spec wins, or why there is none."""
        spec = self._options.profile.applied_to(spec)
        prepared = self._prepared(spec)
        options = replace(
            self._recommending,
            is_safety=True,
            is_by_kind=prepared is None,
            kinds_within=PROVEN_WITHIN,
        )
        outcome = with_published(solve(spec, options, prepared), spec, self._options)
        best = outcome.best
        if best is None:
            return self._none_fits(spec, outcome, "infeasible", None)
        explanation = Explanation(
            title=spec.title,
            status=outcome.status,
            fits=True,
            plan=best,
            judged=judged_plan(spec, best.plan),
            cluster=outcome.cluster,
            slack=self._slack(spec, best),
            levers=levers_beside(spec, outcome, self._options.profile),
            best=outcome,
        )
        levers = worth_other_plans(explanation.levers, best.plan)
        return self._with(
            explanation, lambda: self._prices(spec, outcome, prepared, levers)
        )

    def mended(self, spec: Spec, outcome: Outcome) -> Outcome:
        """Return an outcome without a plan, with its conflict and cheapest repair.

        Where the time is up first, it stays as it is.
        """
        spec, miss = self._options.profile.applied_to(spec), outcome.near_miss

        def whole() -> Outcome:
            try:
                found, repairs = self._conflict_and_repairs(spec, miss, None)
                self._deadline.check()
            except (OutOfTime, UndecidedError):
                return outcome
            conflict = explained_conflict(spec, found, miss)
            told = {"conflict": conflict, "repair": repairs[0] if repairs else None}
            return outcome.model_copy(update=told)

        return self._options.interrupt.unless_asked(whole, outcome)

    def _prices(
        self,
        spec: Spec,
        outcome: Outcome,
        prepared: Prepared | None,
        levers: Sequence[PricedLever],
    ) -> dict[str, object]:
        """Return why the fastest plan has its degrees, and the gains of changes.

        What changes gain is told of the recommended plan, and of the one that is
        recommended then.
        """
        best, told = outcome.optimum, outcome.best
        assert best
        assert told
        comparison = DegreeComparison.of(spec, outcome, prepared)
        found = best_at(spec, comparison.parts(), outcome, prepared, self._brief)
        if prepared is not None:
            kinds = told_kinds(prepared, found, self._options.interrupt)
            outcome = outcome.model_copy(update={"by_kind": tuple(kinds)})
        freed = without_each(spec, partial(self._solve_near, told))
        return {
            "best": outcome,
            "degrees": comparison.reasons(found),
            "binding": tuple(binding(freed, told)),
            "marginal_values": (
                *rule_prices(freed),
                *marginal_values(
                    spec, prepared, partial(self._worth, told, prepared), levers
                ),
                *bolder_plans(spec, outcome),
            ),
            **near_decisions(self._options, told.plan, best, prepared),
        }

    def plan(self, spec: Spec, plan: Pins) -> Explanation:
        """Return whether a plan fits a spec, its loss if so, and else its repairs.

        Fields that the plan leaves open are optimised.
        """
        spec = self._options.profile.applied_to(spec)
        prepared = self._prepared(spec)
        asked, best = with_pins(spec, plan), solve(spec, self._recommending, prepared)
        outcome = solve(asked, self._options)
        priced = outcome.best
        if priced is None:
            told = self._none_fits(asked, outcome, "does_not_fit", best)
            is_hopeless = best.status == "infeasible" and not told.repairs
            return self._with_reasons_alone(spec, told, best) if is_hopeless else told
        explanation = Explanation(
            title=spec.title,
            status="fits",
            fits=True,
            plan=priced,
            judged=judged_plan(asked, priced.plan),
            cluster=outcome.cluster,
            slack=self._slack(asked, priced),
            levers=levers_beside(asked, outcome, self._options.profile),
            gap=gap_to_best(priced, best.optimum) if best.optimum else None,
            best=best,
        )
        return self._with(
            explanation,
            lambda: {
                "standing": standing(self._job(spec), priced),
                "helps": tuple(self._open_fields(asked, plan, priced)),
                **near_decisions(
                    self._options,
                    priced.plan,
                    best.optimum,
                    prepared,
                ),
            },
        )

    def _with_reasons_alone(
        self, spec: Spec, told: Explanation, alone: Outcome
    ) -> Explanation:
        """Return an explanation with why the spec has no plan without --plan either."""
        if told.is_stopped:
            return told

        def alone_reasons() -> dict[str, object]:
            reasons = self._reasons(spec, alone.near_miss, None)
            renamed = {"conflict_alone": reasons.pop("conflict", None)}
            return {**reasons, **renamed, "nearest_plan": None}

        return self._with(told, alone_reasons)

    def _with(
        self, explanation: Explanation, more: Callable[[], dict[str, object]]
    ) -> Explanation:
        """Return the explanation with more fields, unless an interrupt comes first."""

        def whole() -> Explanation:
            if explanation.fits:
                self._say(ANSWERED)
            return explanation.model_copy(update=more())

        stopped = explanation.model_copy(update={"is_stopped": True})
        return self._options.interrupt.unless_asked(whole, stopped)

    def _prepared(self, spec: Spec) -> Prepared | None:
        if spec.cluster.parts:
            return None
        most_gib = max(MORE * spec.usable_gib, roomiest_gib(spec))
        job = self._options.profile.job(spec)
        return prepare(job, most_gib)

    def _solve_briefly(self, spec: Spec, prepared: Prepared | None = None) -> Outcome:
        return self._solve_in_time(spec, self._of_change, prepared)

    def _solve_in_time(
        self, spec: Spec, options: Options, prepared: Prepared | None = None
    ) -> Outcome:
        self._deadline.check()
        left_s = min(self._options.time_limit_s, self._deadline.left_s)
        return solve(spec, replace(options, time_limit_s=left_s), prepared)

    def _recommend_briefly(self, spec: Spec) -> Outcome:
        """Return the outcome of a changed spec, whose best plan is the one to run."""
        return self._solve_in_time(spec, self._to_recommend)

    @property
    def _brief(self) -> Options:
        return replace(self._options, is_brief=True, interrupt=Interrupt())

    @property
    def _of_change(self) -> Options:
        """Return the options of solves of changed specs: no near miss is told."""
        return replace(self._brief, has_near_miss=False)

    @property
    def _to_recommend(self) -> Options:
        """Return the options of solves of changed specs for the plan to run then."""
        asked = self._recommending
        return replace(
            self._of_change, tolerance=asked.tolerance, is_doubted=asked.is_by_doubt
        )

    def _solve_near(
        self, plan: PricedPlan, spec: Spec, prepared: Prepared | None = None
    ) -> Outcome:
        """Return what is recommended for a changed spec; `plan` is what is before it.

        Where it still fits, plans slower than it need not be looked at. Where it does
        not, plans are first looked for that take little longer for as many tokens.
        """
        if spec.cluster.parts:
            return self._recommend_briefly(spec)
        job = prepared.job if prepared else self._options.profile.job(spec)
        options, takes_s = self._to_recommend, self._takes_s
        reach = 1 + options.tolerance
        known_s = reach * known_step_s(job, plan.plan, takes_s)
        if prepared is not None:
            is_known = math.isfinite(known_s)
            start = prepared.against(known_s) if is_known else prepared
            return solve(spec, replace(options, known_s=known_s), start)
        if math.isfinite(known_s):
            return self._solve_within(job, known_s)
        tokens = spec.training.global_batch * spec.training.seq_len
        more = tokens / spec.cluster.gpus / plan.tokens_per_s_per_gpu / plan.step_s
        likely_s = LIKELY * more * takes_s(plan)
        found = self._solve_within(job, reach * likely_s)
        is_likely = found.best is not None and takes_s(found.best) <= likely_s
        return found if is_likely else self._solve_within(job, math.inf)

    def _takes_s(self, plan: PricedPlan) -> float:
        """Return the seconds by which plans are compared when one is recommended."""
        return plan.takes_s(is_doubted=self._to_recommend.is_doubted)

    def _worth(
        self,
        best: PricedPlan,
        whole: Prepared | None,
        changed: Spec,
        prepared: Prepared | None,
    ) -> Outcome:
        """Return the outcome of a changed spec, on a large lattice of a part of it.

        What needs another lattice is then asked of plans with the same TP and PP, if
        they divide the GPUs: the fastest of them is no more than feasible.
        """
        is_large = whole is not None and whole.lattice.skeletons > MOST_LISTED_AGAIN
        same = {"tp": best.plan.tp, "pp": best.plan.pp}
        is_whole = changed.cluster.gpus % math.prod(same.values()) == 0
        if is_large and is_whole and prepared is None:
            part = self._solve_near(best, with_pins(changed, Pins.model_validate(same)))
            if part.best is not None:
                return part.model_copy(update={"status": "feasible"})
        return self._solve_near(best, changed, prepared)

    def _solve_within(self, job: Job, most_s: float) -> Outcome:
        """Return the outcome of a job, of whose plans slower ones do not count."""
        wanted = None
        if math.isfinite(most_s):
            wanted = Wanted(compute_bound(job, [job.spec.cluster]), most_s)
        prepared = prepare(job, is_wanted=wanted)
        return solve(job.spec, replace(self._to_recommend, known_s=most_s), prepared)

    def _job(self, spec: Spec) -> Job:
        return make_job(spec, self._options.profile.efficiency(spec))

    def _slack(self, spec: Spec, plan: PricedPlan) -> tuple[Slack, ...]:
        return () if spec.cluster.parts else slack(self._job(spec), plan)

    def _none_fits(
        self, spec: Spec, outcome: Outcome, status: Verdict, best: Outcome | None
    ) -> Explanation:
        """Return why a spec has no plan, or that it is unknown whether it has one."""
        miss = outcome.near_miss
        explanation = Explanation(
            title=spec.title,
            status=status,
            fits=False,
            judged=judged_miss(spec, miss),
            broken_rules=miss.broken_rules if miss else (),
            memory=miss.memory if miss else None,
            cluster=outcome.cluster,
            nearest=miss.plan if miss else None,
            best=best,
        )
        if outcome.status == "unknown":
            told = {"status": "unknown", "left_open": outcome.left_open}
            return explanation.model_copy(update=told)
        best_s = best.optimum.step_s if best and best.optimum else None
        return self._with(explanation, lambda: self._reasons(spec, miss, best_s))

    def _reasons(
        self, spec: Spec, miss: NearMiss | None, best_s: float | None
    ) -> dict[str, object]:
        """Return the conflict in a spec without a plan, its repairs, a near plan."""
        try:
            found, priced = self._conflict_and_repairs(spec, miss, best_s)
        except UndecidedError as undecided:
            return {"is_stopped": True, "left_open": str(undecided)}
        return {
            "conflict": explained_conflict(spec, found, miss),
            "repairs": tuple(priced),
            "nearest_plan": nearest_plan(spec, priced)
            or self._nearest_within_limits(spec, found, best_s),
        }

    def _conflict_and_repairs(
        self, spec: Spec, miss: NearMiss | None, best_s: float | None
    ) -> tuple[Infeasibility, list[Repair]]:
        """Return the conflict in a spec without a plan, and its repairs, best first.

        Raises:
            UndecidedError: a solve that decides whether there is a plan was stopped.
        """
        found = analyse_infeasibility(spec, self._has_plan)
        mended = plan_repairs(spec, found, self._recommend_briefly)
        self._say(ANSWERED)
        mended += self._repairs(spec, found, miss)
        if not mended:
            brief = self._recommend_briefly
            mended = [*repairs(spec, None, brief, self._has_plan, OF_NUMBERS)]
        return found, with_prices(mended, best_s)

    def _nearest_within_limits(
        self, spec: Spec, infeasibility: Infeasibility, best_s: float | None
    ) -> NearestPlan | None:
        """Return the nearest plan where it takes less to give up a limit."""
        limits = [name for name in infeasibility.decisions.names if name in LIMITS]
        if not limits:
            return None
        found = plan_repairs(spec, infeasibility, self._recommend_briefly, limits)
        return nearest_plan(spec, with_prices(found, best_s))

    def _repairs(
        self, spec: Spec, infeasibility: Infeasibility, miss: NearMiss | None
    ) -> list[Repair]:
        """Return the repairs that change more than the plan."""
        capacities = infeasibility.decisions.bits([MEMORY, HOST_MEMORY])
        if not infeasibility.conflict & capacities:
            return []
        needed_gib = miss.memory.total_gib if miss and miss.memory else None
        return [*repairs(spec, needed_gib, self._recommend_briefly, self._has_plan)]

    def _has_plan(self, spec: Spec) -> bool:
        self._deadline.check()
        if solve_only_decisions(spec) or spec.cluster.parts:
            outcome = self._solve_briefly(spec)
            if outcome.status == "unknown":
                raise UndecidedError(outcome.left_open)
            return outcome.best is not None
        return any_skeleton_fits(spec)

    def _open_fields(
        self, asked: Spec, plan: Pins, priced: PricedPlan
    ) -> Iterator[Change]:
        """Yield the fields of a plan that gain if they are left open, best first.

        They change to what is recommended then, or to the fastest where that alone is
        faster than the plan. Micro-batches follow them, which the batch decides.
        """
        changes, most_s = [], priced.step_s * NOTICED
        for name in (name for name, value in plan if value is not None):
            freed = without_decisions(asked, [f"pins.{name}", "pins.microbatches"])
            best = self._solve_briefly(freed).best
            if best is not None and best.step_s < most_s:
                told = self._recommend_briefly(freed).best
                best = told if told and told.step_s < most_s else best
                edit = edit_to_plan(asked, f"pins.{name}", best.plan)
                moved = _moved(plan, priced.plan, best.plan)
                beside = tuple(one for one in moved if not one.startswith(f"{name}="))
                changes.append(Change(change=edit, beside=beside, step_s=best.step_s))
        yield from sorted(changes, key=attrgetter("step_s"))


def _moved(asked: Pins, before: Plan, after: Plan) -> Iterator[str]:
    """Yield the open degrees in which plans differ, without those left to data.

    Micro-batches are among them where they were given: they follow the batch.
    """
    open_degrees = [n for n in ("tp", "pp", "cp", "ep") if getattr(asked, n) is None]
    given = ["microbatches"] if asked.microbatches is not None else []
    for name in (*open_degrees, *given):
        new = getattr(after, name)
        if new != getattr(before, name):
            yield f"{name}={new}"


def _say_nothing(_text: str) -> None:
    """Keep single solves quiet, since one explanation makes many."""


def known_step_s(
    job: Job,
    plan: Plan,
    takes_s: Callable[[PricedPlan], float] = attrgetter("step_s"),
) -> float:
    """Return a step time that the best plan of a job does not exceed.

    It is the step time of a plan of the job before a change, with micro-batches scaled
    like the batch; infinite if that plan breaks a rule of the job. It counts as
    `takes_s` says.
    """
    per_step = plan.dp * plan.micro_batch
    batch = job.spec.training.global_batch
    if batch % per_step or plan.world_size != math.prod(job.fabric.sizes):
        return math.inf
    plan = plan.model_copy(update={"microbatches": batch // per_step})
    priced, broken = checked(job, plan)
    return math.inf if broken else takes_s(priced) + rounding_s(job, plan)
