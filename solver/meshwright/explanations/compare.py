"""Which of several plans wins, in which parts of a step, and where the order turns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, cycle, pairwise
from typing import Any

import numpy as np

from meshwright.cost.job import Job
from meshwright.cost.price import price, stage_bytes
from meshwright.cost.profile import Profile
from meshwright.economics.ledger import ledger
from meshwright.explanations.decisions import with_pins
from meshwright.loading.vary import Varied
from meshwright.plans.plan import Plan
from meshwright.plans.simplicity import NAMES
from meshwright.plans.skeletons import Skeletons, Split, to_row, to_split
from meshwright.results.comparison import (
    ComparedPlan,
    Comparison,
    Crossover,
    HeadToHead,
    Ledger,
    PartSharding,
    Side,
    VariedRange,
    WinnerSpan,
)
from meshwright.results.explanation import Explanation, GapToBest
from meshwright.results.outcome import KindResult, Outcome
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.cluster import Cluster
from meshwright.spec.plan_fields import KEEPS_ALL, OFFLOADS, ONE_F_ONE_B, Pins, Range
from meshwright.spec.spec import Spec

STATE = {"optimizer": 1, "gradients": 2, "weights": 3}
"""Parts of the state, with the lowest code of `offload` that keeps them on the host."""

SAVED = ("activations", "logits")
"""Parts that a GPU holds once for each micro-batch in flight."""

AXES = ("ep", "dp_shard", "cp", "tp", "dp_replicate")
"""Axes in the order in which their degrees are set to 1; `pp` comes last."""

MeanBytes = dict[str, float]
"""Bytes of each part of memory on a GPU, the mean over stages."""

Solve = Callable[[Spec], Outcome]

NamedPins = Sequence[tuple[str, Pins]]
"""Plans by the names they are printed under, as the pins that define them."""

POINTS = 5
"""Values that are always solved, evenly spaced on a logarithmic scale with both ends.

The value in the spec, at which plans are already known, is added."""

CLOSE = 1.01
"""Bisection stops when its ends are within one percent."""

NUDGES = (CLOSE**-0.45, CLOSE**0.45, 0.0)
"""Factors on the expected crossover to try next: just below it, just above it, and then
(0) the middle of the interval that is left."""

Order = tuple[str, ...]

Pair = tuple[str, str]

SpecAt = Callable[[float], Spec]


def compare(spec: Spec, plans: NamedPins, solve: Solve) -> Comparison:
    """Return a comparison of the named plans; fields they leave open are optimised."""
    compared = []
    for name, pins in plans:
        outcome = solve(with_pins(spec, pins))
        compared.append(_compared(name, outcome, outcome.cluster))
    return _fastest_first(spec, compared)


def compare_kinds(spec: Spec, outcome: Outcome) -> Comparison:
    """Return a comparison of the best plans of all kinds that an outcome lists.

    Where no plan fits it has one entry, "any plan", with the broken rules.
    """
    if outcome.best is None:
        return _fastest_first(spec, [_compared("any plan", outcome, None)])
    best_of_kinds = [
        _compared(result.kind, result, outcome.cluster) for result in outcome.by_kind
    ]
    return _fastest_first(spec, best_of_kinds)


def in_full(spec: Spec, comparison: Comparison, profile: Profile) -> Comparison:
    """Return the comparison with the memory sharding and collectives of each plan."""
    plans = tuple(_plan_in_full(spec, plan, profile) for plan in comparison.plans)
    return comparison.model_copy(update={"plans": plans})


def memory_sharding(job: Job, priced: PricedPlan) -> tuple[PartSharding, ...]:
    """Return how a plan shards each part of memory that is not empty."""
    shrunk = _with_fewer_axes(job, priced.plan)
    return tuple(
        _part_sharding(priced, name, shrunk)
        for name in priced.stages[0].parts
        if shrunk[0][1][name]
    )


def _with_fewer_axes(job: Job, plan: Plan) -> list[tuple[str, MeanBytes]]:
    """Return the memory of a GPU as one axis after the other is set to 1.

    Each entry names the axis that was set to 1 last; the first entry is the plan itself
    (without offload), the last is one GPU.
    """
    rows, split = to_row(job.fabric, plan)[0], to_split(plan)
    rows = replace(rows, offload=np.array([KEEPS_ALL]))
    found = [("", _mean_bytes(job, rows, split))]
    for axis in AXES:
        # Experts that are split are split by the tensor group, and go whole with it.
        both = (axis, "etp") if axis == "tp" else (axis,)
        degree_1: dict[str, Any] = dict.fromkeys(both, np.array([1]))
        rows = replace(rows, **degree_1)
        found.append((axis, _mean_bytes(job, rows, split)))
    one, schedule = np.array([1]), np.array([ONE_F_ONE_B])
    rows = replace(rows, pp=one, vpp=one, schedule=schedule)
    whole = (np.array([part.sum()]) for part in (split.layers, split.recomputed))
    return [*found, ("pp", _mean_bytes(job, rows, Split(*whole)))]


def _mean_bytes(job: Job, rows: Skeletons, split: Split) -> MeanBytes:
    parts = stage_bytes(price(job, rows), split)
    return {name: float(part.mean()) for name, part in parts.items()}


def _part_sharding(
    priced: PricedPlan, part: str, shrunk: list[tuple[str, MeanBytes]]
) -> PartSharding:
    plan = priced.plan
    divisors = dict(_divisors(part, shrunk)) if part in (*STATE, *SAVED) else {}
    return PartSharding(
        part=part,
        gib=tuple(stage.parts[part] for stage in priced.stages),
        is_offloaded=OFFLOADS.index(plan.offload) >= STATE.get(part, len(OFFLOADS)),
        divided_by={axis: by for axis, by in divisors.items() if by > 1 + 1e-9},
        copies=_copies(plan, part, divisors),
    )


def _divisors(
    part: str, shrunk: list[tuple[str, MeanBytes]]
) -> Iterator[tuple[str, float]]:
    """Yield by how much each axis divides a part.

    Only the last stage has logits, so that `pp` does not divide them.
    """
    for (_, before), (axis, after) in pairwise(shrunk):
        if axis != "pp" or part != "logits":
            yield axis, after[part] / before[part]


def _copies(plan: Plan, part: str, divisors: dict[str, float]) -> float | None:
    """Return how many GPUs hold the same byte of a part, among those that share it.

    All GPUs share the state. What a micro-batch saves is shared by the GPUs that work
    on it at a time: those of one stage of one replica. None where nothing is sharded.
    """
    if not divisors:
        return None
    if part in STATE:
        return plan.world_size / float(np.prod(list(divisors.values())))
    within_stage = [by for axis, by in divisors.items() if axis != "pp"]
    return plan.tp * plan.cp / float(np.prod(within_stage))


def _compared(
    name: str, result: Outcome | KindResult, cluster: Cluster | None
) -> ComparedPlan:
    broken = result.near_miss.broken_rules if result.near_miss else ()
    return ComparedPlan(
        name=name, plan=result.best, broken_rules=broken, cluster=cluster
    )


def _fastest_first(spec: Spec, compared: list[ComparedPlan]) -> Comparison:
    compared.sort(key=lambda one: one.plan.step_s if one.plan else float("inf"))
    return Comparison(title=spec.title, plans=tuple(compared))


def _plan_in_full(spec: Spec, compared: ComparedPlan, profile: Profile) -> ComparedPlan:
    if compared.plan is None:
        return compared
    job = profile.job(spec.model_copy(update={"cluster": compared.cluster}))
    details = {
        "holdings": memory_sharding(job, compared.plan),
        "collectives": ledger(job, compared.plan.plan),
    }
    return compared.model_copy(update=details)


def kind_pins(spec: Spec, kind: str) -> Pins:
    """Return pins that allow only plans of a kind, among those that the spec allows."""
    used = kind.split(" + ")
    axes = dict(zip(("tp", "pp", "dp", "cp"), NAMES, strict=True))
    pins = {}
    for axis, name in axes.items():
        allowed: Range = getattr(spec.pins, axis) or Range()
        pins[axis] = _from_two(allowed) if name in used else Range(values=(1,))
    return Pins.model_validate(pins)


def _from_two(allowed: Range) -> Range:
    """Return the degrees of a pin that are 2 or more."""
    if allowed.values is None:
        return Range(min=max(allowed.min, 2), max=allowed.max)
    return Range(values=tuple(value for value in allowed.values if value > 1))


class SolvedPlans:
    """The best plans at any value of the varied number; each is solved only once."""

    def __init__(self, spec_at: SpecAt, plans: NamedPins, solve: Solve) -> None:
        """Keep the spec as a function of the varied number, and the plans by name."""
        self.names = tuple(name for name, _ in plans)
        self._spec_at, self._pins, self._solve = spec_at, dict(plans), solve
        self._known: dict[tuple[float, str], PricedPlan | None] = {}
        self.known_values: list[float] = []

    def add(self, value: float, comparison: Comparison) -> None:
        """Add the plans of a comparison that was made at one value."""
        self.known_values.append(value)
        for compared in comparison.plans:
            self._known[value, compared.name] = compared.plan

    def best(self, value: float, name: str) -> PricedPlan | None:
        """Return the best plan of a name at a value, None where none fits."""
        key = (value, name)
        if key not in self._known:
            spec = with_pins(self._spec_at(value), self._pins[name])
            self._known[key] = self._solve(spec).best
        return self._known[key]

    def order(self, value: float, among: Collection[str] | None = None) -> Order:
        """Return the names of the plans that fit at a value, the fastest first.

        Step times that agree to nine digits count as equal; those plans keep the order
        in which they were given.
        """
        names = [name for name in self.names if among is None or name in among]
        best = {name: self.best(value, name) for name in names}
        step_s = {n: float(f"{plan.step_s:.9g}") for n, plan in best.items() if plan}
        return tuple(sorted(step_s, key=lambda name: step_s[name]))


def find_crossovers(plans: SolvedPlans, low: float, high: float) -> list[Crossover]:
    """Return the crossovers between two values of the varied number.

    Every order is that of exact solves. Between two solved values of unequal order the
    crossovers are found by bisection. A change that is undone between two neighbouring
    values is missed.
    """
    ratio = (high / low) ** (1 / (POINTS - 1))
    values = {*(low * ratio**point for point in range(POINTS - 1)), high}
    values |= {value for value in plans.known_values if low < value < high}
    return [
        crossover
        for below, above in pairwise(sorted(values))
        for crossover in _crossovers_between(plans, below, above)
    ]


def _crossovers_between(
    plans: SolvedPlans, below: float, above: float
) -> Iterator[Crossover]:
    """Yield the crossovers between two solved values, the lowest first."""
    before, end = plans.order(below), plans.order(above)
    while before != end:
        pairs = _swapped_pairs(before, end)
        movers = set(before).symmetric_difference(end).union(*pairs)
        at = _first_crossover(plans, (below, above), pairs, movers)
        is_swap = len(pairs) == 1 and len(movers) == 2
        after = _with_swap(before, pairs[0]) if is_swap else plans.order(at)
        yield Crossover(at=at, before=before, after=after)
        below, before = at, after


def _swapped_pairs(before: Order, after: Order) -> list[Pair]:
    """Return the pairs of plans that stand the other way round in the second order."""
    both = [name for name in before if name in after]
    return [(a, b) for a, b in combinations(both, 2) if after.index(a) > after.index(b)]


def _with_swap(order: Order, pair: Pair) -> Order:
    """Return the order with two plans in each other's place."""
    a, b = pair
    return tuple({a: b, b: a}.get(name, name) for name in order)


def _first_crossover(
    plans: SolvedPlans, ends: tuple[float, float], pairs: list[Pair], movers: set[str]
) -> float:
    """Return a value at most one percent above the first crossover of some plans.

    The crossover stays between two solved values, which bisection brings together.
    Values just below and just above the expected crossover are tried first.
    """
    (below, above), nudges = ends, cycle(NUDGES)
    before = plans.order(below, movers)
    while above / below > CLOSE:
        expected = [_expected_crossover(plans, below, above, pair) for pair in pairs]
        middle = next(nudges) * min(filter(None, expected), default=0.0)
        if not below < middle < above:
            middle = (above * below) ** 0.5
        if plans.order(middle, movers) == before:
            below = middle
        else:
            above = middle
    return above


def _expected_crossover(
    plans: SolvedPlans, below: float, above: float, pair: Pair
) -> float | None:
    """Return where the step times of two plans would be equal; None if that is unknown.

    Between solved values the step time is taken as linear in the inverse of the varied
    number, as the time on a link is linear in the inverse of its bandwidth.
    """
    solved = [plans.best(value, name) for value in (below, above) for name in pair]
    step_s = [plan.step_s for plan in solved if plan is not None]
    if len(step_s) < len(solved):
        return None
    lead_s, later_lead_s = step_s[0] - step_s[1], step_s[2] - step_s[3]
    if lead_s * later_lead_s >= 0:
        return None
    share = lead_s / (lead_s - later_lead_s)
    return 1 / (1 / below + share * (1 / above - 1 / below))


def part_differences(
    parts_s: Mapping[str, float], other_parts_s: Mapping[str, float]
) -> dict[str, float]:
    """Return the seconds of each part minus those of the same part in another plan.

    A part that only one of the plans has counts as zero in the other.
    """
    names = dict.fromkeys([*parts_s, *other_parts_s])
    return {n: parts_s.get(n, 0.0) - other_parts_s.get(n, 0.0) for n in names}


def gap_to_best(plan: PricedPlan, best: PricedPlan) -> GapToBest:
    """Return how much longer a plan's step takes than the best plan's, by part."""
    terms = part_differences(plan.time_parts, best.time_parts)
    return GapToBest(terms=terms, step_s=plan.step_s - best.step_s)


def with_crossovers(
    comparison: Comparison, varied: Varied, plans: NamedPins, solve: Solve
) -> Comparison:
    """Return the comparison with its crossovers, and what decides between the plans."""
    solved, low, high = SolvedPlans(varied.at, plans, solve), varied.low, varied.high
    if varied.value is not None:
        solved.add(varied.value, comparison)
    crossovers = find_crossovers(solved, low, high)
    fields = ("about", "unit", "low", "high", "value")
    changed = {
        "vary": varied.name,
        "range": VariedRange(**{name: getattr(varied, name) for name in fields}),
        "flips": tuple(crossovers),
        "rules": tuple(head_to_heads(solved, crossovers, low, high, varied.value)),
    }
    return comparison.model_copy(update=changed)


def head_to_heads(
    plans: SolvedPlans,
    crossovers: list[Crossover],
    low: float,
    high: float,
    value: float | None,
) -> list[HeadToHead]:
    """Return which plan of each pair is faster in which range.

    The pairs are those that change order, and those of the fastest plan with a plan
    that it always beats. The fastest plan is the one at the value in the spec, or at
    the end of the range nearest to it.
    """
    orders = [plans.order(low), *(crossover.after for crossover in crossovers)]
    ends = [low, *(crossover.at for crossover in crossovers), high]
    nearest = min(max(value or low, low), high)
    fastest = next(iter(plans.order(nearest)), "")
    found = []
    for pair in combinations(plans.names, 2):
        spans = _spans(pair, orders, ends)
        if len(spans) > 1 or fastest in pair:
            found.append(_head_to_head(plans, pair, spans, nearest))
    return found


def _spans(
    pair: tuple[str, str], orders: list[Order], ends: list[float]
) -> tuple[WinnerSpan, ...]:
    """Return the spans of values in which the winner of a pair stays the same."""
    spans: list[WinnerSpan] = []
    for order, (low, high) in zip(orders, pairwise(ends), strict=True):
        winner = next((name for name in order if name in pair), "")
        if spans and spans[-1].winner == winner:
            low = spans.pop().low
        spans.append(WinnerSpan(low=low, high=high, winner=winner))
    return tuple(spans)


def _head_to_head(
    plans: SolvedPlans,
    pair: tuple[str, str],
    spans: tuple[WinnerSpan, ...],
    nearest: float,
) -> HeadToHead:
    winner = spans[-1].winner or spans[-2].winner
    loser = next(name for name in pair if name != winner)
    at = spans[0].high if len(spans) > 1 else nearest
    winning, losing = plans.best(at, winner), plans.best(at, loser)
    sides: tuple[Side, ...] = ()
    if winning is not None and losing is not None:
        sides = (_side(winner, winning, losing), _side(loser, losing, winning))
    return HeadToHead(spans=spans, winner=winner, loser=loser, at=at, sides=sides)


def _side(name: str, plan: PricedPlan, other: PricedPlan) -> Side:
    """Return the parts on which a plan spends more than the other, largest first."""
    more_s = part_differences(plan.time_parts, other.time_parts)
    pays_s = {part: s for part, s in more_s.items() if s > 1e-9 * plan.step_s}
    largest = dict(sorted(pays_s.items(), key=lambda item: -item[1]))
    return Side(name=name, step_s=plan.step_s, pays_s=largest, sent_gb=sent_gb(plan))


def sent_gb(plan: PricedPlan) -> float:
    """Return the GB per step on the busiest link, all phases together, one way."""
    carried_gb: dict[str, float] = defaultdict(float)
    for load in plan.all_links:
        carried_gb[load.link] += load.gb
    return max(carried_gb.values(), default=0.0)


def with_ledger(spec: Spec, explanation: Explanation, profile: Profile) -> Explanation:
    """Return the explanation with the ledger of the collectives of its plan.

    Where no plan fits, it is the ledger of the plan that comes closest; without any
    plan it is an empty ledger.
    """
    plan = explanation.plan.plan if explanation.plan else explanation.nearest
    if plan is None or explanation.cluster is None:
        return explanation.model_copy(update={"collectives": Ledger(stages=())})
    job = profile.job(spec.model_copy(update={"cluster": explanation.cluster}))
    return explanation.model_copy(update={"collectives": ledger(job, plan)})
