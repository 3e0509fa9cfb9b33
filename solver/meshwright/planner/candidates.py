"""Candidates for the best plan: placed skeletons, bounded from below and above."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from meshwright.cost.job import Job
from meshwright.cost.price import price_time
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
from meshwright.plans.columns import Bools, Columns, Floats, Ints, added, total
from meshwright.plans.simplicity import WHOLE, percents
from meshwright.plans.skeletons import Skeletons
from meshwright.results.outcome import Counts
from meshwright.rules.user_rules import (
    BUBBLE,
    PARTS,
    compares_with_step,
    may_keep,
    parts_asked,
)
from meshwright.spec.plan_fields import Pins
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
    least_s = least_parts_s(job, rows, asked) if rows.is_placed else {}
    if BUBBLE in asked:
        bubble = measure_stages(
            job, costs, lambda stages: least_bubble(stages, most(stages.costs.rows))
        )
        least_s[BUBBLE] = sure_s(bubble)
    ticks = np.broadcast_to(most(rows), len(rows))
    if rows.is_placed and compares_with_step(job.spec):
        ticks = np.minimum(ticks, measure_stages(job, costs, _slowest_ticks))
    most_s = ticks * TICK_S * (1 + SURE) + LONGER_S
    return may_keep(job.spec, rows, sure_s(lower), least_s, most_s)


def _slowest_ticks(stages: Stages) -> Floats:
    return slowest_split_ticks(stages, stages.layers)


def least_parts_s(job: Job, rows: Skeletons, names: Iterable[str]) -> dict[str, Floats]:
    """Return lower bounds on parts of the step of placed skeletons, in seconds.

    The slowest stage takes the mean of all at least, and so has that many layers. What
    a bound leaves out is at least 0: ends, sends, recomputation and, in pipelines, the
    end of the step.
    """
    names = [name for name in names if name != BUBBLE]
    if job.gpu_kinds or not names:
        return {}
    time, layers = price_time(job, rows), job.spec.model.n_layers
    layer_s = total(added([time.forward, time.backward]))
    lead_s, is_alone = time.leading * total(time.lead), rows.pp == 1
    beside_s = total(time.first) + total(time.last) + np.maximum(lead_s, 0.0)
    beside_s = beside_s + 2 * rows.vpp * time.send_s
    mean_s = (layers * layer_s + np.minimum(lead_s, 0.0)) / rows.pp
    fewest = np.maximum((mean_s - beside_s) / (layer_s + time.recompute_s), 0.0)
    fewest = np.where(is_alone, float(layers), fewest)
    least: dict[str, Floats] = {}
    for name in names:
        part, none = name.removeprefix(PARTS), np.zeros(len(rows))
        every = time.forward.get(part, none) + time.backward.get(part, none)
        lead = time.leading * time.lead.get(part, none)
        least_s = fewest * every + np.minimum(lead, 0.0)
        least_s = np.maximum(least_s, 0.0) * rows.microbatches
        sync = layers * time.sync_layer.get(part, none)
        sync = sync + np.minimum(time.leading * time.sync_lead.get(part, none), 0.0)
        least_s = least_s + np.where(is_alone, np.maximum(sync, 0.0), 0.0)
        least[name] = least_s * (1 - SURE)
    return least


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
