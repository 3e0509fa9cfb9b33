"""The simplest plan among those that are hardly slower than the fastest one.

Each candidate comes in up to four variants: with stages that must hold equally many
layers, or any; with every layer recomputed, or some. The criteria of simplicity are
then columns of variants, and the master takes the first variant by them whose proven
optimum is within the tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from meshwright.bounds.memory_fit import stages_by_pp
from meshwright.bounds.stages import Stages, recomputes
from meshwright.bounds.upper_bounds import fewest_recomputed, split_fits, split_ticks
from meshwright.cpsat.cuts import SplitProofs, prove_first
from meshwright.cpsat.decisions import DecisionTable
from meshwright.cpsat.master import Master
from meshwright.cpsat.problem import Problem, Proof
from meshwright.frameworks.base.recompute_scope import ALL_LAYERS
from meshwright.plans.columns import Bools, Columns, Floats, Ints
from meshwright.plans.simplicity import OF_ROWS
from meshwright.solver.candidate_plans import (
    CandidatePlans,
    decision_table,
    whole_ticks,
)
from meshwright.spec.simplicity import Criterion


@dataclass(frozen=True)
class Variants(Columns):
    """Candidates with what is demanded of the split of their layers."""

    row: Ints
    """Index of the candidate."""
    must_be_even: Bools
    """Whether every stage must hold equally many layers."""
    must_be_whole: Bools
    """Whether every layer must be recomputed, if any is."""
    is_uneven: Bools
    """Whether the stages of some split that is allowed differ in their layers."""
    is_partial: Bools
    """Whether some split that is allowed recomputes some layers and others not."""
    lower: Floats
    """Ticks that no allowed split goes below; infinite where none fits."""


@dataclass(frozen=True)
class SimplestPlan:
    """Looks for the simplest plan among candidates within `most_ticks`."""

    plans: CandidatePlans
    criteria: tuple[Criterion, ...]
    most_ticks: int

    def prove(self) -> tuple[Proof, bool]:
        """Return the proof of the simplest plan, of equals the fastest.

        The second result says whether it is proven that none is simpler.
        """
        deadline = self.plans.deadline
        proof, is_proven = prove_first(
            self._split_proofs(), self.columns, self.most_ticks, deadline
        )
        if proof.skeleton < 0:
            return proof, is_proven
        problem, row = self._problem(proof.skeleton), self._row(proof.skeleton)
        unique = self.plans.with_unique_split(problem, self.plans.one(row), proof)
        return replace(unique, skeleton=row), is_proven

    @cached_property
    def variants(self) -> Variants:
        """Return the variants that may be within the limit."""
        found = variants(self.plans)
        return found.take(np.flatnonzero(found.lower <= self.most_ticks))

    @cached_property
    def columns(self) -> list[Ints]:
        """Return how simple each variant is, one column for each criterion."""
        spec, rows = self.plans.job.spec, self.plans.rows.costs.rows
        of_split = {
            "uneven_stages": self.variants.is_uneven,
            "partial_recompute": self.variants.is_partial,
        }
        of_row = {name: count(spec, rows) for name, count in OF_ROWS.items()}
        return [
            np.asarray(
                of_split[name] if name in of_split else of_row[name][self.variants.row],
                dtype=np.int64,
            )
            for name in self.criteria
        ]

    def _split_proofs(self) -> SplitProofs:
        """Return the master of variants: criteria are decisions like all others."""
        table = decision_table(self.plans.rows.take(self.variants.row))
        values = np.column_stack([table.values, *self.columns])
        least = whole_ticks(self.variants.lower)
        table = DecisionTable((*table.names, *self.criteria), values, least)
        return SplitProofs(Master(table, self.plans.options.seed), self._prove_variant)

    def _row(self, variant: int) -> int:
        return int(self.variants.row[variant])

    def _problem(self, variant: int) -> Problem:
        """Return the problem of a candidate with what its variant demands."""
        problem = self.plans.problem(self._row(variant))
        horizon = max(problem.horizon, self.most_ticks)
        problem = replace(problem, hint=None, horizon=horizon)
        if self.variants.must_be_even[variant]:
            stages = len(problem.skeletons[0].stages)
            even = (problem.layers // stages,) * stages
            problem = replace(problem, pinned_layers=even)
        if self.variants.must_be_whole[variant]:
            problem = replace(problem, recomputes_every_layer=True)
        return problem

    def _prove_variant(self, variant: int) -> Proof:
        one = self.plans.one(self._row(variant))
        return self.plans.prove(self._problem(variant), one)


def variants(plans: CandidatePlans) -> Variants:
    """Return the variants of candidates, those that demand more of a split first."""
    found = [
        _variants(plans, stages, plans.rows.lower[index], index)
        for index, stages in stages_by_pp(plans.job, plans.rows.costs)
    ]
    joined = Variants.joined(found)
    return joined.take(np.argsort(joined.row, kind="stable"))


def _variants(
    plans: CandidatePlans, stages: Stages, lower: Floats, index: Ints
) -> Variants:
    layers = np.full(stages.least.shape, stages.layers // stages.count)
    can_be_even = (stages.layers % stages.count == 0) & (
        (layers >= stages.least) & (layers <= stages.full_cap)
    ).all(axis=1)
    if plans.job.spec.pins.layers is not None:
        can_be_even &= (layers == plans.job.spec.pins.layers).all(axis=1)
    has_choice = (stages.full_cap > stages.least).any(axis=1) & (stages.count > 1)
    has_parts = recomputes(stages.costs) & (stages.costs.recompute_scope != ALL_LAYERS)
    result = []
    for is_even in (True, False):
        for is_whole in (True, False):
            bound = lower
            if is_even:
                exact = _even_ticks(stages, layers, is_whole)
                bound = np.maximum(lower, exact) if _is_exact(plans) else lower
            is_there = can_be_even if is_even else has_choice | ~can_be_even
            is_there = is_there & (is_whole | has_parts)
            kept = np.flatnonzero(is_there)
            count = len(kept)
            result.append(
                Variants(
                    row=index[kept],
                    must_be_even=np.full(count, is_even & (stages.count > 1)),
                    must_be_whole=is_whole & has_parts[kept],
                    is_uneven=np.full(count, not is_even),
                    is_partial=np.full(count, not is_whole),
                    lower=bound[kept],
                )
            )
    return Variants.joined(result)


def _is_exact(plans: CandidatePlans) -> bool:
    """Return whether the fewest recomputed layers make the fastest even split."""
    has_limit = plans.job.spec.limits.max_link_utilisation is not None
    is_pinned = plans.job.spec.pins.stage_recompute is not None
    return not (plans.job.gpu_kinds or has_limit or is_pinned)


def _even_ticks(stages: Stages, layers: Ints, is_whole: bool) -> Floats:
    """Return the ticks of splits into equal stages; infinite where they do not fit."""
    recomputed = fewest_recomputed(stages, layers)
    if is_whole:
        has_parts = recomputes(stages.costs) & (
            stages.costs.recompute_scope != ALL_LAYERS
        )
        recomputed = np.where(has_parts[:, None], layers, recomputed)
    fits = split_fits(stages, layers, recomputed)
    return np.where(fits, split_ticks(stages, layers, recomputed), np.inf)
