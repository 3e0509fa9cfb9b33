"""States the choice among candidates for CP-SAT, in whole numbers."""

from __future__ import annotations

import numpy as np

from meshwright.bounds.candidates import Candidates
from meshwright.bounds.integer_costs import AMOUNTS, ticks_up
from meshwright.bounds.lower_bounds import slowest_split_ticks
from meshwright.bounds.memory_fit import measure_stages, stages_by_pp
from meshwright.bounds.stages import Stages, recomputes
from meshwright.bounds.upper_bounds import (
    construct_pinned_split,
    with_all_recomputed,
)
from meshwright.cost.job import Job
from meshwright.cost.links import busy_seconds
from meshwright.cpsat.problem import (
    LARGEST_HORIZON,
    Pairs,
    Problem,
    SkeletonChoice,
    StageAmount,
    StageChoice,
)
from meshwright.frameworks.base.recompute_scope import ALL_LAYERS, ONE_NUMBER
from meshwright.lattice.lattice import Lattice
from meshwright.plans.columns import Ints
from meshwright.plans.skeletons import NONE, Skeletons
from meshwright.rules.user_rules import split_dependent
from meshwright.solver.rule_clauses import with_user_rules
from meshwright.spec.plan_fields import BY_PREFERENCE


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
    """Return the first candidate of each price: CP-SAT need not see its equals.

    Under a limit on links, or rules of the user on splits, all are kept, since equals
    may load links differently, and keep other rules.
    """
    costs, rows = candidates.costs, candidates.costs.rows
    columns = [
        getattr(each, n) for each in (costs, *costs.by_gpu_kind) for n in AMOUNTS
    ]
    columns += [rows.pp, rows.microbatches, rows.vpp, rows.schedule]
    columns += [rows.recompute != NONE]
    if job.spec.limits.max_link_utilisation is not None or split_dependent(job.spec):
        columns.append(np.arange(len(costs)))
    _, first = np.unique(np.stack(columns, axis=1), axis=0, return_index=True)
    return np.sort(first)


def constructed_split(job: Job, candidates: Candidates, row: int) -> Pairs:
    """Return the layers and recomputed layers of a candidate's constructed split."""
    one = candidates.take(np.array([row]))
    ((_, stages),) = stages_by_pp(job, one.costs)
    layers, recomputed = construct_pinned_split(job.spec.pins, stages)
    return tuple(zip(layers[0].tolist(), recomputed[0].tolist(), strict=True))


def make_problem(job: Job, lattice: Lattice, candidates: Candidates) -> Problem:
    """Return the problem of choosing among candidates, in their order."""
    choices = {
        int(candidate): _choice(job, lattice, stages, row)
        for index, stages in stages_by_pp(job, candidates.costs)
        for row, candidate in enumerate(index)
    }
    slowest = measure_stages(
        job, candidates.costs, lambda stages: slowest_split_ticks(stages, stages.layers)
    )
    best = int(np.argmin(candidates.upper))
    has_plan = bool(np.isfinite(candidates.upper[best]))
    worst = np.where(np.isfinite(candidates.upper), candidates.upper, slowest)
    horizon = min(float(worst.max()), LARGEST_HORIZON)
    return Problem(
        skeletons=tuple(choices[row] for row in range(len(choices))),
        layers=job.spec.model.n_layers,
        horizon=int(horizon),
        hint=(best, constructed_split(job, candidates, best)) if has_plan else None,
        pinned_layers=job.spec.pins.layers,
        pinned_recompute=job.spec.pins.stage_recompute,
        link_share=job.spec.limits.max_link_utilisation,
    )


def _choice(job: Job, lattice: Lattice, stages: Stages, row: int) -> SkeletonChoice:
    costs = stages.costs
    placed = costs.rows.take(np.array([row]))
    uses = _link_uses(job, lattice, stages, row)
    scope = int(costs.recompute_scope[row])
    choice = SkeletonChoice(
        is_recomputing=bool(recomputes(costs)[row]),
        recomputes_all=scope == ALL_LAYERS,
        same_in_chunks=int(costs.rows.vpp[row]) if scope == ONE_NUMBER else 0,
        stages=tuple(
            StageChoice(
                fill=StageAmount(
                    fixed=int(stages.extra[row, e]),
                    per_layer=int(stages.layer[row, e]),
                    per_recomputed=int(stages.recompute[row, e]),
                ),
                pace=StageAmount(
                    fixed=int(stages.pace_extra[row, e]),
                    per_layer=int(stages.pace_layer[row, e]),
                    per_recomputed=int(stages.pace_recompute[row, e]),
                ),
                sync=StageAmount(
                    fixed=int(stages.sync[row, e]),
                    per_layer=int(stages.sync_layer[row, e]),
                ),
                memory=StageAmount(
                    fixed=0,
                    per_layer=int(stages.per_layer[row, e]),
                    per_recomputed=-int(stages.freed[row, e]),
                ),
                capacity=int(stages.layer_capacity[row, e]),
                fewest_layers=int(stages.least[row, e]),
                most_layers=int(stages.full_cap[row, e]),
                links=uses[e] if uses else (),
            )
            for e in range(stages.count)
        ),
    )
    return with_user_rules(choice, job, lattice, placed)


def _link_uses(
    job: Job, lattice: Lattice, stages: Stages, row: int
) -> list[tuple[StageAmount, ...]]:
    """Return how each stage loads each link, where links are limited.

    The load is affine in layers and recomputed layers, so that three points give it.
    """
    if job.spec.limits.max_link_utilisation is None:
        return []
    rows = stages.costs.rows.take(np.full(3, row))
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
