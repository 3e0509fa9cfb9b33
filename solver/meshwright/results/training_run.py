"""The report on a training run, and on rentals, as data."""

from __future__ import annotations

from datetime import date as Date
from typing import Literal

from pydantic import Field

from meshwright.plans.plan import Plan
from meshwright.results.outcome_parts import ClosedChoices, ModelSize, Verdict
from meshwright.results.result import Result
from meshwright.spec.base import SpecModel

Scheme = Literal["fp16", "1-bit", "top-k", "powersgd"]


class Chinchilla(SpecModel):
    """The compute-optimal model of a budget of FLOPs, by C = 6 N D and D = 20 N."""

    budget_flops: float
    params: float
    tokens: float
    overtrained: float = Field(
        description="Tokens that the budget buys this model, over the optimal number: "
        "above 1 the model is trained longer than optimal."
    )
    tokens_per_param: float = Field(
        description="Tokens per parameter that the budget buys this model."
    )


class DeadlineCheck(SpecModel):
    """The deadline of a run, and what is done by then, failures counted in."""

    days: float
    tokens: float
    is_met: bool | None = Field(description="None if the run never ends.")
    rate_needed: float | None = Field(
        description="Rate that would meet the deadline, as a share of the predicted "
        "rate."
    )


class Failures(SpecModel):
    """How much of a run is lost to failures and checkpoints."""

    mtbf_hours: float = Field(description="Mean time between failures of the job.")
    expected: float | None = Field(
        None, description="Failures in the run; None if its length is not known."
    )
    checkpoint_gb: float | None = None
    write_s: float | None = Field(
        None, description="Seconds to write a checkpoint to storage."
    )
    stall_s: float | None = Field(
        None, description="Seconds for which training waits for a checkpoint."
    )
    young_s: float | None = Field(
        None, description="Checkpoint interval by Young's formula."
    )
    interval_s: float | None = Field(
        None, description="Checkpoint interval by Daly's formula: the one used."
    )
    goodput: float | None = Field(None, description="Useful share of the days.")
    set_by: Literal["failures", "storage"] = Field(
        "failures",
        description="The reason for the interval: storage if writing a checkpoint "
        "takes longer than the interval for the failures, or if a checkpoint every "
        "five minutes loses hardly more.",
    )
    failures_alone_s: float | None = Field(
        None, description="Daly's interval if storage were no limit."
    )
    storage_share: float | None = Field(
        None, description="Share of the time in which storage writes."
    )
    storage_tb_h: float | None = Field(
        None, description="Terabytes that storage writes in an hour."
    )
    short_gains: float | None = Field(
        None,
        description="Share of the time gained over a checkpoint every five minutes; "
        "None if the interval is no shorter than that.",
    )
    lost_days: float | None = None


class Compression(SpecModel):
    """The price of sending gradients in fewer bytes; model quality is not modelled."""

    scheme: Scheme
    share: float = Field(description="Bytes on the links, as a share of those now.")
    traffic_s: float = Field(description="Time of compressed gradients per step.")
    exposed_s: float = Field(description="The part of it that no compute hides.")
    encode_s: float = Field(description="To compress and expand, per step.")
    step_s: float
    saved_days: float | None
    saved_usd: float | None


class StragglerPrice(SpecModel):
    """The price of slow GPUs, for which all others wait."""

    slowdown: float
    one_slow_s: float = Field(description="Seconds per step that one slow GPU adds.")
    one_slow_usd: float | None = Field(description="Cost of one slow GPU over the run.")
    jitter: float
    jitter_s: float = Field(description="Seconds per step that jitter adds.")


class RunReport(SpecModel):
    """The run that a spec asks for, on its best plan."""

    tokens: float | None
    steps: float | None
    params: int
    active_params: int
    state_gb: float = Field(description="Weights, gradients and optimizer, unsharded.")
    least_gpus: int = Field(description="Fewest GPUs that can hold the state alone.")
    flops_6nd: float | None = Field(description="6 N D with N the active parameters.")
    flops_exact: float | None = Field(
        description="Counted over matmuls and causal attention."
    )
    mfu: float
    hfu: float = Field(description="MFU with recomputed FLOPs counted in.")
    tokens_per_s: float
    ideal_days: float | None = Field(description="Days without failures.")
    days: float | None
    gpu_hours: float | None
    cost_usd: float | None
    usd_per_mtoken: float | None = Field(description="USD per million tokens.")
    energy_mwh: float | None = Field(
        description="Energy of the GPUs at their power limit."
    )
    deadline: DeadlineCheck | None
    chinchilla: Chinchilla | None
    failures: Failures | None
    compression: tuple[Compression, ...]
    straggler: StragglerPrice


Binding = Literal["budget", "deadline", "both", "each", "neither", "no plan"]


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
    """The front of price against time within a budget and a deadline.

    Example:
        >>> import meshwright as mw
        >>> told = mw.rent(model="qwen2.5-0.5b", tokens="1B", count=1)  # doctest: +SKIP
        >>> {rental.status for rental in told.front}  # doctest: +SKIP
        {'optimal'}
    """

    title: str = Field(description="The question: model, lengths and framework.")
    status: Literal["optimal", "infeasible", "unknown"] = Field(
        description="Whether the front is proven."
    )
    model: ModelSize
    tokens: float = Field(description="Tokens of the run.")
    budget_usd: float | None = Field(description="What the run may cost.")
    deadline_days: float | None = Field(description="What the run may take.")
    front: tuple[Rental, ...] = Field(
        description="Proven choices, each cheaper and slower than the one before."
    )
    binds: Binding = Field(
        description="If no choice keeps both limits: the limit that none keeps even "
        "alone; `each` if that is either; `both` if either can be kept, but not "
        "together; `no plan` if the model fits no machine."
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
    why_impossible: str = Field("", description="Why the spec rules choices out.")

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
