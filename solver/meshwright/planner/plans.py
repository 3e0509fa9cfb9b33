"""Rows of training as plans: in order, stated as pipelines, split, and checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import numpy as np

from meshwright.check.check import checked
from meshwright.cost.job import Job
from meshwright.cost.links import busy_seconds
from meshwright.deadline import Deadline
from meshwright.errors import InternalError
from meshwright.frameworks.base.framework import ALL_LAYERS, ONE_NUMBER
from meshwright.planner.best_split import best_split, least_ticks
from meshwright.planner.candidates import Candidates
from meshwright.planner.integer_costs import (
    AMOUNTS,
    rounding_error_s,
    seconds,
    ticks_up,
)
from meshwright.planner.memory_fit import stages_by_pp
from meshwright.planner.model import ENDLESS_TICKS, Demand
from meshwright.planner.options import Options
from meshwright.planner.pipeline import (
    LARGEST_HORIZON,
    Pairs,
    Pipeline,
    PipelineStage,
    Proof,
    StageAmount,
)
from meshwright.planner.prove import Search
from meshwright.planner.rows import Lattice
from meshwright.planner.rule_clauses import with_user_rules
from meshwright.planner.rule_cuts import RuleEffort, prove_within_rules, split_test
from meshwright.planner.split_bounds import (
    construct_pinned_split,
    slowest_split_ticks,
    with_all_recomputed,
)
from meshwright.planner.split_model import Effort, prove, with_unique_split
from meshwright.planner.stages import Stages, recomputes
from meshwright.planner.table import table_of, whole_ticks
from meshwright.plans.columns import Ints
from meshwright.plans.plan import Plan
from meshwright.plans.simplicity import OF_ROWS
from meshwright.plans.skeletons import Skeletons, to_plan
from meshwright.results.priced_plan import PricedPlan
from meshwright.rules.user_rules import split_dependent
from meshwright.spec.plan_fields import BY_PREFERENCE, NONE


@dataclass(frozen=True)
class Plans:
    """Rows as plans, in the order of preference among equals."""

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
    ) -> Plans:
        """Return candidates in order; of those with equal prices only the first.

        All are kept where the near set is asked for, which counts each.
        """
        found = found.take(preference(found.costs.rows))
        if not options.near:
            found = found.take(first_of_equals(job, found))
        if not options.is_pruning:
            lower = np.where(np.isinf(found.lower), inf, 0.0)
            found = replace(found, lower=lower)
        return cls(job, lattice, options, deadline, effort, found)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    @cached_property
    def search(self) -> Search:
        """Return the search for the best rows."""
        table = table_of(self.job, self.lattice, self.rows)
        keeps = [self.rows.fits, np.isfinite(self.rows.lower)]
        return Search(
            table,
            whole_ticks(self.rows.upper),
            np.all([*keeps, *table.may_keep.values()], axis=0),
            # The search would else keep what refers to it.
            replace(self),
            self.deadline,
            self.options.seed,
        )

    def leave_out(self, row: int) -> None:
        """Leave out all rows on the unplaced skeleton of one."""
        same = self.rows.unplaced == self.rows.unplaced[row]
        self.search.leave_out(np.flatnonzero(same))

    def one(self, row: int) -> Candidates:
        """Return a row alone."""
        return self.rows.take(np.array([row]))

    def pipeline(self, row: int, demand: Demand) -> Pipeline:
        """Return a row as a pipeline, whose split is as demanded."""
        pipeline = make_pipeline(
            self.job, self.lattice, self.one(row), is_hinted=self._has_side_constraints
        )
        stages = len(pipeline.stages)
        if demand.equal_stages and stages > 1:
            equal = (pipeline.layers // stages,) * stages
            pipeline = replace(pipeline, pinned_layers=equal, hint=None)
        if demand.whole_recompute:
            pipeline = replace(pipeline, recomputes_every_layer=True, hint=None)
        return pipeline

    def prove(self, row: int, demand: Demand, below: int = ENDLESS_TICKS) -> Proof:
        """Return the proof of a row's best split below some ticks.

        Limits on links and rules on splits make slower splits worth while, and need
        CP-SAT. Once the time is up, its answer is the constructed split.
        """
        pipeline = self.pipeline(row, demand)
        if not self._has_side_constraints:
            ticks = least_ticks(pipeline, below)
            status = "optimal" if ticks < below else "slower"
            return Proof(status, (), ticks, float(ticks))
        keeps = split_test(self.job, self.lattice, self.one(row))
        proof = prove_within_rules(
            pipeline,
            lambda with_cuts: prove(with_cuts, self._limits, below),
            keeps,
            self.effort,
        )
        if proof.status == "infeasible" and below < ENDLESS_TICKS:
            return replace(proof, status="slower", bound=float(below))
        least, upper = float(self.rows.lower[row]), float(self.rows.upper[row])
        if proof.status == "unknown" and pipeline.hint and upper < below:
            return Proof("feasible", pipeline.hint, int(upper), least)
        return replace(proof, bound=max(proof.bound, least))

    def unique(self, row: int, demand: Demand, proof: Proof) -> Proof:
        """Return a proof with the split that the tie-break picks among equals."""
        if proof.status != "optimal":
            return proof
        pipeline = self.pipeline(row, demand)
        if not self._has_side_constraints:
            found = best_split(pipeline, proof.ticks + 1)
            assert found is not None
            return replace(proof, split=found[1])
        limits = replace(self._limits, most=inf)
        keeps = split_test(self.job, self.lattice, self.one(row))
        unique = prove_within_rules(
            pipeline,
            lambda with_cuts: with_unique_split(with_cuts, proof, limits),
            keeps,
            self.effort,
        )
        return replace(unique, row=row) if unique.has_plan else proof

    def constructed(self, row: int) -> Pairs:
        """Return the constructed split of a row."""
        return constructed_split(self.job, self.rows, row)

    @property
    def _has_side_constraints(self) -> bool:
        """Return whether a slower split may keep a rule that a faster one breaks."""
        spec = self.job.spec
        has_limit = spec.limits.max_link_utilisation is not None
        return has_limit or bool(split_dependent(spec))

    @property
    def _limits(self) -> Effort:
        options = self.options
        return Effort(self.deadline, options.seed, options.workers, options.most_effort)

    def checked(self, proof: Proof) -> PricedPlan:
        """Return a proven plan, priced in floats by the checker.

        The fastest plan is often the recommended one too: it is checked once.

        Raises:
            InternalError: it breaks a rule, or its time is not what was proven.
        """
        key = proof.row, proof.split
        if key not in self._checked:
            self._checked[key] = self._check(proof)
        return self._checked[key]

    @cached_property
    def _checked(self) -> dict[tuple[int, Pairs], PricedPlan]:
        """Plans that were checked, by row and split."""
        return {}

    def _check(self, proof: Proof) -> PricedPlan:
        plan = self.plan(proof.row, proof.split)
        priced, broken = checked(self.job, plan)
        if broken:
            raise InternalError(f"{plan} was proven but breaks {broken[0].rule}")
        off_s = abs(priced.step_s - seconds(proof.ticks))
        if off_s > rounding_s(self.job, plan):
            raise InternalError(f"{plan}: checked {off_s:.3g} s off what was proven")
        return priced

    def plan(self, row: int, pairs: Pairs) -> Plan:
        """Return a row with a split of its layers as a plan."""
        rows = self.rows.costs.rows.take(np.array([row]))
        layers, recomputed = np.array(pairs, dtype=np.int64).T
        split = with_all_recomputed(self.job, rows, layers, recomputed)
        return to_plan(rows, 0, split, self.lattice.place(rows), self._gpus(rows))

    def _gpus(self, rows: Skeletons) -> list[str]:
        """Return the GPU of each stage of a row, where stages differ in it."""
        names = [kind.spec.cluster.topology.gpu.name for kind in self.job.gpu_kinds]
        if not names:
            return []
        return [names[kind] for kind in self.job.gpu_kind_of_stage(int(rows.pp[0]))]


def preference(rows: Skeletons) -> Ints:
    """Return the rows in the order of preference among plans of equal time.

    Simple plans come first: nothing offloaded, little recomputation, low ZeRO stages,
    few pipeline stages, narrow tensor parallelism, large micro-batches, compact meshes.
    """
    keys = [
        -getattr(rows, field.name) if field.prefers_large else getattr(rows, field.name)
        for field in BY_PREFERENCE
    ]
    return np.lexsort((rows.mesh, *reversed(keys)))


def first_of_equals(job: Job, candidates: Candidates) -> Ints:
    """Return the first candidate of each price and simplicity: no other is better.

    Under a limit on links, or rules of the user on splits, all are kept, since equals
    may load links differently, and keep other rules.
    """
    spec, costs, rows = job.spec, candidates.costs, candidates.costs.rows
    columns = [
        getattr(each, n) for each in (costs, *costs.by_gpu_kind) for n in AMOUNTS
    ]
    columns += [rows.pp, rows.microbatches, rows.vpp, rows.schedule]
    columns += [rows.recompute != NONE]
    columns += [np.asarray(count(spec, rows)) for count in OF_ROWS.values()]
    if spec.limits.max_link_utilisation is not None or split_dependent(spec):
        columns.append(np.arange(len(costs)))
    _, first = np.unique(np.stack(columns, axis=1), axis=0, return_index=True)
    return np.sort(first)


def rounding_s(job: Job, plan: Plan) -> float:
    """Return the most that the whole ticks of a plan's step are off, seconds."""
    model = job.spec.model
    return rounding_error_s(model.n_layers, plan.pp, plan.vpp, model.leading_parts)


def constructed_split(job: Job, candidates: Candidates, row: int) -> Pairs:
    """Return the layers and recomputed layers of a candidate's constructed split."""
    one = candidates.take(np.array([row]))
    ((_, stages),) = stages_by_pp(job, one.costs)
    layers, recomputed = construct_pinned_split(job.spec.pins, stages)
    return tuple(zip(layers[0].tolist(), recomputed[0].tolist(), strict=True))


def make_pipeline(
    job: Job, lattice: Lattice, one: Candidates, *, is_hinted: bool = True
) -> Pipeline:
    """Return a candidate that stands alone as a pipeline, in whole numbers.

    CP-SAT alone uses the hint of its constructed split.
    """
    ((_, stages),) = stages_by_pp(job, one.costs)
    most = float(slowest_split_ticks(stages, stages.layers)[0])
    has_plan = is_hinted and bool(np.isfinite(one.upper[0]))
    costs, pins = stages.costs, job.spec.pins
    uses, scope = _link_uses(job, lattice, stages), int(costs.recompute_scope[0])
    amounts = zip(
        _amounts(stages.extra, stages.layer, stages.recompute),
        _amounts(stages.pace_extra, stages.pace_layer, stages.pace_recompute),
        _amounts(stages.sync, stages.sync_layer),
        _amounts(np.zeros_like(stages.freed), stages.per_layer, -stages.freed),
        strict=True,
    )
    pipeline = Pipeline(
        layers=job.spec.model.n_layers,
        horizon=int(min(most, LARGEST_HORIZON)),
        pinned_layers=pins.layers,
        pinned_recompute=pins.stage_recompute,
        link_share=job.spec.limits.max_link_utilisation,
        hint=constructed_split(job, one, 0) if has_plan else None,
        is_recomputing=bool(recomputes(costs)[0]),
        recomputes_all=scope == ALL_LAYERS,
        same_in_chunks=int(costs.rows.vpp[0]) if scope == ONE_NUMBER else 0,
        stages=tuple(
            PipelineStage(
                *of_stage,
                capacity=int(stages.layer_capacity[0, e]),
                fewest_layers=int(stages.least[0, e]),
                most_layers=int(stages.full_cap[0, e]),
                links=uses[e] if uses else (),
            )
            for e, of_stage in enumerate(amounts)
        ),
    )
    return with_user_rules(pipeline, job, lattice, costs.rows)


def _amounts(*columns: Ints) -> list[StageAmount]:
    """Return amounts of the stages of one row: fixed, and by layer."""
    by_stage = np.concatenate(columns).T
    return [StageAmount(*amount) for amount in by_stage.tolist()]


def _link_uses(
    job: Job, lattice: Lattice, stages: Stages
) -> list[tuple[StageAmount, ...]]:
    """Return how each stage loads each link, where links are limited.

    The load is affine in layers and recomputed layers, so that three points give it.
    """
    if job.spec.limits.max_link_utilisation is None:
        return []
    rows = stages.costs.rows.take(np.zeros(3, dtype=np.int64))
    points = np.repeat(np.array([[0, 0], [1, 0], [0, 1]])[..., None], stages.count, 2)
    split = with_all_recomputed(job, rows, points[:, 0], points[:, 1])
    base, *more = busy_seconds(job, rows, split, lattice.place(rows))
    per_layer, per_recomputed = (point - base for point in more)
    return [
        tuple(
            StageAmount(
                *(
                    ticks_up(float(use[e, link]))
                    for use in (base, per_layer, per_recomputed)
                )
            )
            for link in np.flatnonzero(base[e] + per_layer[e] > 0)
        )
        for e in range(stages.count)
    ]
