"""Specs that leave something open: how many machines, which, or how large a batch.

A price list offers instance types of clouds; each offer makes one spec.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date as Date
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from meshwright.spec.base import Count, Name, Positive, SpecModel
from meshwright.spec.cluster import Cluster
from meshwright.spec.model import Model
from meshwright.spec.spec import Spec
from meshwright.spec.topology import Topology
from meshwright.spec.units import DAY_S, HOUR_S

MOST_VALUES = 1_024
"""Most numbers that one field may be left open to."""

ACCEPTED = "expected a whole number, a list, or {min: .., max: ..}, with step"


def is_open(value: object) -> bool:
    """Return whether the value of a field leaves a number open."""
    return isinstance(value, list | dict)


def _as_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return _of_range(value)
    values = value if isinstance(value, list | tuple) else [value]
    if not values:
        raise ValueError("expected at least one number")
    _refuse_many(len(values))
    return values


def _of_range(value: dict[Any, Any]) -> list[int]:
    """Return the numbers of a range, both ends included."""
    low, high, step = value.get("min", 1), value.get("max"), value.get("step", 1)
    is_whole = all(type(number) is int and number > 0 for number in (low, high, step))
    if not is_whole or set(value) - {"min", "max", "step"}:
        raise ValueError(f"{ACCEPTED}: whole numbers above 0")
    assert isinstance(high, int), "checked above"
    if low > high:
        raise ValueError(f"min {low} is above max {high}")
    _refuse_many((high - low) // step + 1)
    return list(range(low, high + 1, step))


def _refuse_many(count: int) -> None:
    if count > MOST_VALUES:
        told = f"leaves {count:,} numbers open; accepted: up to {MOST_VALUES:,}"
        raise ValueError(told)


def _distinct(values: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(set(values)))


_NUMBER: dict[str, Any] = {"type": "integer", "minimum": 1}

OPEN_SCHEMA: dict[str, Any] = {
    "anyOf": [
        _NUMBER,
        {"type": "array", "items": _NUMBER, "minItems": 1, "maxItems": MOST_VALUES},
        {
            "type": "object",
            "properties": dict.fromkeys(("min", "max", "step"), _NUMBER),
            "required": ["max"],
            "additionalProperties": False,
        },
    ]
}
"""JSON Schema of a number that a file may leave open."""

OpenNumbers = Annotated[
    tuple[Count, ...],
    AfterValidator(_distinct),
    BeforeValidator(_as_numbers),
    WithJsonSchema(OPEN_SCHEMA),
]
"""The numbers that a field may become, the least first."""

CHOICES = "cluster.choices"
COUNT = "cluster.count"
BATCH = "training.global_batch"


@dataclass(frozen=True)
class OpenSpec:
    """A question of training with open numbers, as all specs that it may become.

    Example:
        >>> import meshwright as mw
        >>> spec = mw.load({
        ...     "model": "llama3-8b",
        ...     "cluster": {"topology": "dgx-h100", "count": {"min": 1, "max": 4}},
        ...     "training": {"seq_len": 8192, "global_batch": [64, 96]},
        ... })
        >>> len(spec.choices), spec.counts, spec.batches
        (8, (1, 2, 3, 4), (64, 96))
    """

    choices: tuple[Spec, ...]
    """The specs that it may become, those with the fewest GPUs first."""
    impossible: int = 0
    """How many choices some other field of the spec rules out."""
    why_impossible: str = ""
    """The field that rules out the first of them, and why."""

    @property
    def model(self) -> Model:
        """Return the model, which is that of every choice."""
        return self.choices[0].model

    @property
    def clusters(self) -> tuple[Cluster, ...]:
        """Return the clusters that may be chosen."""
        return tuple({id(one.cluster): one.cluster for one in self.choices}.values())

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the numbers of machines that may be chosen."""
        return tuple(sorted({choice.cluster.count for choice in self.choices}))

    @property
    def batches(self) -> tuple[int, ...]:
        """Return the sizes of a batch that may be chosen."""
        return tuple(sorted({choice.training.global_batch for choice in self.choices}))

    @property
    def open_fields(self) -> tuple[str, ...]:
        """Return the fields that are open."""
        names = {choice.cluster.topology.name for choice in self.choices}
        is_open = {
            CHOICES: len(names) > 1,
            COUNT: len(self.counts) > 1,
            BATCH: len(self.batches) > 1,
        }
        return tuple(name for name, is_it in is_open.items() if is_it)

    @property
    def title(self) -> str:
        """Return the question in one line."""
        largest = self.choices[-1]
        return f"{largest.title} at most, of {len(self.choices):,} choices"


class Price(SpecModel):
    """The price of one machine for an hour."""

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


NO_CLOUD = "own"
"""The cloud of machines that a spec has, at the prices of the spec."""

ANY_REGION = "any"
"""The region of prices that name none."""


class PriceGroup(SpecModel):
    """Prices that one source gives, on one date."""

    cloud: Name
    region: Name = ANY_REGION
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
