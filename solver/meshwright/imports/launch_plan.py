"""What a launch decides of a plan, given the sizes of its model and its cluster."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from meshwright.imports.launch import Launch
from meshwright.imports.launch_groups import check_groups
from meshwright.imports.launch_stages import decide_recompute, decide_stages

DIRECT = (
    "tp", "pp", "vpp", "cp", "ep", "dp_replicate", "dp_shard", "zero", "micro_batch",
    "microbatches", "recompute", "recompute_segment", "offload", "precision",
)  # fmt: skip
"""Fields that a launch says as plans have them."""

ASKED = (
    "tp", "pp", "vpp", "cp", "ep", "zero", "micro_batch", "sequence_parallel",
    "recompute", "schedule", "offload", "precision",
)  # fmt: skip
"""Fields that are named where a launch leaves them open."""


@dataclass(frozen=True)
class Sizes:
    """What of a job a launch may leave to others; None where nobody says it."""

    gpus: int | None = None
    n_layers: int | None = None
    precisions: tuple[str, ...] | None = None


@dataclass
class Decided:
    """Fields of a plan that a launch decides."""

    pins: dict[str, Any]
    global_batch: int | None = None
    """Sequences of a step, where the launch says them in other numbers."""

    @property
    def open(self) -> list[str]:
        """Return the fields that are left open, the placement of ranks always."""
        pins = self.pins
        needless = {"vpp", "schedule"} if pins.get("pp") == 1 else set()
        needless |= {"sequence_parallel"} if pins.get("tp") == 1 else set()
        needless |= {"micro_batch"} if "microbatches" in pins else set()
        named = [
            name
            for name in ASKED
            if name not in {*pins, *needless} or _is_choice(pins.get(name))
        ]
        if "pp" in pins and pins["pp"] != 1 and "layers" not in pins:
            named.append("layers of stages")
        return [*named, "placement of ranks"]


def _is_choice(value: Any) -> bool:
    """Return whether a field may still have several values."""
    return isinstance(value, list) and len(value) > 1


def decide(launch: Launch, sizes: Sizes) -> Decided:
    """Return the fields of a plan that a launch decides.

    Raises:
        SpecError: options contradict each other, or the sizes.
    """
    pins: dict[str, Any] = {}
    for name in DIRECT:
        if (value := launch.value(name)) is not None:
            pins[name] = value
    if sizes.precisions and isinstance(words := pins.get("precision"), list):
        pins["precision"] = [word for word in words if word in sizes.precisions]
    _decide_micro_batch(launch, pins)
    _decide_data_parallelism(launch, sizes, pins)
    _decide_sharding(launch, pins)
    if {"dp_replicate", "dp_shard"} <= pins.keys():
        pins.pop("dp", None)
    decide_stages(launch, sizes.n_layers, pins)
    check_groups(launch, pins)
    decide_recompute(launch, sizes.n_layers, pins)
    if pins.get("pp") == 1:
        pins.pop("vpp", None)
    elif launch.value("schedule") is not None:
        pins["schedule"] = launch.value("schedule")
    if (split := launch.value("sequence_parallel")) is not None and pins.get("tp") != 1:
        pins["sequence_parallel"] = split
    return Decided(pins, _global_batch(launch, pins))


def _decide_micro_batch(launch: Launch, pins: dict[str, Any]) -> None:
    """Decide the micro-batch of a rank that is said as its share of a step."""
    local, part = launch.value("local_batch"), launch.value("pipeline_micro_batch")
    if pins.get("pp", 1) > 1:
        if part is None and launch.setting("pp") is not None and local is not None:
            part = 1
        if part is not None:
            pins["micro_batch"] = part
    elif local is not None:
        pins["micro_batch"] = local
    setting = launch.setting("local_batch")
    is_uneven = local and part and pins.get("pp", 1) > 1 and local % part
    if setting is not None and is_uneven:
        setting.refuse(f"expected a multiple of the pipeline's micro-batch, {part}")


def _decide_data_parallelism(
    launch: Launch, sizes: Sizes, pins: dict[str, Any]
) -> None:
    """Decide the data-parallel degree, from batches or from the GPUs that are left."""
    batch = launch.value("training.global_batch")
    per_rank = pins.get("micro_batch", 0) * pins.get("microbatches", 0)
    if launch.framework == "deepspeed" and batch and per_rank:
        own = launch.setting("training.global_batch")
        if batch % per_rank and own is not None:
            own.refuse(
                f"expected a multiple of micro-batch {pins['micro_batch']} x "
                f"{pins['microbatches']} accumulation steps = {per_rank}"
            )
        pins["dp"] = batch // per_rank
        if sizes.gpus == pins["dp"]:
            pins["tp"], pins["pp"] = pins.get("tp", 1), pins.get("pp", 1)
        return
    group = math.prod(pins.get(name, 0) for name in ("tp", "cp", "pp"))
    if not group or not sizes.gpus or sizes.gpus % group:
        return
    pins["dp"] = sizes.gpus // group
    if launch.value("dp_shard_rest"):
        shards = pins["dp"] // pins.get("dp_replicate", 1)
        pins["dp_shard"] = max(shards, 1)


def _decide_sharding(launch: Launch, pins: dict[str, Any]) -> None:
    """Decide how many ranks share the state, and how many replicas hold it."""
    reshard = launch.value("reshard")
    if reshard is not None and {"cp", "dp_shard"} <= pins.keys():
        is_sharded = pins["dp_shard"] * pins["cp"] > 1
        keeps = reshard == "never" or (reshard == "default" and pins.get("pp", 1) > 1)
        pins["zero"] = (2 if keeps else 3) if is_sharded else 0
    if launch.value("has_replicas"):
        pins.pop("dp", None)
        return
    dp, zero = pins.get("dp"), pins.get("zero")
    if dp is None or zero is None or "dp_shard" in pins:
        return
    keeps_all = pins.get("offload", "none") == "none"
    if dp * pins.get("cp", 1) == 1 and zero and keeps_all:
        _decide_alone(launch, pins)
        return
    replicas = pins.get("dp_replicate", 1) if zero else dp
    own = launch.setting("dp_replicate")
    if dp % replicas and own is not None:
        own.refuse(f"does not divide the data-parallel size {dp}")
    pins["dp_replicate"], pins["dp_shard"] = replicas, dp // replicas


def _decide_alone(launch: Launch, pins: dict[str, Any]) -> None:
    """Leave the stage of ZeRO open where one rank has nothing to share."""
    setting = launch.setting("zero")
    if setting is not None:
        launch.changes_nothing(setting, "there is one data-parallel rank")
    pins["zero"] = [0, pins["zero"]]


def _global_batch(launch: Launch, pins: dict[str, Any]) -> int | None:
    """Return the sequences of a step that a launch says without naming them."""
    if launch.value("training.global_batch") is not None:
        return None
    local, dp = launch.value("local_batch"), pins.get("dp")
    if "dp_replicate" in pins and "dp_shard" in pins:
        dp = pins["dp_replicate"] * pins["dp_shard"]
    if launch.framework == "deepspeed":
        local = pins.get("micro_batch", 0) * pins.get("microbatches", 0)
    if local and dp and launch.framework in ("deepspeed", "torchtitan"):
        return int(local * dp)
    return None
