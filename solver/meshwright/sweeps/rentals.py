"""Machines to rent: the Pareto front of price and time, each point proven.

On some machines of one type price and time are both proportional to the time of a
step. A point of the front that is known is therefore a cutoff of every other choice:
a step that takes longer is dearer and slower. So are the budget and the deadline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, isinf
from typing import NamedTuple

from meshwright.cost.profile import Profile
from meshwright.deadline import Deadline
from meshwright.planner.options import Options
from meshwright.results.outcome_parts import ClosedChoices
from meshwright.results.training_run import Binding, Rental
from meshwright.spec.open_spec import OfferedSpec
from meshwright.sweeps.open_choices import (
    ROUNDING,
    OpenChoice,
    OpenSearch,
    open_choices,
)

ROUND = 4
"""Choices that are solved with the same cutoffs. The number of workers does not change
it, nor therefore any answer."""

USD, DAYS = "usd", "days"
BOTH = (USD, DAYS)


class ToSolve(NamedTuple):
    """A choice to solve."""

    choice: OpenChoice
    most_s: float
    """Longest step that can still be on the front, seconds."""


SolveAll = Callable[[list[ToSolve]], list[OpenChoice]]
"""Returns choices with what is proven of them."""


@dataclass
class RentalChoice:
    """Some machines of an offer, and the bounds proven on the run on them."""

    offered: OfferedSpec
    choice: OpenChoice

    def rate(self, axis: str) -> float:
        """Return USD or days of the run for every second of a step."""
        offered = self.offered
        return offered.usd_per_step_s if axis == USD else offered.days_per_step_s

    def value(self, axis: str) -> float:
        """Return USD or days of the run, or the lower bound on them."""
        return self.choice.best_s * self.rate(axis)

    @property
    def order(self) -> tuple[float, float, int, str]:
        """Return the place among choices: the cheapest first, of equals the fastest.

        While GPUs are taken to share the work without a loss, prices are equal for any
        number of machines; the most of them then leave least to the others.
        """
        spec, offer = self.offered.spec, self.offered.offer
        usd, days = (float(f"{self.value(axis):.9g}") for axis in BOTH)
        return usd, days, spec.cluster.gpus, offer.instance


@dataclass(frozen=True)
class RunLimits:
    """Limits on the cost and the days of a run."""

    usd: float = math.inf
    days: float = math.inf

    def of(self, axis: str) -> float:
        """Return the limit of an axis."""
        return self.usd if axis == USD else self.days


def rental_choices(
    offered: Sequence[OfferedSpec], profile: Profile
) -> list[RentalChoice]:
    """Return specs on offers as choices, with the bounds that need no lattice."""
    choices = open_choices([spec_on_offer.spec for spec_on_offer in offered], profile)
    return [RentalChoice(*pair) for pair in zip(offered, choices, strict=True)]


def front(
    choices: Iterable[RentalChoice],
    limits: RunLimits,
    solve_all: SolveAll,
    axes: Sequence[str] = BOTH,
) -> list[RentalChoice]:
    """Return the choices that are within limits and better than all others by an axis.

    With one axis that is the best one by it.
    """
    left = sorted(choices, key=lambda rental: rental.order)
    best = _best(left, limits, axes)
    while True:
        cutoffs = [(rental, _longest_s(rental, limits, best, axes)) for rental in left]
        alive = [pair for pair in cutoffs if _is_open(*pair)]
        if not alive:
            return best
        now = alive[:ROUND]
        solved = solve_all([ToSolve(rental.choice, most_s) for rental, most_s in now])
        for (rental, _), choice in zip(now, solved, strict=True):
            rental.choice = choice
        best = _best(left, limits, axes)
        if any(rental.choice.is_stopped for rental, _ in now):
            for rental, _ in alive:
                rental.choice.is_stopped |= rental.choice.step_s is None
            return best


def _is_open(rental: RentalChoice, most_s: float) -> bool:
    """Return whether a choice may have a plan of interest that is not known."""
    choice = rental.choice
    is_closed = choice.step_s is not None or isinf(choice.least_s)
    return not is_closed and choice.least_s <= most_s


def _longest_s(
    rental: RentalChoice,
    limits: RunLimits,
    best: list[RentalChoice],
    axes: Sequence[str],
) -> float:
    """Return the longest step with which a choice is within limits and not worse."""
    most_s = min(limits.of(axis) / rental.rate(axis) for axis in BOTH)
    for other in best:
        if other is not rental:
            worse_s = max(other.value(axis) / rental.rate(axis) for axis in axes)
            most_s = min(most_s, worse_s)
    return most_s * (1 + ROUNDING)


def _best(
    choices: Iterable[RentalChoice], limits: RunLimits, axes: Sequence[str]
) -> list[RentalChoice]:
    """Return the solved choices within limits that no other is as good as."""
    solved = [rental for rental in choices if rental.choice.step_s is not None]
    within = [
        rental
        for rental in solved
        if all(rental.value(axis) <= limits.of(axis) for axis in BOTH)
    ]
    first = axes[0]
    within.sort(key=lambda rental: (rental.value(first), *rental.order))
    kept: list[RentalChoice] = []
    for rental in within:
        if not any(_is_as_good(other, rental, axes) for other in kept):
            kept.append(rental)
    return kept


def _is_as_good(other: RentalChoice, rental: RentalChoice, axes: Sequence[str]) -> bool:
    return all(other.value(axis) <= rental.value(axis) for axis in axes)


def solve_choice(
    choice: OpenChoice, most_s: float, options: Options, limit_s: float
) -> OpenChoice:
    """Return a choice with the proof of its fastest plan, or that it takes longer."""
    OpenSearch(options, Deadline(limit_s, options.interrupt)).solve(choice, most_s)
    return choice


@dataclass(frozen=True)
class Ranked:
    """The front of all choices, or the limit that no choice keeps."""

    choices: Sequence[RentalChoice]
    front: list[RentalChoice]
    in_time: RentalChoice | None = None
    """Where nothing keeps both limits: the cheapest within the deadline."""
    in_budget: RentalChoice | None = None
    """Where nothing keeps both limits: the fastest within the budget."""

    @property
    def is_whole(self) -> bool:
        """Return whether every choice was looked at to its end."""
        return not any(rental.choice.is_stopped for rental in self.choices)

    @property
    def binds(self) -> Binding:
        """Return the limit that no choice keeps, even alone."""
        if self.front:
            return "neither"
        if self.in_time is None and self.in_budget is None:
            has_plan = any(one.choice.verdict != "none_fits" for one in self.choices)
            return "each" if has_plan else "no plan"
        if self.in_time is None:
            return "deadline"
        return "budget" if self.in_budget is None else "both"

    @property
    def rentals(self) -> tuple[Rental, ...]:
        """Return all choices as data."""
        return tuple(map(self.told, self.choices))

    @property
    def closed(self) -> ClosedChoices:
        """Return how the choices were closed."""
        return ClosedChoices.of(rental.choice.verdict for rental in self.choices)

    def told(self, rental: RentalChoice) -> Rental:
        """Return a choice as data."""
        offer, cluster, choice = (
            rental.offered.offer,
            rental.offered.spec.cluster,
            rental.choice,
        )
        topology, is_known = cluster.topology, choice.step_s is not None
        above = topology.scale_out
        best = choice.outcome.best if choice.outcome else None
        is_worse = is_known and rental not in (
            *self.front,
            self.in_time,
            self.in_budget,
        )
        return Rental(
            instance=offer.instance,
            cloud=offer.group.cloud,
            region=offer.group.region,
            count=cluster.count,
            gpus=cluster.gpus,
            gpu=topology.gpu.name,
            gpus_per_node=cluster.gpus // cluster.count,
            node_fabric=topology.levels[0].name if topology.levels else "links",
            network=above.name if above else "none",
            network_gbit_s=above.gb_s * 8 if above else None,
            hour_usd=offer.price.hour_usd,
            price_date=offer.group.date,
            price_source=offer.group.source,
            global_batch=rental.offered.spec.training.global_batch,
            verdict="worse" if is_worse else choice.verdict,
            status=choice.outcome.status if choice.outcome else None,
            plan=best.plan if best else None,
            step_s=choice.step_s,
            bound_s=None if isinf(choice.least_s) else choice.least_s,
            days=rental.value(DAYS) if is_known else None,
            usd=rental.value(USD) if is_known else None,
        )


def ranked(
    choices: Sequence[RentalChoice], limits: RunLimits, solve_all: SolveAll
) -> Ranked:
    """Return the front within limits; if empty, the best choice for each limit."""
    found = front(choices, limits, solve_all, BOTH)
    if found or any(rental.choice.is_stopped for rental in choices):
        return Ranked(choices, found)
    in_time = front(choices, replace(limits, usd=inf), solve_all, (USD,))
    in_budget = front(choices, replace(limits, days=inf), solve_all, (DAYS,))
    return Ranked(
        choices, [], *(next(iter(rental), None) for rental in (in_time, in_budget))
    )
