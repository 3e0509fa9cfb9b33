"""The answer to what to rent, with what nothing offered can keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isinf

from meshwright.results.open_answer import ClosedChoices
from meshwright.results.rentals import Binding, Rental
from meshwright.solver.rentals import (
    BOTH,
    DAYS,
    USD,
    Limits,
    RentalChoice,
    SolveAll,
    front,
)


@dataclass(frozen=True)
class Ranked:
    """The front of all choices, or what nothing offered can keep."""

    choices: Sequence[RentalChoice]
    front: list[RentalChoice]
    in_time: RentalChoice | None = None
    """Where nothing keeps both limits: the cheapest within the deadline."""
    in_budget: RentalChoice | None = None
    """Where nothing keeps both limits: the fastest within the budget."""

    @property
    def is_whole(self) -> bool:
        """Return whether every choice was looked at to its end."""
        return not any(own.choice.is_stopped for own in self.choices)

    @property
    def binds(self) -> Binding:
        """Return what nothing can keep, even alone."""
        if self.front:
            return "neither"
        if self.in_time is None:
            return "no plan" if self.in_budget is None else "deadline"
        return "budget" if self.in_budget is None else "both"

    @property
    def rentals(self) -> tuple[Rental, ...]:
        """Return all choices as data."""
        return tuple(map(self.told, self.choices))

    @property
    def closed(self) -> ClosedChoices:
        """Return how the choices were closed."""
        return ClosedChoices.of(own.choice.verdict for own in self.choices)

    def told(self, own: RentalChoice) -> Rental:
        """Return a choice as data."""
        offer, cluster, choice = own.offered.offer, own.offered.spec.cluster, own.choice
        topology, is_known = cluster.topology, choice.step_s is not None
        above = topology.scale_out
        best = choice.outcome.best if choice.outcome else None
        is_worse = is_known and own not in (*self.front, self.in_time, self.in_budget)
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
            global_batch=own.offered.spec.training.global_batch,
            verdict="worse" if is_worse else choice.verdict,
            status=choice.outcome.status if choice.outcome else None,
            plan=best.plan if best else None,
            step_s=choice.step_s,
            bound_s=None if isinf(choice.least_s) else choice.least_s,
            days=own.value(DAYS) if is_known else None,
            usd=own.value(USD) if is_known else None,
        )


def ranked(
    choices: Sequence[RentalChoice], limits: Limits, solve_all: SolveAll
) -> Ranked:
    """Return the front within limits; without one, what keeps each limit alone."""
    found = front(choices, limits, solve_all, BOTH)
    if found or any(own.choice.is_stopped for own in choices):
        return Ranked(choices, found)
    in_time = front(choices, replace(limits, usd=inf), solve_all, (USD,))
    in_budget = front(choices, replace(limits, days=inf), solve_all, (DAYS,))
    return Ranked(choices, [], *(next(iter(own), None) for own in (in_time, in_budget)))
