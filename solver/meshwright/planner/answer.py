"""The answer from the rows of one spec: bounds, the model, proofs, the near set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version

import numpy as np

from meshwright import __version__
from meshwright.check.check import predict, schedule_s
from meshwright.cost.job import Job
from meshwright.deadline import Deadline
from meshwright.errors import SpecError
from meshwright.planner.candidates import Candidates, Pruned
from meshwright.planner.families import Families
from meshwright.planner.integer_costs import TICK_S, seconds
from meshwright.planner.model import ANY_SPLIT
from meshwright.planner.narrow import Window, prune
from meshwright.planner.nearest_miss import describe, nearest_miss
from meshwright.planner.options import Options
from meshwright.planner.pipeline import LARGEST_HORIZON, Proof
from meshwright.planner.plans import Plans, rounding_s
from meshwright.planner.prove import NO_PLAN
from meshwright.planner.rows import Lattice
from meshwright.planner.rule_cuts import RuleEffort, first_plan_prices
from meshwright.plans.columns import Ints
from meshwright.plans.plan import Plan
from meshwright.plans.simplicity import (
    WHOLE,
    complexity,
    names_of_techniques,
    percents,
)
from meshwright.results.outcome import (
    Certificate,
    NearMiss,
    Outcome,
    Rival,
    RunnerUp,
)
from meshwright.results.outcome_parts import (
    NearDecision,
    NearPlan,
    NearPlans,
    NearValue,
    Simplicity,
    SolvedModel,
)
from meshwright.results.priced_plan import PricedPlan
from meshwright.results.result import Status
from meshwright.rules.user_rules import split_dependent
from meshwright.spec.goals import BEYOND_RUNS
from meshwright.spec.plan_fields import FIELDS

MOST_RIVALS = 16
"""Survivors whose schedule is computed on its task graph, fastest first."""

STOPPED = "It was stopped before all plans were looked at."

ORDERS_OPEN = (
    "Not proven: some placements of ranks on GPUs were not tried. None of them makes "
    "any group's links faster, but one may load links more evenly, so that a faster "
    "plan keeps the limit on links."
)


@dataclass(frozen=True)
class LatticeProof:
    """The proof of the best plans of one lattice."""

    job: Job
    lattice: Lattice
    options: Options
    deadline: Deadline
    families: Families
    known_bound: float = 0.0
    """Lower bound on the ticks of every plan that is known beforehand."""

    def outcome(self) -> Outcome:
        """Return the best plans of the lattice with their certificate, or why none is.

        Raises:
            SpecError: steps take days.
            InternalError: the checker disagrees with the solver about a plan.
        """
        options = self.options
        window = Window(
            best=options.top,
            spare=0 if options.is_brief or split_dependent(self.job.spec) else 1,
            known=options.known_ticks * self._unit,
            reach=1 + max(0.0 if self._is_apart else self._tolerance, self._near),
            has_dominated=self._near > 0,
            is_doubted=self._is_doubted,
            leaves_few=not options.is_brief,
            find_plans=self._find_plans,
        )
        pruned = self._pruned(window)
        fitting = pruned.candidates.take(np.flatnonzero(pruned.candidates.fits))
        self._refuse_endless(fitting)
        options.on_progress(f"proving among {pruned.counts.survivors:,} plans")
        rows, open_price = self._with_recommended(pruned)
        plans = Plans.of(*self._asked, rows)
        proof = NO_PLAN
        if len(plans):
            search = plans.search
            proof = search.recommended() if self._is_doubted else search.fastest()
        if not proof.has_plan:
            shown = self._shown(plans) if len(plans) else None
            outcome = self._no_plan(fitting, min(proof.bound, pruned.open_bound))
            return outcome.model_copy(update={"solved_model": shown})
        fastest = plans.checked(proof)
        left = Plans(*self._asked, fitting.take(np.flatnonzero(~fitting.is_dominated)))
        scale = plans.search.price(proof) // proof.ticks if self._is_doubted else 1
        price = proof.ticks * scale
        bound = min(proof.bound * scale, pruned.open_bound)
        bound = min(max(bound, self.known_bound * self._unit), price)
        if price > options.known_ticks * self._unit:
            return self._no_plan(fitting, bound)
        is_optimal = bound == price
        cheapest = plans.search.recommended() if self._is_apart else proof
        simpler, is_simplest = self._recommended(plans, fastest, cheapest, open_price)
        is_simplest &= is_optimal and not self.deadline.has_passed
        near = self._near_plans(plans, fastest, proof.ticks, is_optimal)
        return self._outcome(
            "optimal" if is_optimal else "feasible",
            best=simpler or fastest,
            **({} if self._is_doubted else self._beside(simpler, fastest)),
            others=tuple(self._others(plans, proof)),
            solved_model=self._shown(plans),
            near=near,
            **({} if options.is_brief else alternatives(left, fastest)),
            certificate=Certificate(
                bound_s=seconds(bound / self._unit),
                gap=1 - bound / price,
                is_of_doubted=self._is_doubted,
                rounding_s=rounding_s(self.job, fastest.plan),
                counts=pruned.counts,
                seed=options.seed,
                left_open="" if is_optimal else self._left_open(),
                tolerance=self._tolerance,
                tolerance_from=options.tolerance_from if self._tolerance else "",
                is_simplest=is_simplest,
                doubt=self.job.spec.run_before.share
                if self._is_doubted or self._is_apart
                else 0.0,
            ),
        )

    def _beside(
        self, simpler: PricedPlan | None, fastest: PricedPlan
    ) -> dict[str, object]:
        """Return the fields on the fastest plan, where another is recommended."""
        if simpler is None:
            return {}
        return {"fastest": fastest, "simplicity": self._simplicity(simpler, fastest)}

    def _with_recommended(self, pruned: Pruned) -> tuple[Candidates, float]:
        """Return the candidates for the fastest plan and for the recommended one.

        The second result is a price below which time left no plan unbounded.
        """
        near = pruned.near
        if not self._is_apart or pruned.is_whole or not len(near):
            return near, pruned.open_bound if self._is_doubted else np.inf
        prices = near.upper * percents(self.job.spec, near.costs.rows)
        reach = 1 + self._tolerance
        known = reach * float(prices.min())
        again = self._pruned(
            Window(
                spare=0,
                known=known,
                reach=reach,
                is_doubted=True,
                leaves_few=False,
                find_plans=None if split_dependent(self.job.spec) else self._find_plans,
            )
        )
        both = Candidates.joined([near, again.near])
        pairs = np.stack([both.unplaced, both.costs.rows.mesh])
        _, first = np.unique(pairs, axis=1, return_index=True)
        return both.take(np.sort(first)), again.open_bound

    def _pruned(self, window: Window) -> Pruned:
        return prune(
            self.job,
            self.lattice,
            window,
            families=self.families,
            deadline=self.deadline,
            on_progress=self.options.on_progress,
            is_pruning=self.options.is_pruning,
        )

    @property
    def _is_doubted(self) -> bool:
        """Return whether all plans are compared by their doubted steps."""
        return self.options.is_doubted and self.job.spec.run_before.percent > 0

    @property
    def _is_apart(self) -> bool:
        """Return whether the recommended plan alone is found by its doubted step."""
        is_known = self.job.spec.run_before.percent > 0
        return self._tolerance > 0 and is_known and not self._is_doubted

    @property
    def _unit(self) -> int:
        """Return the price of a tick that is not doubted."""
        return WHOLE if self._is_doubted else 1

    @property
    def _tolerance(self) -> float:
        is_recommending = self.options.is_doubted or not self.options.is_brief
        return self.options.tolerance if is_recommending else 0.0

    @property
    def _near(self) -> float:
        return 0.0 if self.options.is_brief else self.options.near

    def _shown(self, plans: Plans) -> SolvedModel | None:
        """Return the model of the rows in words, if that is asked for."""
        if not self.options.shows_model or self.options.is_brief:
            return None
        from meshwright.planner.table import shown_model

        criteria = self.job.spec.objective.criteria if self._tolerance else ()
        return shown_model(plans.search.model, criteria)

    def _near_plans(
        self, plans: Plans, fastest: PricedPlan, ticks: int, is_optimal: bool
    ) -> NearPlans | None:
        """Return all plans near the fastest, if they are asked for."""
        if not self._near:
            return None
        self.options.on_progress("proving which plans are near the fastest")
        has_open_orders = bool(
            self.lattice.table.has_choice
            and self.job.spec.limits.max_link_utilisation is not None
        )
        is_whole = is_optimal and not has_open_orders and not self.deadline.has_passed
        return near_plans(plans, fastest, ticks, self._near, is_whole=is_whole)

    def _recommended(
        self, plans: Plans, fastest: PricedPlan, cheapest: Proof, open_price: float
    ) -> tuple[PricedPlan | None, bool]:
        """Return the recommended plan, if that is not the fastest.

        It is the simplest of those whose price is within the tolerance of the least.
        The second result says whether none is proven to be simpler.
        """
        if not self._tolerance:
            return None, True
        most = int(plans.search.price(cheapest) * (1 + self._tolerance))
        criteria = self.job.spec.objective.criteria
        proof, is_proven = plans.search.simplest(criteria, most)
        found = plans.checked(proof if proof.has_plan else cheapest)
        is_proven &= proof.has_plan and cheapest.status == "optimal"
        is_proven &= open_price > most
        is_simpler = self._complexity(found.plan) < self._complexity(fastest.plan)
        is_surer = found.doubted_s < fastest.doubted_s
        return (found if is_simpler or is_surer else None), is_proven

    def _complexity(self, plan: Plan) -> tuple[int, ...]:
        spec = self.job.spec
        return complexity(spec, plan, spec.objective.criteria)

    def _simplicity(self, best: PricedPlan, fastest: PricedPlan) -> Simplicity:
        """Return how a plan is simpler than the fastest one, or nearer to what was run.

        A plan that is less doubted than the fastest may be less simple by the criteria
        of the user.
        """
        ours, other = map(self._complexity, (best.plan, fastest.plan))
        pairs = zip(self.job.spec.objective.criteria, ours, other, strict=True)
        differing = (name for name, one, two in pairs if one != two)
        return Simplicity(
            loss=best.step_s / fastest.step_s - 1,
            criterion=next(differing) if ours < other else BEYOND_RUNS,
            techniques=names_of_techniques(best.plan),
            fastest_techniques=names_of_techniques(fastest.plan),
        )

    def _left_open(self) -> str:
        """Return why the proof is incomplete, as a sentence."""
        if self.deadline.has_passed:
            return STOPPED
        if self._effort.is_spent:
            return self._effort.left_open(self.job.spec)
        if self.lattice.table.has_choice and self.job.spec.limits.max_link_utilisation:
            return ORDERS_OPEN
        return "Its effort was spent before all plans were proven slower."

    def _refuse_endless(self, candidates: Candidates) -> None:
        """Refuse specs whose steps take days: such times are too large for CP-SAT.

        Raises:
            SpecError: even the fastest skeleton is bounded by more than the horizon.
        """
        if len(candidates.floor) and candidates.floor.min() > LARGEST_HORIZON:
            days = seconds(LARGEST_HORIZON) / 86_400
            raise SpecError(
                f"{self.job.spec.title}: every plan takes more than {days:.1f} days a "
                "step; check peak_tflops, memory_gb_s, gb_s and global_batch"
            )

    def _others(self, plans: Plans, proof: Proof) -> Iterator[PricedPlan]:
        """Yield the plans after the best, each proven among those not yet taken."""
        for _ in range(self.options.top - 1):
            plans.leave_out(proof.row)
            proof = plans.search.fastest()
            if not proof.has_plan:
                return
            yield plans.checked(proof)

    def _find_plans(self, found: Candidates, wanted: int) -> dict[int, float]:
        return first_plan_prices(found, wanted, self._prove_one, self.deadline)

    def _prove_one(self, found: Candidates) -> Proof:
        """Return the proof of a candidate that stands alone."""
        return Plans(*self._asked, found).prove(0, ANY_SPLIT)

    @property
    def _asked(self) -> tuple[Job, Lattice, Options, Deadline, RuleEffort]:
        return self.job, self.lattice, self.options, self.deadline, self._effort

    @cached_property
    def _effort(self) -> RuleEffort:
        return RuleEffort.of(self.job.spec, is_brief=self.options.is_brief)

    def _no_plan(self, left: Candidates, bound: float) -> Outcome:
        known = self.options.known_ticks * self._unit
        if np.isfinite(bound) and bound <= known:
            return self._outcome("unknown", left_open=self._left_open())
        if np.isfinite(known) or not self.options.has_near_miss:
            return self._outcome("infeasible")
        return self._outcome("infeasible", near_miss=self._near_miss(left))

    def _near_miss(self, left: Candidates) -> NearMiss:
        """Return the nearest miss: a candidate that breaks a pin or limit."""
        if not len(left.lower):
            return nearest_miss(self.job, self.lattice)
        row = int(np.argmin(left.floor))
        plans = Plans(*self._asked, left)
        return describe(self.job, plans.plan(row, plans.constructed(row)))

    def _outcome(self, status: Status, **fields: object) -> Outcome:
        return outcome_of(self.job, status, **fields)


def outcome_of(job: Job, status: Status, **fields: object) -> Outcome:
    """Return an outcome for a job, with the fields that every outcome has."""
    return Outcome.model_validate(
        {
            "status": status,
            "cluster": job.spec.cluster,
            "capacity_gib": job.spec.usable_gib,
            "gpus": int(np.prod(job.fabric.sizes)),
            "versions": {"meshwright": __version__, "ortools": version("ortools")},
            **fields,
        }
    )


def alternatives(left: Plans, best: PricedPlan) -> dict[str, object]:
    """Return the rival, the error band and the runner-up, as fields of an outcome."""
    told: dict[str, object] = {
        "rival": _rival(left, best),
        "band": left.options.profile.band(left.job.spec),
    }
    # Splits that are constructed may break rules of the user on splits.
    if not split_dependent(left.job.spec):
        told["runner_up"] = _runner_up(left, best)
    return told


def _rival(left: Plans, best: PricedPlan) -> Rival | None:
    """Return the survivor that is faster than the best on the task graph, if any.

    Only survivors within the gap between closed form and task graph can be faster.
    """
    gap_s = abs(best.step_s - best.schedule_s)
    horizon = (best.step_s + gap_s) / TICK_S
    upper = left.rows.upper
    order = np.argsort(upper, kind="stable")[:MOST_RIVALS]
    rivals = []
    for row in order[upper[order] <= horizon].tolist():
        plan = left.plan(row, left.constructed(row))
        if plan == best.plan:
            continue
        rival_s = schedule_s(left.job, plan)
        if rival_s < best.schedule_s * (1 - 1e-9):
            rivals.append(Rival(plan=plan, schedule_s=rival_s))
    return min(rivals, key=lambda rival: rival.schedule_s, default=None)


def _runner_up(left: Plans, best: PricedPlan) -> RunnerUp | None:
    """Return the fastest constructed plan that is slower than the best.

    Another mesh or split of layers alone does not make it another plan.
    """
    upper = left.rows.upper
    order = np.argsort(upper, kind="stable")
    for row in order[np.isfinite(upper[order])].tolist():
        plan = left.plan(row, left.constructed(row))
        if plan.brief == best.plan.brief:
            continue
        step_s, _ = predict(left.job, plan)
        if step_s > best.step_s + rounding_s(left.job, plan):
            spec = left.job.spec
            theirs, ours = (
                complexity(spec, candidate, spec.objective.criteria)
                for candidate in (plan, best.plan)
            )
            is_simpler = theirs < ours
            return RunnerUp(plan=plan, step_s=step_s, is_simpler=is_simpler)
    return None


def near_plans(
    plans: Plans,
    fastest: PricedPlan,
    fastest_ticks: int,
    within: float,
    *,
    is_whole: bool,
) -> NearPlans:
    """Return all plans within a share of the fastest.

    Plans that differ in mesh or split of layers alone count once. `is_whole` says
    whether no plan that is within was left out of the rows.
    """
    most_ticks = int(fastest_ticks * (1 + within))
    is_near = plans.rows.fits & (plans.rows.lower <= most_ticks)
    unplaced = plans.rows.unplaced
    found: list[_Found] = []
    for skeleton in np.unique(unplaced[is_near]):
        meshes = np.flatnonzero(is_near & (unplaced == skeleton))
        if _is_row_of(plans, int(meshes[0]), fastest.plan):
            row = int(meshes[0])
            one = _Found(row, fastest_ticks, fastest.plan, fastest.step_s)
            found.insert(0, one)
            continue
        other, is_known = _within(plans, meshes, most_ticks)
        is_whole &= is_known
        found += [other] if other else []
    # The sort is stable: the fastest plan stays first among plans of equal time.
    found.sort(key=lambda plan: plan.ticks)
    return NearPlans(
        within=within,
        count=len(found),
        is_proven=is_whole,
        decisions=tuple(_decisions(plans, found, fastest_ticks)),
        plans=tuple(
            NearPlan(plan=str(plan.plan), step_s=plan.step_s) for plan in found
        ),
    )


@dataclass(frozen=True)
class _Found:
    """A candidate within the limit, with its best known split."""

    row: int
    ticks: int
    plan: Plan
    step_s: float


def _is_row_of(plans: Plans, row: int, plan: Plan) -> bool:
    """Return whether a plan has all decisions of a row."""
    rows = plans.rows.costs.rows
    return all(
        int(getattr(rows, field.name)[row]) == field.encoded(getattr(plan, field.name))
        for field in FIELDS
    )


def _within(plans: Plans, meshes: Ints, most_ticks: int) -> tuple[_Found | None, bool]:
    """Return a skeleton on its best mesh and split, if that is within the limit.

    The second result is whether it is proven whether one is within. A constructed
    split that is within shows it; it is the best one known where effort or time is
    spent before a better one is proven.
    """
    upper, lower = plans.search.upper[meshes], plans.search.least[meshes]
    constructed, first = None, int(upper.argmin())
    if upper[first] <= most_ticks:
        row = int(meshes[first])
        plan = plans.plan(row, plans.constructed(row))
        constructed = _found(row, int(upper[first]), plan)
    best, is_known = constructed, True
    order = np.argsort(lower, kind="stable")
    for row, least in zip(meshes[order].tolist(), lower[order].tolist(), strict=True):
        limit = best.ticks if best else most_ticks + 1
        if least >= limit:
            break
        if plans.deadline.has_passed:
            is_known = False
            break
        proof = plans.search.prove(row, ANY_SPLIT, limit)
        if proof.has_plan and proof.ticks < limit:
            proof = plans.unique(row, ANY_SPLIT, proof)
            best = _found(row, proof.ticks, plans.plan(row, proof.split))
        if proof.is_open:
            is_known &= proof.bound > most_ticks
    return best, is_known or best is not None


def _found(row: int, ticks: int, plan: Plan) -> _Found:
    return _Found(row, ticks, plan, seconds(ticks))


def _decisions(
    plans: Plans, found: list[_Found], fastest_ticks: int
) -> Iterator[NearDecision]:
    """Yield the values of each decision over the plans, which are sorted by time."""
    rows = plans.rows.costs.rows.take(np.array([plan.row for plan in found], dtype=int))
    ticks = np.array([plan.ticks for plan in found])
    for field in FIELDS:
        codes = np.asarray(getattr(rows, field.name), dtype=np.int64)
        order = dict.fromkeys(codes.tolist())
        values = (
            NearValue(
                value=field.decoded(code),
                plans=int((codes == code).sum()),
                loss=float(ticks[codes == code].min() / fastest_ticks - 1),
            )
            for code in order
        )
        yield NearDecision(name=field.name, values=tuple(values))
