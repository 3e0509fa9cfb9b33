"""The plans of candidates: each with the best split of its layers, proven by CP-SAT."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meshwright.bounds.candidates import Candidates
from meshwright.bounds.integer_costs import rounding_error_s, seconds
from meshwright.bounds.upper_bounds import with_all_recomputed
from meshwright.check.check import checked
from meshwright.cost.job import Job
from meshwright.cpsat.cuts import SplitProofs, prove_fastest
from meshwright.cpsat.decisions import DecisionTable
from meshwright.cpsat.master import Master
from meshwright.cpsat.problem import LARGEST_HORIZON, Pairs, Problem, Proof
from meshwright.cpsat.prove import prove, with_unique_split
from meshwright.deadline import Deadline
from meshwright.errors import InternalError
from meshwright.lattice.lattice import Lattice
from meshwright.plans.columns import Floats, Ints
from meshwright.plans.encoding import to_plan
from meshwright.plans.plan import Plan
from meshwright.plans.simplicity import OF_ROWS
from meshwright.plans.skeletons import Skeletons
from meshwright.results.priced_plan import PricedPlan
from meshwright.solver.cpsat_problem import (
    constructed_split,
    first_of_equals,
    make_problem,
    preference,
)
from meshwright.solver.options import Options
from meshwright.solver.rule_cuts import RuleEffort, prove_within_rules, split_test
from meshwright.spec.plan_fields import FIELDS
from meshwright.spec.simplicity import Criterion

NEVER_TICKS = 2**62
"""Stands for infinitely many ticks."""


@dataclass(frozen=True)
class CandidatePlans:
    """Candidates for the best plan, in the order of preference among equals."""

    job: Job
    lattice: Lattice
    options: Options
    deadline: Deadline
    effort: RuleEffort
    rows: Candidates

    @classmethod
    def of(
        cls,
        job: Job,
        lattice: Lattice,
        options: Options,
        deadline: Deadline,
        effort: RuleEffort,
        found: Candidates,
    ) -> CandidatePlans:
        """Return the plans of candidates; of those with equal prices only the first."""
        found = found.take(preference(found.costs.rows))
        found = found.take(first_of_equals(job, found))
        return cls(job, lattice, options, deadline, effort, found)

    def in_order_of(self, criteria: tuple[Criterion, ...]) -> CandidatePlans:
        """Return the candidates in the order of criteria, then of preference.

        Of those with equal prices only the first is left, which is the simplest.
        """
        rows = self.rows.costs.rows
        place = np.argsort(preference(rows))
        counts = [
            OF_ROWS[name](self.job.spec, rows) for name in criteria if name in OF_ROWS
        ]
        found = self.rows.take(np.lexsort([place, *reversed(counts)]))
        return replace(self, rows=found.take(first_of_equals(self.job, found)))

    def __len__(self) -> int:
        """Return the number of candidates."""
        return len(self.rows)

    def fastest(self) -> Proof:
        """Return the proof of the fastest candidate; of equals, the first one wins."""
        if self.options.is_pruning:
            proof = self._prove_fastest()
        else:
            every = make_problem(self.job, self.lattice, self.rows)
            proof = self.prove(every, self.rows)
        if proof.skeleton < 0:
            return proof
        row = proof.skeleton
        return self.with_unique_split(self.problem(row), self.one(row), proof)

    def _prove_fastest(self) -> Proof:
        """Return the proof of the fastest candidate by cuts on a master of all."""
        master = Master(decision_table(self.rows), self.options.seed)
        master.leave_out(np.flatnonzero(~np.isfinite(self.rows.lower)).tolist())
        # Kept by this object, proofs that refer to it would outlive it.
        splits = SplitProofs(master, self.prove_row)
        return prove_fastest(splits, whole_ticks(self.rows.upper), self.deadline)

    def leave_out(self, row: int) -> CandidatePlans:
        """Return the candidates without those on the unplaced skeleton of one."""
        same = self.rows.unplaced == self.rows.unplaced[row]
        return replace(self, rows=self.rows.take(np.flatnonzero(~same)))

    def one(self, row: int) -> Candidates:
        """Return a candidate alone."""
        return self.rows.take(np.array([row]))

    def problem(self, row: int) -> Problem:
        """Return the problem of splitting the layers of one candidate."""
        return make_problem(self.job, self.lattice, self.one(row))

    def prove_row(self, row: int) -> Proof:
        """Return the proof of the best split of one candidate's layers."""
        return self.prove(self.problem(row), self.one(row))

    def prove(self, problem: Problem, left: Candidates) -> Proof:
        """Return CP-SAT's proof, or the constructed plan once the time is up."""
        options = self.options

        def prove_once(problem: Problem) -> Proof:
            how = (options.seed, options.workers, options.most_effort)
            return prove(problem, self.deadline, *how)

        keeps = split_test(self.job, self.lattice, left)
        proof = prove_within_rules(problem, prove_once, keeps, self.effort)
        best, least = float(left.upper.min()), float(left.lower.min())
        if proof.status != "unknown" or problem.hint is None or best > LARGEST_HORIZON:
            return replace(proof, bound=max(proof.bound, least))
        return Proof("feasible", *problem.hint, int(best), least)

    def with_unique_split(
        self, problem: Problem, one: Candidates, proof: Proof
    ) -> Proof:
        """Return a proof with the split that the tie-break picks among equals.

        `problem` is that of the `one` candidate that is proven, alone.
        """
        options, alone = self.options, replace(proof, skeleton=0)

        def break_ties(problem: Problem) -> Proof:
            how = (self.deadline, options.seed, options.workers)
            return with_unique_split(problem, alone, *how)

        keeps = split_test(self.job, self.lattice, one)
        unique = prove_within_rules(problem, break_ties, keeps, self.effort)
        unique = alone if unique.skeleton < 0 else unique
        return replace(unique, skeleton=proof.skeleton)

    def checked(self, proof: Proof) -> PricedPlan:
        """Return a proven plan, priced in floats by the checker.

        Raises:
            InternalError: it breaks a rule, or its time is not what was proven.
        """
        plan = self.plan(proof.skeleton, proof.split)
        priced, broken = checked(self.job, plan)
        if broken:
            raise InternalError(f"{plan} was proven but breaks {broken[0].rule}")
        off_s = abs(priced.step_s - seconds(proof.ticks))
        if off_s > rounding_s(self.job, plan):
            raise InternalError(f"{plan}: checked {off_s:.3g} s off what was proven")
        return priced

    def constructed(self, row: int) -> Plan:
        """Return a candidate with its constructed split."""
        return self.plan(row, constructed_split(self.job, self.rows, row))

    def plan(self, row: int, pairs: Pairs) -> Plan:
        """Return a candidate with a split of its layers as a plan."""
        rows = self.rows.costs.rows.take(np.array([row]))
        layers, recomputed = np.array(pairs, dtype=np.int64).T
        split = with_all_recomputed(self.job, rows, layers, recomputed)
        return to_plan(rows, 0, split, self.lattice.place(rows), self._gpus(rows))

    def _gpus(self, rows: Skeletons) -> list[str]:
        """Return the GPU of each stage of a skeleton, where stages differ in it."""
        names = [kind.spec.cluster.topology.gpu.name for kind in self.job.gpu_kinds]
        if not names:
            return []
        return [names[kind] for kind in self.job.gpu_kind_of_stage(int(rows.pp[0]))]


def decision_table(rows: Candidates) -> DecisionTable:
    """Return the decisions of candidates, each with its lower bound."""
    names = tuple(field.name for field in FIELDS)
    columns = [getattr(rows.costs.rows, name) for name in names]
    values = np.stack(columns, axis=1).astype(np.int64)
    return DecisionTable(names, values, whole_ticks(rows.lower))


def whole_ticks(bound: Floats) -> Ints:
    """Return bounds in whole ticks, rounded up; no step takes a part of a tick."""
    known = np.where(np.isfinite(bound), np.ceil(bound), NEVER_TICKS)
    return known.astype(np.int64)


def rounding_s(job: Job, plan: Plan) -> float:
    """Return the most that the whole ticks of a plan's step are off, seconds."""
    return rounding_error_s(job.spec.model.n_layers, plan.pp, plan.vpp)
