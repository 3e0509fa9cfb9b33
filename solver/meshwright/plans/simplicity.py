"""How simple plans are, and which techniques they use."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from meshwright.plans.columns import Bools, Ints
from meshwright.plans.familiarity import distance, is_rare
from meshwright.plans.plan import Plan
from meshwright.plans.skeletons import Skeletons, to_unplaced_row
from meshwright.spec.goals import LONG_CONTEXT, Criterion
from meshwright.spec.plan_fields import FIELD, KEEPS_ALL, TECHNIQUES, PlanField
from meshwright.spec.spec import Spec


def techniques(plan: Plan) -> frozenset[str]:
    """Return the fields by which a plan uses a technique."""
    return frozenset(field.name for field in _used(plan))


def names_of_techniques(plan: Plan) -> tuple[str, ...]:
    """Return the techniques beyond data parallelism that a plan has."""
    return tuple(field.technique for field in _used(plan))


def _used(plan: Plan) -> list[PlanField]:
    return [
        field
        for field in TECHNIQUES
        if getattr(plan, field.name) not in field.plain_values
    ]


def technique_names(plan: Plan) -> str:
    """Return the techniques of a plan in words, such as 'TP + PP'."""
    degrees = {"TP": plan.tp, "PP": plan.pp, "DP/ZeRO": plan.dp, "CP": plan.cp}
    return " + ".join(name for name, n in degrees.items() if n > 1) or "one GPU"


PUBLISHED_FIELDS = frozenset(
    ("tp", "pp", "vpp", "cp", "ep", "zero", "micro_batch", "recompute", "offload")
)
"""Fields by which a plan is the published one, where its publication says them."""

NAMES = ("TP", "PP", "DP/ZeRO", "CP")


def techniques_of(rows: Skeletons) -> Ints:
    """Return the set of techniques of each row, one bit for each of `NAMES`."""
    bits = np.stack([rows.tp > 1, rows.pp > 1, rows.dp > 1, rows.cp > 1])
    result: Ints = bits.T @ np.array([1, 2, 4, 8])
    return result


def name_of(techniques: int) -> str:
    """Return the name of a set of techniques, such as 'TP + DP/ZeRO'."""
    used = [name for i, name in enumerate(NAMES) if techniques >> i & 1]
    return " + ".join(used) or "one GPU"


def used_techniques(rows: Skeletons) -> dict[str, Bools]:
    """Return the techniques beyond data parallelism that each row has, by name."""
    return {
        field.technique: ~np.isin(
            getattr(rows, field.name), list(map(field.encoded, field.plain_values))
        )
        for field in TECHNIQUES
    }


def _techniques(_spec: Spec, rows: Skeletons) -> Ints:
    used = used_techniques(rows).values()
    return np.asarray(np.sum(list(used), axis=0, dtype=np.int64))


def _is_odd(_spec: Spec, rows: Skeletons) -> Bools:
    """Return the rows whose micro-batch is no power of two."""
    return np.asarray(rows.micro_batch & (rows.micro_batch - 1) != 0)


def _unlike_published(spec: Spec, rows: Skeletons) -> Bools:
    """Return the rows that are not the plan that a maker publishes for the job."""
    other = np.zeros(len(rows), dtype=bool)
    for name, code in published_codes(spec).items():
        other |= getattr(rows, name) != code
    return other


def published_codes(spec: Spec) -> dict[str, int]:
    """Return the codes of the fields that a maker publishes for the job, if any."""
    published = spec.run_before.published
    asked = published.on(spec.cluster.gpus) if published else {}
    return {
        name: FIELD[name].encoded(asked[name])
        for name in sorted(PUBLISHED_FIELDS & asked.keys())
        if isinstance(asked[name], int | str)
    }


OF_ROWS: dict[Criterion, Callable[[Spec, Skeletons], Ints | Bools]] = {
    "beyond_runs": distance,
    "unlike_published": _unlike_published,
    "rarely_run": is_rare,
    "techniques": _techniques,
    "offload": lambda _, rows: rows.offload != KEEPS_ALL,
    "short_context_parallel": lambda spec, rows: (
        (rows.cp > 1) & (spec.training.seq_len < LONG_CONTEXT)
    ),
    "zero3_in_pipeline": lambda _, rows: (rows.zero == 3) & (rows.pp > 1),
    "odd_micro_batch": _is_odd,
}
"""Criteria that depend on the skeleton alone."""


OF_PLAN: dict[Criterion, Callable[[Plan], bool]] = {
    "uneven_stages": lambda plan: len({stage.layers for stage in plan.stages}) > 1,
    "partial_recompute": lambda plan: plan.recomputes_some_layers,
}
"""Criteria that depend on how the layers of the skeleton are split."""


def complexity(
    spec: Spec, plan: Plan, criteria: tuple[Criterion, ...]
) -> tuple[int, ...]:
    """Return how simple a plan is by each of some criteria; less is simpler."""
    row = to_unplaced_row(plan)
    return tuple(
        int(OF_PLAN[name](plan))
        if name in OF_PLAN
        else int(OF_ROWS[name](spec, row)[0])
        for name in criteria
    )
