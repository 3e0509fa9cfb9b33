"""Candidates for the best plan: placed skeletons, bounded from below and above."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from meshwright.cost.job import Job
from meshwright.cost.price import price_time
from meshwright.cost.timing import TimeCosts
from meshwright.planner.degrees import OrderSearch
from meshwright.planner.integer_costs import TICK_S, Scaled, zero_costs
from meshwright.planner.memory_fit import measure_stages, stages_by_pp, with_times
from meshwright.planner.rows import Lattice
from meshwright.planner.side_limits import LinkLimit, keep_user_rules
from meshwright.planner.split_bounds import (
    construct_pinned_split,
    least_bubble,
    lower_bound,
    slowest_split_ticks,
    split_fits,
    split_ticks,
    time_only_bound,
    with_pinned_recompute,
)
from meshwright.planner.stages import Stages, fits, has_one_split
from meshwright.plans.columns import (
    Bools,
    Columns,
    Floats,
    Ints,
    Parts,
    added,
    scaled,
    total,
)
from meshwright.plans.simplicity import WHOLE, percents
from meshwright.plans.skeletons import Skeletons
from meshwright.results.outcome import Counts
from meshwright.rules.rule_truth import Bounds, at_least, between
from meshwright.rules.user_rules import (
    BUBBLE,
    PARTS,
    compares_with_step,
    may_keep,
    parts_asked,
)
from meshwright.spec.plan_fields import NONE, Pins
from meshwright.spec.spec import Spec

SURE = 1e-6
"""Share by which bounds are lowered before rules in floats compare them."""

NONE_PROVEN: Mapping[int, float] = {}

LONGER_S = 1e-5
"""Seconds by which rounding to whole ticks may shorten a step, generously."""

Limit = Callable[[Skeletons], Floats | float]
"""Prices above which skeletons are of no interest: that of a plan that is known."""


@dataclass(frozen=True)
class Unplaced(Columns):
    """Unplaced skeletons, with the facts about them that hold on every mesh."""

    number: Ints
    """Index of each in the lattice."""
    memory: Scaled
    """Their memory; all times are zero."""
    fits: Bools
    """Whether some split of the layers fits in memory."""
    is_dominated: Bools
    """Whether it frees memory although the same skeleton fits without."""


@dataclass(frozen=True)
class Candidates(Columns):
    """Placed skeletons that may hold the best plan, in no order."""

    costs: Scaled
    unplaced: Ints
    """Index of the unplaced skeleton in the lattice: those of one differ in mesh."""
    floor: Floats
    """Lower bound on the ticks of any split, limits on links left aside."""
    lower: Floats
    """Lower bound under limits on links too; infinite where no split keeps them."""
    upper: Floats
    """Ticks of the constructed split; infinite where that breaks a limit or pin."""
    fits: Bools
    """Whether some split fits in memory."""
    is_dominated: Bools
    """Whether it frees memory although the same skeleton fits without."""
    scale: Ints
    """The price of a tick of each: see `Pricing`."""

    def up_to(self, best: Floats | float) -> Candidates:
        """Return the candidates whose lower bound on the price is not above `best`."""
        return self.take(np.flatnonzero(self.lower * self.scale <= best))


@dataclass(frozen=True)
class Pricing:
    """The price by which plans are compared: ticks, or hundredths of doubted ticks."""

    spec: Spec
    is_doubted: bool = False

    def of(self, rows: Skeletons) -> Ints:
        """Return the price of a tick of each row: more for one that offloads more."""
        if self.is_doubted:
            return percents(self.spec, rows)
        return np.ones(len(rows.tp), dtype=np.int64)

    @property
    def unit(self) -> int:
        """Return the least price of a tick."""
        return WHOLE if self.is_doubted else 1

    def most_ticks(self, limit: Limit) -> Limit:
        """Return the most ticks that a plan of a price takes."""
        return lambda rows: limit(rows) / self.unit


@dataclass(frozen=True)
class Pruned:
    """The candidates left of a lattice, and the reasons why the others were dropped."""

    candidates: Candidates
    near: Candidates
    """Candidates for plans within reach of the best one; the others are among them."""
    counts: Counts
    open_bound: float
    """Least bound of the skeletons that time ran out on, ticks; infinite if none."""
    is_whole: bool = False
    """Whether no skeleton was bounded away."""


def no_candidates(lattice: Lattice) -> Candidates:
    """Return no candidates, with the columns that candidates of a lattice have."""
    nothing = np.zeros(0, dtype=np.int64)
    rows, _ = lattice.on_meshes(nothing, None)
    costs, none = zero_costs(rows), nothing.astype(np.float64)
    kinds = [costs for _ in lattice.table.job.gpu_kinds]
    costs = Scaled.least(kinds) if kinds else costs
    bools = none.astype(bool)
    return Candidates(costs, nothing, none, none, none, bools, bools, nothing)


def place_and_bound(
    job: Job,
    lattice: Lattice,
    batch: Unplaced,
    limit: Limit | None,
    search: OrderSearch | None,
    pricing: Pricing,
) -> Candidates:
    """Return the skeletons of a batch on all their meshes, bounded from both sides.

    A skeleton is left out as soon as a lower bound on its price is above its limit.
    """
    most = limit or up_to(np.inf)

    def is_near(costs: Scaled) -> Bools:
        ticks = time_only_bound(costs, job.spec.model)
        return np.asarray(ticks * pricing.of(costs.rows) <= most(costs.rows))

    def keep(rows: Skeletons) -> Bools:
        return is_near(with_times(job, zero_costs(rows)))

    rows, which = lattice.on_meshes(batch.number, search, keep if limit else None)
    costs = with_times(job, batch.memory.shared(rows, which))
    near = np.flatnonzero(is_near(costs))
    costs, which = costs.take(near), which[near]
    against = lower_bound_against(job.spec.pins, pricing.most_ticks(most))
    lower, scale = measure_stages(job, costs, against), pricing.of(costs.rows)
    # Of pinned counts that no split has, the bound is infinite.
    near = np.flatnonzero((lower * scale <= most(costs.rows)) & np.isfinite(lower))
    costs, which, lower, scale = costs.take(near), which[near], lower[near], scale[near]
    floor, upper = lower.copy(), np.full(len(costs), np.inf)
    may = may_keep_rules(job, costs, lower, lambda some: most(some) / pricing.unit)
    lower = np.where(may, lower, np.inf)
    links = LinkLimit.of(job, lattice)
    if links is not None:
        lower = links.raised(costs, lower, most(costs.rows) / scale)
    # Where no split keeps the limit, the constructed one does not.
    left = np.flatnonzero(np.isfinite(lower) | (links is None))
    for index, stages in stages_by_pp(job, costs.take(left)):
        upper[left[index]] = _constructed_ticks(job, lattice, links, stages)
    if not job.gpu_kinds:
        # The constructed split recomputes no more than it must; with one way to split
        # layers, it is the fastest.
        is_exact = has_one_split(job.spec, costs.rows) & np.isfinite(upper)
        lower = np.where(is_exact, upper, lower)
    known = batch.take(which)
    upper = np.where(known.fits, upper, np.inf)
    return Candidates(
        costs, known.number, floor, lower, upper, known.fits, known.is_dominated, scale
    )


def may_keep_rules(job: Job, costs: Scaled, lower: Floats, most: Limit) -> Bools:
    """Return which skeletons may keep the user's rules within the most ticks.

    `lower` is a lower bound on the ticks of each.
    """
    asked, rows = parts_asked(job.spec), costs.rows
    parts_s = bounds_on_parts_s(job, rows, asked) if rows.is_placed else {}
    if BUBBLE in asked:
        bubble = measure_stages(
            job, costs, lambda stages: least_bubble(stages, most(stages.costs.rows))
        )
        parts_s[BUBBLE] = at_least(sure_s(bubble))
    ticks = np.broadcast_to(most(rows), len(rows))
    if rows.is_placed and compares_with_step(job.spec):
        ticks = np.minimum(ticks, measure_stages(job, costs, _slowest_ticks))
    most_s = ticks * TICK_S * (1 + SURE) + LONGER_S
    return may_keep(job.spec, rows, sure_s(lower), parts_s, most_s)


def _slowest_ticks(stages: Stages) -> Floats:
    return slowest_split_ticks(stages, stages.layers)


def bounds_on_parts_s(
    job: Job, rows: Skeletons, names: Iterable[str]
) -> dict[str, Bounds]:
    """Return bounds on parts of the step of placed skeletons, in seconds."""
    names = [name for name in names if name != BUBBLE]
    if job.gpu_kinds or not names:
        return {}
    time, layers = price_time(job, rows), job.spec.model.n_layers
    fewest = _fewest_on_slowest(rows, time, layers)
    return {
        name: between(
            _least_part_s(rows, time, layers, fewest, part) * (1 - SURE),
            _most_part_s(rows, time, layers, part) * (1 + SURE),
        )
        for name in names
        for part in [name.removeprefix(PARTS)]
    }


def _fewest_on_slowest(rows: Skeletons, time: TimeCosts, layers: int) -> Floats:
    """Return the layers that the slowest stage has at least.

    It takes no less than the mean of all stages, whatever lies beside its layers.
    """
    layer_s = total(added([time.forward, time.backward]))
    lead_s = time.leading * total(time.lead)
    beside_s = total(time.first) + total(time.last) + np.maximum(lead_s, 0.0)
    beside_s = beside_s + 2 * rows.vpp * time.send_s
    mean_s = (layers * layer_s + np.minimum(lead_s, 0.0)) / rows.pp
    fewest = np.maximum((mean_s - beside_s) / (layer_s + time.recompute_s), 0.0)
    return np.where(rows.pp == 1, float(layers), fewest)


def _least_part_s(
    rows: Skeletons, time: TimeCosts, layers: int, fewest: Floats, part: str
) -> Floats:
    """Return the least seconds of a part.

    What it leaves out is at least 0: ends, sends, recomputation and, in pipelines, the
    end of the step.
    """
    forward, backward, lead, sync, sync_lead = (
        parts.get(part, np.zeros(len(rows)))
        for parts in (
            time.forward, time.backward, time.lead, time.sync_layer, time.sync_lead
        )
    )  # fmt: skip
    layers_s = fewest * (forward + backward) + np.minimum(time.leading * lead, 0.0)
    sync_s = layers * sync + np.minimum(time.leading * sync_lead, 0.0)
    end_s = np.where(rows.pp == 1, np.maximum(sync_s, 0.0), 0.0)
    return np.asarray(np.maximum(layers_s, 0.0) * rows.microbatches + end_s)


def _most_part_s(rows: Skeletons, time: TimeCosts, layers: int, part: str) -> Floats:
    """Return the most seconds of a part.

    One stage has all layers but one for each other stage, and both ends; it recomputes
    every layer, and sends to both neighbours.
    """
    most = np.maximum(layers - rows.pp + 1, 1)
    again_s = np.where(rows.recompute != NONE, time.recompute_s, 0.0)
    repeated = {"recompute": again_s, "pp": 2 * rows.vpp * time.send_s / most}
    per_layer = added([time.forward, time.backward, repeated])
    beside = [scaled(time.lead, time.leading), time.first, time.last]
    at_end = [scaled(time.sync_lead, time.leading), time.sync_first, time.sync_last]

    def upon(layer: Parts, further: list[Parts]) -> Floats:
        none = np.zeros(len(rows))
        ends = [np.maximum(parts.get(part, none), 0.0) for parts in further]
        return np.asarray(most * layer.get(part, none) + np.sum(ends, axis=0))

    return rows.microbatches * upon(per_layer, beside) + upon(time.sync_layer, at_end)


def _constructed_ticks(
    job: Job, lattice: Lattice, links: LinkLimit | None, stages: Stages
) -> Floats:
    """Return the ticks of constructed splits, infinite if they break a rule."""
    layers, recomputed = construct_pinned_split(job.spec.pins, stages)
    ticks = split_ticks(stages, layers, recomputed)
    allowed = split_fits(stages, layers, recomputed)
    if links is not None:
        allowed &= links.keeps(stages, layers, recomputed, ticks)
    ticks = np.where(allowed, ticks, np.inf)
    rows = stages.costs.rows
    keeps = keep_user_rules(job, lattice, rows, layers, recomputed, ticks)
    return np.where(keeps, ticks, np.inf)


def kth_best_upper(
    found: list[Candidates], k: int, proven: Mapping[int, float] = NONE_PROVEN
) -> float:
    """Return the k-th least distinct upper bound on prices, one per skeleton.

    `proven` are prices of plans beside the constructed ones, by unplaced skeleton.
    """
    skeletons = np.array([*proven], dtype=np.int64)
    prices = np.array([*proven.values()], dtype=np.float64)
    unplaced = np.concatenate([*(part.unplaced for part in found), skeletons])
    upper = np.concatenate([*(part.upper * part.scale for part in found), prices])
    order = np.argsort(upper, kind="stable")
    _, first = np.unique(unplaced[order], return_index=True)
    distinct = np.unique(upper[order][first])
    return float(distinct[k - 1]) if len(distinct) >= k else np.inf


def within_best(
    job: Job, lattice: Lattice, found: list[Candidates], best: float, pricing: Pricing
) -> Candidates:
    """Return the candidates up to `best`, their lower bounds computed against it."""
    merged = Candidates.joined([part.up_to(best) for part in found])
    most = pricing.most_ticks(up_to(best))
    against = lower_bound_against(job.spec.pins, most)
    again = measure_stages(job, merged.costs, against)
    may = may_keep_rules(job, merged.costs, again, most)
    lower = np.where(may, np.maximum(merged.lower, again), np.inf)
    links = LinkLimit.of(job, lattice)
    if links is not None:
        lower = links.raised(merged.costs, lower, best / merged.scale)
    return replace(merged, lower=lower).up_to(best)


def sure_s(ticks: Floats) -> Floats:
    """Return lower bounds in seconds, low enough to be compared with floats."""
    return ticks * TICK_S * (1 - SURE)


def up_to(price: float) -> Limit:
    """Return the limit, equal for all skeletons."""
    return lambda _: price


def lower_bound_against(pins: Pins, limit: Limit) -> Callable[[Stages], Floats]:
    """Return the lower bound as a function of stages; above the limit it is loose."""

    def bound(stages: Stages) -> Floats:
        best = limit(stages.costs.rows)
        if pins.stage_recompute is None:
            return lower_bound(stages, best)
        pinned = with_pinned_recompute(pins, stages)
        return np.where(fits(pinned), lower_bound(pinned, best), np.inf)

    return bound


def count_skeletons(lattice: Lattice, candidates: Candidates) -> int:
    """Return the number of skeletons, those in several GPU orders counted once."""
    if not lattice.table.has_choice:
        return len(candidates.lower)
    meshes = candidates.costs.rows.mesh.tolist()
    axes = {mesh: lattice.table.place(mesh).mesh.tobytes() for mesh in set(meshes)}
    pairs = zip(candidates.unplaced.tolist(), meshes, strict=True)
    return len({(row, axes[mesh]) for row, mesh in pairs})
