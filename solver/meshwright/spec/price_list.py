"""What instance types of clouds cost: a list of prices with dates and sources."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date as Date
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field

from meshwright.spec.base import Count, Name, Positive, SpecModel
from meshwright.spec.cluster import Cluster
from meshwright.spec.spec import Spec
from meshwright.spec.topology import Topology
from meshwright.spec.units import DAY_S, HOUR_S


class Price(SpecModel):
    """What one machine costs for an hour."""

    hour_usd: Positive = Field(description="USD for an hour of the whole machine.")
    machine: Name | None = Field(
        None,
        description="A bundled machine, or the file of a topology; default: the one "
        "that goes by the name of the instance type.",
    )
    most: Count | None = Field(None, description="How many can be had.")


def _as_price(value: Any) -> Any:
    return value if isinstance(value, dict | Price) else {"hour_usd": value}


PriceField = Annotated[
    Price, BeforeValidator(_as_price, json_schema_input_type=Positive | Price)
]


class PriceGroup(SpecModel):
    """Prices that one source gives, on one date."""

    cloud: Name
    region: Name = "any"
    date: Date | None = Field(
        None, description="The day of the prices, such as 2026-11-01."
    )
    source: Name = "not said"
    instances: dict[Name, PriceField] = Field(
        min_length=1, description="By instance type, USD an hour, or what Price has."
    )


class PriceList(SpecModel):
    """All prices of a file."""

    prices: tuple[PriceGroup, ...]


@dataclass(frozen=True)
class Offer:
    """One instance type with its price, where and when it was asked for."""

    instance: str
    group: PriceGroup
    price: Price

    @property
    def machine(self) -> str:
        """Return the bundled machine, or the file, that it is."""
        return self.price.machine or self.instance

    def priced(self, topology: Topology) -> Topology:
        """Return the topology of the machine, by this name and at this price."""
        gpu_usd = self.price.hour_usd / Cluster(topology=topology).gpus
        gpu = topology.gpu.model_copy(update={"hour_usd": gpu_usd})
        return topology.model_copy(update={"gpu": gpu, "name": self.instance})


class OfferedSpec(NamedTuple):
    """A spec on some machines of an offer."""

    offer: Offer
    spec: Spec

    @property
    def hour_usd(self) -> float:
        """Return the price of all its machines for an hour."""
        return self.offer.price.hour_usd * self.spec.cluster.count

    @property
    def days_per_step_s(self) -> float:
        """Return the days of the run for every second that a step takes.

        Failures are left out.
        """
        training, tokens = self.spec.training, self.spec.run.tokens
        assert tokens is not None, "loading refuses runs without a length"
        return tokens / (training.seq_len * training.global_batch) / DAY_S

    @property
    def usd_per_step_s(self) -> float:
        """Return the USD of the run for every second that a step takes."""
        return self.days_per_step_s * DAY_S / HOUR_S * self.hour_usd
