"""Machines to rent for a training run, by price and time."""

from __future__ import annotations

from datetime import date as Date
from typing import Literal

from pydantic import Field

from meshwright.plans.plan import Plan
from meshwright.results.outcome_parts import ClosedChoices, ModelSize, Verdict
from meshwright.results.result import Result
from meshwright.spec.base import SpecModel

Binding = Literal["budget", "deadline", "both", "neither", "no plan"]


class Rental(SpecModel):
    """Some machines of one instance type, and the run on them."""

    instance: str = Field(description="The instance type, as its cloud calls it.")
    cloud: str
    region: str = Field(description="Region of the price.")
    count: int = Field(description="Number of machines.")
    gpus: int
    gpu: str
    gpus_per_node: int
    node_fabric: str = Field(description="Fabric that joins the GPUs of a machine.")
    network: str = Field(description="Network that joins the machines.")
    network_gbit_s: float | None = Field(
        description="Bandwidth of each uplink, one way."
    )
    hour_usd: float = Field(description="List price of one machine for an hour.")
    price_date: Date | None
    price_source: str
    global_batch: int
    verdict: Verdict | Literal["worse"] = Field(
        description="solved: on the front, its fastest plan is proven; worse: proven, "
        "and another is no dearer and no slower, or a limit is missed; bounded: a "
        "lower bound shows that; none_fits: it has no plan; undecided: time ran out."
    )
    status: str | None = Field(
        None, description="Status of its solve; optimal is proven."
    )
    plan: Plan | None = None
    step_s: float | None = Field(None, description="Step time of its fastest plan.")
    bound_s: float | None = Field(
        None, description="Lower bound on the step time of its plans."
    )
    days: float | None = Field(None, description="Days of the run, without failures.")
    usd: float | None = Field(None, description="Price of the run.")


class RentalAnswer(Result):
    """The front of price against time within a budget and a deadline."""

    title: str
    status: Literal["optimal", "infeasible", "unknown"]
    model: ModelSize
    tokens: float
    budget_usd: float | None
    deadline_days: float | None
    front: tuple[Rental, ...] = Field(
        description="Proven choices, each cheaper and slower than the one before."
    )
    binds: Binding = Field(
        description="If no choice keeps both limits: the limit that none keeps even "
        "alone; `both` if each can be kept, but not together."
    )
    cheapest_in_time: Rental | None = Field(
        None,
        description="If no choice keeps both limits: the cheapest within the deadline.",
    )
    fastest_in_budget: Rental | None = Field(
        None,
        description="If no choice keeps both limits: the fastest within the budget.",
    )
    closed: ClosedChoices
    rentals: tuple[Rental, ...] = Field(description="All choices.")
    impossible: int = Field(0, description="Choices that the spec rules out.")
    why_impossible: str = ""

    @property
    def dates(self) -> tuple[Date, ...]:
        """Return the dates of the prices, the first one first."""
        return tuple(
            sorted({rental.price_date for rental in self.rentals if rental.price_date})
        )

    @property
    def clouds(self) -> tuple[str, ...]:
        """Return the clouds that were looked at."""
        return tuple(sorted({rental.cloud for rental in self.rentals}))
