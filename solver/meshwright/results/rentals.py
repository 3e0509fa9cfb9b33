"""What to rent for a training run: machines of clouds by their price and their time."""

from __future__ import annotations

from datetime import date as Date
from typing import Literal

from pydantic import Field

from meshwright.plans.plan import Plan
from meshwright.results.outcome_parts import ClosedChoices, ModelSize, Verdict
from meshwright.results.result import Result, Rows
from meshwright.spec.base import SpecModel

Binding = Literal["budget", "deadline", "both", "neither", "no plan"]


class Rental(SpecModel):
    """Some machines of one instance type, and the run on them."""

    instance: str = Field(description="The instance type, as its cloud calls it.")
    cloud: str
    region: str = Field(description="Where the price is asked.")
    count: int = Field(description="Machines.")
    gpus: int
    gpu: str
    gpus_per_node: int
    node_fabric: str = Field(description="What joins the GPUs of a machine.")
    network: str = Field(description="What joins the machines.")
    network_gbit_s: float | None = Field(description="For each uplink, one way.")
    hour_usd: float = Field(description="List price of one machine for an hour.")
    price_date: Date | None
    price_source: str
    global_batch: int
    verdict: Verdict | Literal["worse"] = Field(
        description="solved: on the front, its fastest plan is proven; worse: proven, "
        "and another is no dearer and no slower, or a limit is missed; bounded: a "
        "lower bound shows that; none_fits: it has no plan; undecided: time ran out."
    )
    status: str | None = Field(None, description="Of its solve; optimal is proven.")
    plan: Plan | None = None
    step_s: float | None = Field(None, description="Of its fastest plan.")
    bound_s: float | None = Field(None, description="No plan of it takes less.")
    days: float | None = Field(None, description="Of the run, failures left out.")
    usd: float | None = Field(None, description="Of the run.")


class RentalAnswer(Result):
    """The front of price against time within a budget and a deadline."""

    title: str
    status: Literal["optimal", "infeasible", "unknown"]
    model: ModelSize
    tokens: float
    budget_usd: float | None
    deadline_days: float | None
    front: tuple[Rental, ...] = Field(
        description="Each cheaper than those before it, and slower; all proven."
    )
    binds: Binding = Field(
        description="Where nothing keeps both: what cannot be kept even alone; both: "
        "each can be kept, not the two together."
    )
    cheapest_in_time: Rental | None = Field(
        None, description="Where nothing keeps both: the cheapest within the deadline."
    )
    fastest_in_budget: Rental | None = Field(
        None, description="Where nothing keeps both: the fastest within the budget."
    )
    closed: ClosedChoices
    rentals: tuple[Rental, ...] = Field(description="All that were looked at.")
    impossible: int = Field(0, description="Choices that the spec rules out.")
    why_impossible: str = ""

    @property
    def dates(self) -> tuple[Date, ...]:
        """Return the dates of the prices, the first one first."""
        return tuple(sorted({own.price_date for own in self.rentals if own.price_date}))

    @property
    def clouds(self) -> tuple[str, ...]:
        """Return the clouds that were looked at."""
        return tuple(sorted({own.cloud for own in self.rentals}))

    def _caption(self) -> str:
        return self.title

    def _rows(self) -> Rows:
        for own in self.front:
            told = f"{own.usd or 0:,.0f} USD, {own.days or 0:.3g} days"
            yield f"{own.count} x {own.instance}", told
