"""The proof of one lattice: bounds, CP-SAT, check, and the outcome."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version

import numpy as np

from meshwright import __version__
from meshwright.bounds.branch_and_bound import prune
from meshwright.bounds.candidates import Candidates
from meshwright.bounds.families import Families
from meshwright.bounds.integer_costs import TICK_S, rounding_error_s, seconds
from meshwright.bounds.upper_bounds import with_all_recomputed
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
)
from meshwright.results.priced_plan import PricedPlan
from meshwright.results.result import Status
from meshwright.solver.cpsat_problem import (
    constructed_split,
    first_of_equals,
    make_problem,
    preference,
)
from meshwright.solver.nearest_miss import describe, nearest_miss
from meshwright.solver.options import Options
from meshwright.solver.sequential_proof import prove_sequentially

MOST_RIVALS = 16
"""Survivors whose schedule is computed on its task graph, fastest first."""

ORDERS_OPEN = (
    "Left open are orders of GPUs in which no group of ranks pays less: one of them "
    "may load links more evenly, and so keep the limit on them with a faster plan."
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
        pruned = prune(
            self.job,
            self.lattice,
            options.top,
            0 if options.is_brief else 1,
            self.deadline,
            options.on_progress,
            options.is_pruning,
            self.families,
            options.known_ticks,
        )
        self._refuse_endless(pruned.candidates)
        options.on_progress(f"proving among {pruned.counts.survivors:,} skeletons")
        found = self._best_plans(pruned.candidates)
        if not found:
            return self._no_plan(pruned.candidates, pruned.open_bound)
        best, proof = found[0]
        bound = max(min(proof.bound, pruned.open_bound), self.known_bound)
        bound = min(bound, proof.ticks)
        if proof.ticks > options.known_ticks:
            return self._no_plan(pruned.candidates, bound)
        is_optimal = bound == proof.ticks
        return self._outcome(
            "optimal" if is_optimal else "feasible",
            best=best,
            others=tuple(plan for plan, _ in found[1:]),
            **self._alternatives(pruned.candidates, best),
            certificate=Certificate(
                bound_s=seconds(bound),
                gap=1 - bound / proof.ticks,
                rounding_s=self._rounding_s(best.plan),
                counts=pruned.counts,
                seed=options.seed,
                left_open="" if is_optimal else self._left_open(),
            ),
        )

    def _left_open(self) -> str:
        """Return why the proof is incomplete, as a sentence."""
        if self.deadline.has_passed:
            return "It was stopped before all plans were looked at."
        if self.lattice.table.has_choice and self.job.spec.limits.max_link_utilisation:
            return ORDERS_OPEN
        return "Its effort was spent before all plans were proven slower."

    def _alternatives(self, left: Candidates, best: PricedPlan) -> dict[str, object]:
        """Return the plans that might be better than the best one, if wanted."""
        if self.options.is_brief:
            return {}
        return {
            "rival": self._rival(left, best),
            "band": self._band(),
            "runner_up": self._runner_up(left, best),
        }

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

    def _best_plans(self, left: Candidates) -> list[tuple[PricedPlan, Proof]]:
        """Return the best plans, each proven among the skeletons not yet taken."""
        left = left.take(preference(left.costs.rows))
        left = left.take(first_of_equals(self.job, left))
        found: list[tuple[PricedPlan, Proof]] = []
        while len(left.lower) and len(found) < self.options.top:
            proof = self._prove(left)
            if proof.status not in ("optimal", "feasible"):
                break
            found.append((self._checked(left, proof), proof))
            taken = left.unplaced[proof.skeleton]
            left = left.take(np.flatnonzero(left.unplaced != taken))
        return found

    def _prove(self, left: Candidates) -> Proof:
        """Return the proof of the best plan; of equals, the first candidate wins."""
        if not self.options.is_pruning:
            return self._with_unique_split(left, self._prove_together(left))

        def prove_one(row: int) -> Proof:
            return self._prove_together(left.take(np.array([row])))

        unique = partial(self._with_unique_split, left)
        return prove_sequentially(
            left.lower, left.upper, prove_one, unique, self.deadline
        )

    def _prove_together(self, left: Candidates) -> Proof:
        """Return CP-SAT's proof, or the constructed plan once the time is up."""
        problem = make_problem(self.job, self.lattice, left)
        options = self.options
        proof = prove(
            problem,
            self.deadline,
            options.seed,
            options.workers,
            options.most_effort,
        )
        best, least = float(left.upper.min()), float(left.lower.min())
        if proof.status != "unknown" or problem.hint is None or best > LARGEST_HORIZON:
            return replace(proof, bound=max(proof.bound, least))
        return Proof("feasible", *problem.hint, int(best), least)

    def _with_unique_split(self, left: Candidates, proof: Proof) -> Proof:
        """Return a proof with the split that the tie-break picks among equals."""
        if proof.skeleton < 0:
            return proof
        row = np.array([proof.skeleton])
        problem = make_problem(self.job, self.lattice, left.take(row))
        options, alone = self.options, replace(proof, skeleton=0)
        unique = with_unique_split(
            problem, alone, self.deadline, options.seed, options.workers
        )
        return replace(unique, skeleton=proof.skeleton)

    def _checked(self, candidates: Candidates, proof: Proof) -> PricedPlan:
        """Return a proven plan, priced in floats by the checker.

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

    def _plan(self, candidates: Candidates, row: int, pairs: Pairs) -> Plan:
        rows = candidates.costs.rows.take(np.array([row]))
        layers, recomputed = np.array(pairs, dtype=np.int64).T
        split = with_all_recomputed(self.job, rows, layers, recomputed)
        return to_plan(rows, 0, split, self.lattice.place(rows), self._gpus(rows))

    def _gpus(self, rows: Skeletons) -> list[str]:
        """Return the GPU of each stage of a skeleton, where stages differ in it."""
        names = [kind.spec.cluster.topology.gpu.name for kind in self.job.gpu_kinds]
        if not names:
            return []
        return [names[kind] for kind in self.job.gpu_kind_of_stage(int(rows.pp[0]))]

    def _rounding_s(self, plan: Plan) -> float:
        return rounding_error_s(self.job.spec.model.n_layers, plan.pp, plan.vpp)

    def _rival(self, survivors: Candidates, best: PricedPlan) -> Rival | None:
        """Return the survivor that is faster than the best on the task graph, if any.

        Only survivors within the gap between closed form and task graph can be faster.
        """
        gap_s = abs(best.step_s - best.schedule_s)
        horizon = (best.step_s + gap_s) / TICK_S
        order = np.argsort(survivors.upper, kind="stable")[:MOST_RIVALS]
        rivals = []
        for row in order[survivors.upper[order] <= horizon]:
            plan = self._plan(
                survivors, int(row), constructed_split(self.job, survivors, int(row))
            )
            rival_s = schedule_s(self.job, plan)
            if rival_s < best.schedule_s * (1 - 1e-9):
                rivals.append(Rival(plan=plan, schedule_s=rival_s))
        return min(rivals, key=lambda rival: rival.schedule_s, default=None)

    def _band(self) -> Band | None:
        """Return the errors of predictions for measured runs like this spec."""
        measured = self.options.profile.errors(self.job.spec)
        if measured is None:
            return None
        runs_of, errors = measured
        return errors.band(runs_of)

    def _runner_up(self, left: Candidates, best: PricedPlan) -> RunnerUp | None:
        """Return the fastest constructed plan that is slower than the best."""
        order = np.argsort(left.upper, kind="stable")
        for row in order[np.isfinite(left.upper[order])].tolist():
            plan = self._plan(left, row, constructed_split(self.job, left, row))
            step_s, _ = predict(self.job, plan)
            if step_s > best.step_s + self._rounding_s(plan):
                both = joined([self._row(best.plan), self._row(plan)])
                is_simpler = int(preference(both)[0]) == 1
                return RunnerUp(plan=plan, step_s=step_s, is_simpler=is_simpler)
        return None

    def _row(self, plan: Plan) -> Skeletons:
        return to_row(self.job.fabric, plan)[0]

    def _no_plan(self, left: Candidates, bound: float) -> Outcome:
        if np.isfinite(bound) and bound <= self.options.known_ticks:
            return self._outcome("unknown")
        if np.isfinite(self.options.known_ticks):
            return self._outcome("infeasible")
        return self._outcome("infeasible", near_miss=self._near_miss(left))

    def _near_miss(self, left: Candidates) -> NearMiss:
        """Return the nearest miss: a candidate that breaks a pin or limit."""
        if not len(left.lower):
            return nearest_miss(self.job, self.lattice)
        row = int(np.argmin(left.floor))
        split = constructed_split(self.job, left, row)
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
