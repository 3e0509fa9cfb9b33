"""States rows for the model in whole numbers, and tells the solved model in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from meshwright.cost.job import Job
from meshwright.frameworks.base.framework import ALL_LAYERS
from meshwright.planner.candidates import Candidates, sure_s
from meshwright.planner.integer_costs import CHUNK_BYTES, TICK_S
from meshwright.planner.link_bounds import NOISE
from meshwright.planner.memory_fit import stages_by_pp
from meshwright.planner.model import (
    ANY_SPLIT,
    CONSTRAINTS,
    DEMANDS,
    ENDLESS_TICKS,
    Demand,
    PlanModel,
    Table,
    fit_memory,
    hold_links,
    hold_pins,
    keep_rules,
)
from meshwright.planner.rows import Lattice
from meshwright.planner.side_limits import LinkLimit
from meshwright.planner.split_bounds import (
    construct_split,
    fewest_recomputed,
    slowest_split_ticks,
    split_fits,
    split_ticks,
)
from meshwright.planner.stages import Stages, recomputes
from meshwright.plans.columns import Bools, Floats, Ints
from meshwright.plans.simplicity import OF_ROWS, percents
from meshwright.results.outcome_parts import (
    ModelConstraint,
    ModelDecision,
    ModelQuantity,
    SolvedModel,
)
from meshwright.rules.legality import field_pins
from meshwright.rules.rule_truth import rule_truth
from meshwright.rules.user_rules import RowValues, rule_name
from meshwright.spec.plan_fields import FIELD, FIELDS
from meshwright.spec.units import GIB

STAGES = ("first", "inner", "last")
"""The stages whose memory the model names: of the inner ones, the fullest."""


def table_of(job: Job, lattice: Lattice, rows: Candidates) -> Table:
    """Return candidates as the rows of the model, in their order."""
    placed = rows.costs.rows
    least = {demand: np.full(len(rows), np.inf) for demand in DEMANDS}
    most = np.empty(len(rows))
    needed, has = (np.zeros((len(rows), len(STAGES)), dtype=np.int64) for _ in "ab")
    for index, stages in stages_by_pp(job, rows.costs):
        here = rows.take(index)
        for demand in DEMANDS:
            least[demand][index] = least_ticks(job, stages, here.lower, demand)
        needed[index], has[index] = memory_of_stages(stages, here.fits)
        most[index] = slowest_split_ticks(stages, stages.layers)
    known_s = sure_s(rows.lower)
    decisions = {
        field.name: np.asarray(getattr(placed, field.name), dtype=np.int64)
        for field in FIELDS
    }
    return Table(
        decisions=decisions,
        least_ticks={demand: whole_ticks(bound) for demand, bound in least.items()},
        most_ticks=whole_ticks(np.maximum(most, rows.lower)),
        percents=percents(job.spec, placed) if job.spec.run_before.percent else None,
        memory=dict(zip(STAGES, needed.T, strict=True)),
        capacity=dict(zip(STAGES, has.T, strict=True)),
        busy_ticks=_busy_ticks(job, lattice, rows),
        link_share=job.spec.limits.max_link_utilisation,
        pinned={
            name: np.unique(decisions[name][pin.holds(job.spec, placed)])
            for name in decisions
            for pin in field_pins(job.spec.pins, [name])
        },
        may_keep={
            rule_name(rule): np.broadcast_to(
                rule_truth(rule.tree, RowValues(job.spec, placed, known_s)).may,
                len(rows),
            )
            for rule in job.spec.rules
        },
        criteria={
            name: np.asarray(count(job.spec, placed), dtype=np.int64)
            for name, count in OF_ROWS.items()
        },
    )


def _busy_ticks(job: Job, lattice: Lattice, rows: Candidates) -> dict[str, Ints]:
    """Return the ticks for which links are busy, of those that may be too busy."""
    limit = LinkLimit.of(job, lattice)
    if limit is None:
        return {}
    names = job.fabric.link_names
    busy = np.empty((len(rows), len(names)))
    for index, stages in stages_by_pp(job, rows.costs):
        busy[index] = limit.least_busy_ticks(stages)
    least = np.where(np.isfinite(rows.lower), rows.lower, 0.0)
    is_close = (busy > limit.share * least[:, None]).any(axis=0)
    # Slightly less than floats say, so that no plan that keeps the limit is lost.
    ticks = np.floor(busy * (1 - NOISE)).astype(np.int64)
    return {names[link]: ticks[:, link] for link in np.flatnonzero(is_close).tolist()}


def whole_ticks(bound: Floats) -> Ints:
    """Return bounds in whole ticks, rounded up; no step takes a part of a tick."""
    known = np.where(np.isfinite(bound), np.ceil(bound), ENDLESS_TICKS)
    return np.minimum(known, ENDLESS_TICKS).astype(np.int64)


def has_parts(stages: Stages) -> Bools:
    """Return which rows may recompute some layers and others not."""
    is_open = stages.costs.recompute_scope != ALL_LAYERS
    return np.asarray(recomputes(stages.costs) & is_open)


def least_ticks(job: Job, stages: Stages, lower: Floats, demand: Demand) -> Floats:
    """Return lower bounds on the ticks of splits that meet a demand.

    They are infinite if no split meets it. `lower` are bounds on the ticks of all
    splits.
    """
    if not demand.equal_stages:
        return lower
    layers = np.full(stages.least.shape, stages.layers // stages.count)
    is_there = (stages.layers % stages.count == 0) & (
        (layers >= stages.least) & (layers <= stages.full_cap)
    ).all(axis=1)
    pins = job.spec.pins
    if pins.layers is not None:
        is_there &= (layers == pins.layers).all(axis=1)
    has_limit = job.spec.limits.max_link_utilisation is not None
    if not (job.gpu_kinds or has_limit or pins.stage_recompute is not None):
        # The fewest recomputed layers make the fastest split.
        exact = _equal_ticks(stages, layers, demand.whole_recompute)
        lower = np.maximum(lower, exact)
    return np.where(is_there, lower, np.inf)


def _equal_ticks(stages: Stages, layers: Ints, is_whole: bool) -> Floats:
    """Return the ticks of splits into equal stages; infinite where they do not fit."""
    recomputed = fewest_recomputed(stages, layers)
    if is_whole:
        recomputed = np.where(has_parts(stages)[:, None], layers, recomputed)
    fits = split_fits(stages, layers, recomputed)
    return np.where(fits, split_ticks(stages, layers, recomputed), np.inf)


def memory_of_stages(stages: Stages, fits: Bools) -> tuple[Ints, Ints]:
    """Return the KiB that the stages of rows need and have, (rows, `STAGES`).

    Where some split fits they are those of one that does. Elsewhere the layers are
    spread evenly and recomputed; that no split fits is known of the fullest stage.
    """
    layers, recomputed = construct_split(stages)
    even = np.full(layers.shape, -(-stages.layers // stages.count))
    layers = np.where(fits[:, None], layers, even)
    recomputed = np.where(
        fits[:, None], recomputed, np.where(stages.freed > 0, even, 0)
    )
    left = stages.layer_capacity - layers * stages.per_layer + recomputed * stages.freed
    fullest = left == left.min(axis=1, keepdims=True)
    left = np.where(~fits[:, None] & fullest, np.minimum(left, -1), left)
    inner = left[:, 1:-1].argmin(axis=1) + 1 if stages.count > 2 else 0 * fits
    chosen = np.stack([0 * fits, inner, np.full(len(fits), stages.count - 1)], axis=1)
    has = np.take_along_axis(stages.capacity, chosen.astype(np.int64), axis=1)
    return has - np.take_along_axis(left, chosen.astype(np.int64), axis=1), has


LEAVES_OUT: dict[str, Callable[[Table], Bools]] = {
    fit_memory.__name__: Table.over_memory,
    hold_links.__name__: Table.over_links,
    hold_pins.__name__: Table.off_pins,
    keep_rules.__name__: Table.off_rules,
}
"""Which rows a constraint leaves out, by its name."""


def shown_model(model: PlanModel, criteria: Sequence[str]) -> SolvedModel:
    """Return a model in words; `criteria` are those that it minimised in turn."""
    table = model.table
    return SolvedModel(
        rows=len(table),
        decisions=tuple(
            ModelDecision(name=name, values=_values(name, column))
            for name, column in table.decisions.items()
        ),
        quantities=tuple(_quantities(table)),
        constraints=tuple(_constraints(table)),
        objectives=_objectives(table, criteria),
        cuts=model.cuts,
    )


def _objectives(table: Table, criteria: Sequence[str]) -> tuple[str, ...]:
    """Return the quantities that were minimised, first to last."""
    if table.percents is None or not criteria:
        return ("step_s", *criteria)
    return ("step_s", "doubted step_s", *criteria)


def _values(name: str, column: Ints) -> tuple[int | str | bool, ...]:
    codes = np.unique(column).tolist()
    return tuple(FIELD[name].decoded(code) if name in FIELD else code for code in codes)


def _quantities(table: Table) -> Iterator[ModelQuantity]:
    """Yield the quantities of the rows with their ranges."""

    def quantity(name: str, column: Ints, scale: float, unit: str) -> ModelQuantity:
        least, most = float(column.min()) * scale, float(column.max()) * scale
        return ModelQuantity(name=name, least=least, most=most, unit=unit)

    yield quantity("step_s, at least", table.least_ticks[ANY_SPLIT], TICK_S, "s")
    for name, needed in table.memory.items():
        yield quantity(f"memory_gib[{name}]", needed, CHUNK_BYTES / GIB, "GiB")
    for name, ticks in table.busy_ticks.items():
        yield quantity(f"busy_s[{name}]", ticks, TICK_S, "s")
    for name, values in table.criteria.items():
        yield quantity(name, values, 1.0, "")


def _constraints(table: Table) -> Iterator[ModelConstraint]:
    """Yield the constraints, with the rows that each alone leaves out."""
    for constraint in CONSTRAINTS:
        sentence, _, equation = (constraint.__doc__ or "").partition("\n\n")
        name = constraint.__name__
        count = LEAVES_OUT.get(name)
        yield ModelConstraint(
            name=name,
            sentence=sentence.removeprefix("Ensure that ").strip(),
            equation=" ".join(equation.split()),
            leaves_out=int(count(table).sum()) if count else None,
        )
