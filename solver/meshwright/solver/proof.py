"""From one lattice to its outcome: bounds, proof, check."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version

import numpy as np

from meshwright import __version__
from meshwright.bounds.branch_and_bound import Pruned, prune
from meshwright.bounds.candidates import Candidates
from meshwright.bounds.families import Kin
from meshwright.bounds.integer_costs import TICK_S, rounding_error_s, seconds
from meshwright.bounds.upper import real_split
from meshwright.check.check import checked, predict, schedule_s
from meshwright.cost.job import Job
from meshwright.cpsat.problem import LARGEST_HORIZON, Pairs, Proof
from meshwright.cpsat.prove import prove, with_unique_split
from meshwright.deadline import Deadline
from meshwright.errors import InternalError, SpecError
from meshwright.lattice.lattice import Lattice
from meshwright.plans.columns import joined
from meshwright.plans.encoding import to_plan, to_row
from meshwright.plans.plan import Plan
from meshwright.plans.skeletons import Skeletons
from meshwright.results.outcome import (
    Band,
    Certificate,
    NearMiss,
    Outcome,
    Rival,
    RunnerUp,
    Status,
)
from meshwright.results.priced_plan import PricedPlan
from meshwright.solver.cpsat_problem import (
    constructed,
    first_of_equals,
    make_problem,
    preference,
)
from meshwright.solver.nearest_miss import describe, nearest_miss
from meshwright.solver.options import Options
from meshwright.solver.sequential_proof import prove_in_turn

MOST_RIVALS = 16
"""Survivors that are walked through the schedule's task graph, fastest first."""


ORDERS_OPEN = (
    "Left open are orders of GPUs in which no group of ranks pays less: one of them "
    "may load links more evenly, and so keep the limit on them with a faster plan."
)


@dataclass(frozen=True)
class Run:
    """One lattice on its way to an outcome."""

    job: Job
    lattice: Lattice
    options: Options
    deadline: Deadline
    kin: Kin | None = None
    """The families of the lattice, if they are known."""
    floor: float = 0.0
    """Ticks below which no plan gets, as is known beforehand."""

    def outcome(self) -> Outcome:
        """Return the best plans of the lattice with their certificate, or why none is.

        Raises:
            SpecError: steps take days.
            InternalError: the checker disagrees with the solver about a plan.
        """
        options = self.options
        pruned = prune(
            self.job,
            self.lattice,
            options.top,
            0 if options.is_brief else 1,
            self.deadline,
            options.on_progress,
            options.is_pruning,
            self.kin,
        )
        self._refuse_endless(pruned.candidates)
        options.on_progress(f"proving among {pruned.counts.survivors:,} skeletons")
        found = self._best_plans(pruned.candidates)
        if not found:
            return self._no_plan(pruned)
        plans = [plan for plan, _ in found]
        proof = found[0][1]
        bound = max(min(proof.bound, pruned.open_bound), self.floor)
        bound = min(bound, proof.ticks)
        is_optimal = bound == proof.ticks
        return self._outcome(
            "optimal" if is_optimal else "feasible",
            best=plans[0],
            others=tuple(plans[1:]),
            **self._how_sure(pruned.candidates, plans[0]),
            certificate=Certificate(
                bound_s=seconds(bound),
                gap=1 - bound / proof.ticks,
                rounding_s=self._rounding_s(plans[0].plan),
                counts=pruned.counts,
                seed=options.seed,
                left_open="" if is_optimal else self._left_open(),
            ),
        )

    def _left_open(self) -> str:
        """Return what a proof leaves open, in a sentence."""
        if self.deadline.has_passed:
            return "It was stopped before all plans were looked at."
        if self.lattice.table.has_choice and self.job.spec.limits.max_link_utilisation:
            return ORDERS_OPEN
        return "Its effort was spent before all plans were proven slower."

    def _how_sure(self, left: Candidates, best: PricedPlan) -> dict[str, object]:
        """Return what else might be the best plan, if that is asked for."""
        if self.options.is_brief:
            return {}
        return {
            "rival": self._rival(left, best),
            "band": self._band(),
            "runner_up": self._runner_up(left, best),
        }

    def _refuse_endless(self, candidates: Candidates) -> None:
        """Refuse specs whose steps take days: their times do not fit the solver.

        Raises:
            SpecError: even the fastest skeleton is bounded by more than the horizon.
        """
        if len(candidates.floor) and candidates.floor.min() > LARGEST_HORIZON:
            days = seconds(LARGEST_HORIZON) / 86_400
            raise SpecError(
                f"{self.job.spec.title}: every plan takes more than {days:.1f} days a "
                "step; check peak_tflops, memory_gb_s, gb_s and global_batch"
            )

    def _best_plans(self, left: Candidates) -> list[tuple[PricedPlan, Proof]]:
        """Return the best plans, each proven among what the ones before leave."""
        left = left.take(preference(left.costs.rows))
        left = left.take(first_of_equals(self.job, left))
        found: list[tuple[PricedPlan, Proof]] = []
        while len(left.lower) and len(found) < self.options.top:
            proof = self._prove(left)
            if proof.status not in ("optimal", "feasible"):
                break
            found.append((self._checked(left, proof), proof))
            taken = left.coarse[proof.skeleton]
            left = left.take(np.flatnonzero(left.coarse != taken))
        return found

    def _prove(self, left: Candidates) -> Proof:
        """Return the proof of the best plan among candidates, in their order."""
        if not self.options.is_pruning:
            return self._settled(left, self._prove_together(left))

        def prove_one(row: int) -> Proof:
            return self._prove_together(left.take(np.array([row])))

        bounds, settle = (left.lower, left.upper), partial(self._settled, left)
        return prove_in_turn(*bounds, prove_one, settle, self.deadline)

    def _prove_together(self, left: Candidates) -> Proof:
        """Return CP-SAT's proof, or the constructive plan where its time is up."""
        problem = make_problem(self.job, self.lattice, left)
        options = self.options
        own = (options.seed, options.workers, options.most_effort)
        proof = prove(problem, self.deadline, *own)
        best = float(left.upper.min())
        if proof.status != "unknown" or problem.hint is None or best > LARGEST_HORIZON:
            return proof
        index, split = problem.hint
        return Proof("feasible", index, split, int(best), float(left.lower.min()))

    def _settled(self, left: Candidates, proof: Proof) -> Proof:
        """Return a proof with the one split of its skeleton that wins among equals."""
        if proof.skeleton < 0:
            return proof
        row = np.array([proof.skeleton])
        problem = make_problem(self.job, self.lattice, left.take(row))
        options, alone = self.options, replace(proof, skeleton=0)
        own = with_unique_split(
            problem, alone, self.deadline, options.seed, options.workers
        )
        return replace(own, skeleton=proof.skeleton)

    def _checked(self, candidates: Candidates, proof: Proof) -> PricedPlan:
        """Return a proven plan re-scored in floats.

        Raises:
            InternalError: it breaks a rule, or its time is not what was proven.
        """
        plan = self._plan(candidates, proof.skeleton, proof.split)
        priced, broken = checked(self.job, plan)
        if broken:
            raise InternalError(f"{plan} was proven but breaks {broken[0].rule}")
        off_s = abs(priced.step_s - seconds(proof.ticks))
        if off_s > self._rounding_s(plan):
            raise InternalError(f"{plan}: checked {off_s:.3g} s off what was proven")
        return priced

    def _plan(self, candidates: Candidates, row: int, split: Pairs) -> Plan:
        rows = candidates.costs.rows.take(np.array([row]))
        layers, recomputed = np.array(split, dtype=np.int64).T
        own = real_split(self.job, rows, layers, recomputed)
        return to_plan(rows, 0, own, self.lattice.place(rows), self._gpus(rows))

    def _gpus(self, rows: Skeletons) -> list[str]:
        """Return the GPUs of each stage of one row, where they differ."""
        names = [kind.spec.cluster.topology.gpu.name for kind in self.job.kinds]
        if not names:
            return []
        return [names[kind] for kind in self.job.kind_of_stage(int(rows.pp[0]))]

    def _rounding_s(self, plan: Plan) -> float:
        return rounding_error_s(self.job.spec.model.n_layers, plan.pp, plan.vpp)

    def _rival(self, survivors: Candidates, best: PricedPlan) -> Rival | None:
        """Return the survivor that the task graph puts before the best, if any.

        Only survivors within the gap between closed form and task graph can be.
        """
        gap_s = abs(best.step_s - best.schedule_s)
        horizon = (best.step_s + gap_s) / TICK_S
        order = np.argsort(survivors.upper, kind="stable")[:MOST_RIVALS]
        rivals = []
        for row in order[survivors.upper[order] <= horizon]:
            plan = self._plan(
                survivors, int(row), constructed(self.job, survivors, int(row))
            )
            walked_s = schedule_s(self.job, plan)
            if walked_s < best.schedule_s * (1 - 1e-9):
                rivals.append(Rival(plan=plan, schedule_s=walked_s))
        return min(rivals, key=lambda rival: rival.schedule_s, default=None)

    def _band(self) -> Band | None:
        """Return how far predictions for such a spec lay from measured runs."""
        known = self.options.profile.errors(self.job.spec)
        if known is None:
            return None
        whose, errors = known
        return Band(
            runs_of=whose, runs=errors.rows, median=errors.median, p90=errors.p90
        )

    def _runner_up(self, left: Candidates, best: PricedPlan) -> RunnerUp | None:
        """Return the next plan that is built, of another time than the best."""
        order = np.argsort(left.upper, kind="stable")
        for row in order[np.isfinite(left.upper[order])].tolist():
            plan = self._plan(left, row, constructed(self.job, left, row))
            step_s, _ = predict(self.job, plan)
            if step_s > best.step_s + self._rounding_s(plan):
                both = joined([self._row(best.plan), self._row(plan)])
                is_simpler = int(preference(both)[0]) == 1
                return RunnerUp(plan=plan, step_s=step_s, is_simpler=is_simpler)
        return None

    def _row(self, plan: Plan) -> Skeletons:
        return to_row(self.job.fabric, plan)[0]

    def _no_plan(self, pruned: Pruned) -> Outcome:
        if np.isfinite(pruned.open_bound):
            return self._outcome("unknown")
        return self._outcome("infeasible", near_miss=self._near_miss(pruned.candidates))

    def _near_miss(self, left: Candidates) -> NearMiss:
        """Return the nearest miss; what memory admits breaks a pin or a limit."""
        if not len(left.lower):
            return nearest_miss(self.job, self.lattice)
        row = int(np.argmin(left.floor))
        split = constructed(self.job, left, row)
        return describe(self.job, self._plan(left, row, split))

    def _outcome(self, status: Status, **fields: object) -> Outcome:
        return Outcome.model_validate(
            {
                "status": status,
                "cluster": self.job.spec.cluster,
                "capacity_gib": self.job.spec.usable_gib,
                "gpus": int(np.prod(self.job.fabric.sizes)),
                "versions": {"meshwright": __version__, "ortools": version("ortools")},
                **fields,
            }
        )
