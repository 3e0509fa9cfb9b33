"""What is told of a training run, as data."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from meshwright.spec.base import SpecModel

Scheme = Literal["fp16", "1-bit", "top-k", "powersgd"]


class Chinchilla(SpecModel):
    """The compute-optimal model of as many FLOPs, by C = 6 N D and D = 20 N."""

    budget_flops: float
    params: float
    tokens: float
    overtrained: float = Field(
        description="Tokens that the budget gives this model, over the optimal ones: "
        "above 1 it is trained for longer, below for less long."
    )
    tokens_per_param: float = Field(description="That the budget gives this model.")


class Deadline(SpecModel):
    """What can be done until then, failures and all."""

    days: float
    tokens: float
    is_met: bool | None = Field(description="None where the run never ends.")
    rate_needed: float | None = Field(description="To meet it, of the rate there is.")


class Failures(SpecModel):
    """What failures and checkpoints take of the run."""

    mtbf_hours: float = Field(description="Of the whole job.")
    expected: float | None = Field(
        None, description="In all; None where days are not known."
    )
    checkpoint_gb: float | None = None
    write_s: float | None = Field(None, description="Of one checkpoint, to storage.")
    stall_s: float | None = Field(None, description="For which training waits for it.")
    young_s: float | None = Field(None, description="Interval by Young's formula.")
    interval_s: float | None = Field(None, description="By Daly's: the one used.")
    goodput: float | None = Field(None, description="Useful share of the days.")
    set_by: Literal["failures", "storage"] = Field(
        "failures",
        description="Storage where it takes longer to write one than the interval that "
        "failures ask for, or where one every five minutes loses hardly more.",
    )
    failures_alone_s: float | None = Field(
        None, description="Daly's interval, were storage as fast as it needs."
    )
    storage_share: float | None = Field(
        None, description="Of the time in which storage writes."
    )
    storage_tb_h: float | None = Field(None, description="What it writes in an hour.")
    short_gains: float | None = Field(
        None, description="Of the time, over one every five minutes, where shorter."
    )
    lost_days: float | None = None


class Compression(SpecModel):
    """Gradients in fewer bytes: a price, not a promise; quality is not modelled."""

    scheme: Scheme
    share: float = Field(description="Bytes on the links, of what is sent now.")
    traffic_s: float = Field(description="Of gradients per step, then.")
    exposed_s: float = Field(description="Of that, what no compute hides.")
    encode_s: float = Field(description="To compress and expand, per step.")
    step_s: float
    saved_days: float | None
    saved_usd: float | None


class StragglerPrice(SpecModel):
    """What GPUs cost that compute more slowly: all others wait for them."""

    slowdown: float
    one_slow_s: float = Field(description="More per step where one GPU is so slow.")
    one_slow_usd: float | None = Field(description="Over the run.")
    jitter: float
    jitter_s: float = Field(description="More per step: the mean slowest of all GPUs.")


class RunReport(SpecModel):
    """The run that a spec asks for, on its best plan."""

    tokens: float | None
    steps: float | None
    params: int
    active_params: int
    state_gb: float = Field(description="Weights, gradients and optimizer, unsharded.")
    least_gpus: int = Field(description="That can hold so much, and nothing beside.")
    flops_6nd: float | None = Field(description="6 N D, N the active parameters.")
    flops_exact: float | None = Field(description="Matmuls and causal attention.")
    mfu: float
    hfu: float = Field(description="With what is recomputed.")
    tokens_per_s: float
    ideal_days: float | None = Field(description="Without failures.")
    days: float | None
    gpu_hours: float | None
    cost_usd: float | None
    usd_per_mtoken: float | None = Field(description="Per million tokens.")
    energy_mwh: float | None = Field(description="Of the GPUs, at their power limit.")
    deadline: Deadline | None
    chinchilla: Chinchilla | None
    failures: Failures | None
    compression: tuple[Compression, ...]
    straggler: StragglerPrice
