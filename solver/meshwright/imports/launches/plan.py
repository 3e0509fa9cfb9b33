"""Decides the plan of a launch, given the sizes of its model and its cluster."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from meshwright.imports.launches.launch import Launch
from meshwright.spec.plan_fields import MAKES_V, UNLESS_NAMED, group_size, way

DIRECT = (
    "tp", "pp", "vpp", "cp", "ep", "etp", "dp_replicate", "dp_shard", "zero",
    "micro_batch", "microbatches", "recompute", "recompute_segment", "offload",
    "precision",
)  # fmt: skip
"""Fields that launches and plans have in common."""

ASKED = (
    "tp", "pp", "vpp", "cp", "ep", "zero", "micro_batch", "sequence_parallel",
    "recompute", "schedule", "offload", "precision",
)  # fmt: skip
"""Fields that are named where a launch leaves them open."""


@dataclass(frozen=True)
class Sizes:
    """Sizes that a launch may leave to its model and cluster; None if not known."""

    gpus: int | None = None
    n_layers: int | None = None
    precisions: tuple[str, ...] | None = None
    leading: int = 0
    """Layers before the pattern in which others of several kinds alternate."""
    period: int = 1
    """Layers of that pattern."""


@dataclass
class Decided:
    """Fields of a plan that a launch decides."""

    pins: dict[str, Any]
    global_batch: int | None = None
    """Sequences of a step, where the launch gives only those of a rank."""

    @property
    def open(self) -> list[str]:
        """Return the fields that are left open, the placement of ranks always."""
        pins = self.pins
        needless = {"vpp", "schedule"} if pins.get("pp") == 1 else set()
        needless |= {"sequence_parallel"} if pins.get("tp") == 1 else set()
        needless |= {"micro_batch"} if "microbatches" in pins else set()
        choices = {k for k, v in pins.items() if isinstance(v, list) and len(v) > 1}
        decided = {*pins, *needless} - choices
        named = [name for name in ASKED if name not in decided]
        if "pp" in pins and pins["pp"] != 1 and "layers" not in pins:
            named.append("layers of stages")
        return [*named, "placement of ranks"]


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
        _check_gpus(launch, sizes, pins)
    decide_stages(launch, sizes.n_layers, pins)
    _leave_cut_patterns(launch, sizes, pins)
    check_groups(launch, pins)
    decide_recompute(launch, pins)
    if pins.get("pp") == 1:
        pins.pop("vpp", None)
    elif launch.value("schedule") is not None:
        pins["schedule"] = launch.value("schedule")
    if (split := launch.value("sequence_parallel")) is not None and pins.get("tp") != 1:
        pins["sequence_parallel"] = split
    return Decided(pins, _global_batch(launch, pins))


def _decide_micro_batch(launch: Launch, pins: dict[str, Any]) -> None:
    """Decide the micro-batch of a rank from its sequences of a step."""
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
        setting = launch.setting("training.global_batch")
        if batch % per_rank and setting is not None:
            setting.refuse(
                f"expected a multiple of micro-batch {pins['micro_batch']} x "
                f"{pins['microbatches']} accumulation steps = {per_rank}"
            )
        pins["dp"] = batch // per_rank
        if sizes.gpus == pins["dp"]:
            pins["tp"], pins["pp"] = pins.get("tp", 1), pins.get("pp", 1)
        return
    group = math.prod(pins.get(name, 0) for name in ("tp", "cp", "pp"))
    if not group or not sizes.gpus:
        return
    if sizes.gpus % group:
        degrees = " x ".join(f"{name} {pins[name]}" for name in ("tp", "cp", "pp"))
        launch.unjudged.append(
            f"{launch.name}: {degrees} = {group} GPUs do not fit {sizes.gpus} GPUs: no "
            "data-parallel size follows"
        )
        return
    pins["dp"] = sizes.gpus // group
    if launch.value("dp_shard_rest"):
        shards = pins["dp"] // pins.get("dp_replicate", 1)
        pins["dp_shard"] = max(shards, 1)


def _check_gpus(launch: Launch, sizes: Sizes, pins: dict[str, Any]) -> None:
    """Note degrees that make another number of GPUs than there are."""
    names = ("tp", "cp", "pp", "dp_replicate", "dp_shard")
    if not sizes.gpus or not all(pins.get(name) for name in names):
        return
    product = math.prod(pins[name] for name in names)
    if product != sizes.gpus:
        degrees = " x ".join(f"{name} {pins[name]}" for name in names)
        launch.unjudged.append(
            f"{launch.name}: {degrees} = {product} GPUs, and there are {sizes.gpus}"
        )


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
    setting = launch.setting("dp_replicate")
    if dp % replicas and setting is not None:
        setting.refuse(f"does not divide the data-parallel size {dp}")
    pins["dp_replicate"], pins["dp_shard"] = replicas, dp // replicas


def _decide_alone(launch: Launch, pins: dict[str, Any]) -> None:
    """Leave the stage of ZeRO open where one rank has nothing to share."""
    setting = launch.setting("zero")
    if setting is not None:
        launch.changes_nothing(setting, "there is one data-parallel rank")
    pins["zero"] = [0, pins["zero"]]


def _global_batch(launch: Launch, pins: dict[str, Any]) -> int | None:
    """Return the sequences of a step, where a launch gives only those of a rank."""
    if launch.value("training.global_batch") is not None:
        return None
    local, dp = launch.value("local_batch"), _data_parallel(pins)
    if launch.framework in ("deepspeed", "fsdp"):
        local = pins.get("micro_batch", 0) * pins.get("microbatches", 0)
    if local and dp and launch.framework in ("deepspeed", "fsdp", "torchtitan"):
        return int(local * dp)
    return None


GROUP_OPTION = "--microbatch-group-size-per-virtual-pipeline-stage"


def check_groups(launch: Launch, pins: dict[str, Any]) -> None:
    """Refuse groups of micro-batches that cannot run, and note those not priced.

    Megatron Core takes groups of the number of stages unless told, and no group below
    that number (schedules.py: forward_backward_pipelining_with_interleaving).

    Raises:
        SpecError: a group would have fewer micro-batches than there are stages.
    """
    setting, pp = launch.setting("microbatch_group"), pins.get("pp")
    if setting is not None and (pp == 1 or pins.get("vpp") == 1):
        launch.changes_nothing(setting, "stages have one chunk each")
        return
    count = _microbatches(launch, pins)
    if pp is None or count is None or count < pp or pins.get("vpp", 1) == 1:
        return
    least = group_size(count, pp)
    if setting is None:
        names = ("vpp", "layers_per_chunk", "stages")
        setting = next(filter(None, map(launch.setting, names)), None)
        if setting is not None and launch.value("groups_are_pp") and least != pp:
            setting.refuse(
                f"has groups of {pp} micro-batches, which leave {count % pp} of "
                f"{count}; accepted: {GROUP_OPTION} {least} beside it"
            )
        return
    size = launch.value("microbatch_group")
    if not pp <= size <= count or 0 < count % size < pp:
        setting.refuse(
            f"makes groups of {size} from {count} micro-batches, and no group may "
            f"have fewer than the {pp} stages; accepted: {least}"
        )
    if size != least:
        why = f"groups of {least} count, which hold less and take as long"
        launch.is_not_judged(setting, why)


def _data_parallel(pins: dict[str, Any]) -> int | None:
    """Return the data-parallel size, None where it is not known."""
    if {"dp_replicate", "dp_shard"} <= pins.keys():
        return int(pins["dp_replicate"] * pins["dp_shard"])
    return pins.get("dp")


def _microbatches(launch: Launch, pins: dict[str, Any]) -> int | None:
    """Return the micro-batches of a step, None where they are not known."""
    batch = launch.value("training.global_batch")
    per_round = (_data_parallel(pins) or 0) * pins.get("micro_batch", 0)
    if not batch or not per_round or batch % per_round:
        return None
    return int(batch // per_round)


FEWER = "accepted: at most the layers of a stage"


def decide_stages(launch: Launch, n_layers: int | None, pins: dict[str, Any]) -> None:
    """Decide the layers and the chunks of each stage, where they are known.

    Raises:
        SpecError: the options contradict each other, or the number of layers.
    """
    pp = pins.get("pp")
    chunks = launch.setting("vpp") or launch.setting("layers_per_chunk")
    if pp == 1 and chunks is not None and launch.value("vpp") != 1:
        chunks.refuse("needs stages, and the pipeline-parallel size is 1")
    if pp is None:
        layout = launch.setting("stages")
        if layout is not None:
            why = "the pipeline-parallel size is not in the file"
            launch.is_not_judged(layout, why)
        return
    if "stages" in launch.values:
        _decide_by_layout(launch, n_layers, pp, pins)
    elif n_layers is not None:
        layers = [n_layers] if pp == 1 else _balanced(launch, n_layers, pp)
        if layers:
            pins["layers"] = layers
            _decide_chunks(launch, n_layers, pp, pins)


def _leave_cut_patterns(launch: Launch, sizes: Sizes, pins: dict[str, Any]) -> None:
    """Leave stages open that cut patterns of layers: only whole ones are priced."""
    layers = pins.get("layers", [])
    whole = [layers[0] - sizes.leading, *layers[1:]] if len(layers) > 1 else []
    if any(count % sizes.period for count in whole):
        del pins["layers"]
        launch.unjudged.append(
            f"{launch.name}: stages of {', '.join(map(str, layers))} layers cut "
            f"patterns of {sizes.period}; whole ones are priced in their place"
        )


def _decide_by_layout(
    launch: Launch, n_layers: int | None, pp: int, pins: dict[str, Any]
) -> None:
    counts, layout = launch.value("stages"), launch.setting("stages")
    assert layout is not None
    if len(counts) % pp:
        layout.refuse(
            f"has {len(counts)} stages; expected a multiple of the {pp} ranks"
        )
    if n_layers is not None and sum(counts) != n_layers:
        layout.refuse(f"has {sum(counts)} layers; expected {n_layers}")
    pins["vpp"] = len(counts) // pp
    pins["layers"] = _of_ranks(launch, counts, pp)


def _of_ranks(launch: Launch, counts: list[int], pp: int) -> list[int]:
    """Return the sums over the parts of the model that each rank holds."""
    is_v = launch.value("schedule") in MAKES_V
    layers = [0] * pp
    for (rank, _), count in zip(way(pp, len(counts) // pp, is_v), counts, strict=True):
        layers[rank] += count
    return layers


def _balanced(launch: Launch, n_layers: int, pp: int) -> list[int] | None:
    """Return the layers of each stage as Megatron Core balances them; None elsewhere.

    The embedding and the loss may count as a layer, and the first and the last stage
    may be given.
    """
    if launch.framework not in ("megatron", "deepspeed"):
        return None
    first, last = launch.value("first_stage"), launch.value("last_stage")
    if first is not None or last is not None:
        return _given_ends(launch, n_layers, pp, first, last)
    at_start = bool(launch.value("counts_embedding"))
    at_end = bool(launch.value("counts_loss"))
    total = n_layers + at_start + at_end
    setting = launch.setting("pp")
    if total % pp:
        if launch.framework == "megatron" and setting is not None:
            setting.refuse(
                f"does not divide {total} layers; accepted: a divisor, or "
                "pipeline_model_parallel_layout beside it"
            )
        return None
    layers = [total // pp] * pp
    layers[0] -= at_start
    layers[-1] -= at_end
    return layers


def _given_ends(
    launch: Launch, n_layers: int, pp: int, first: int | None, last: int | None
) -> list[int] | None:
    setting = launch.setting("first_stage") or launch.setting("last_stage")
    assert setting is not None
    middle = pp - (first is not None) - (last is not None)
    rest = n_layers - (first or 0) - (last or 0)
    if rest < 0 or (rest if middle <= 0 else rest % middle):
        setting.refuse(f"leaves {rest} layers for {max(middle, 0)} stages")
    share = [rest // middle] * middle if middle > 0 else []
    ends = [] if first is None else [first]
    return [*ends, *share, *([] if last is None else [last])]


def _decide_chunks(
    launch: Launch, n_layers: int, pp: int, pins: dict[str, Any]
) -> None:
    """Decide the virtual stages of a rank from the layers of each."""
    size, setting = launch.value("layers_per_chunk"), launch.setting("layers_per_chunk")
    if size is None or setting is None:
        return
    counted = bool(launch.value("counts_embedding")) + bool(launch.value("counts_loss"))
    of_stage = (n_layers + counted) // pp
    if of_stage % size:
        setting.refuse(f"does not divide the {of_stage} layers of a stage")
    pins["vpp"] = of_stage // size


def decide_recompute(launch: Launch, pins: dict[str, Any]) -> None:
    """Decide how many layers of each stage are recomputed.

    Raises:
        SpecError: more layers are recomputed than a stage has.
    """
    if pins.get("recompute") == "selective" and launch.framework == "megatron":
        modules = launch.value("recompute_modules") or (UNLESS_NAMED,)
        pins["recompute_modules"] = "+".join(modules)
    count = launch.value("recompute_per_chunk")
    if count is None:
        if pins.get("recompute", "none") != "none":
            pins["recompute_layers"] = "all"
        return
    setting = launch.setting("recompute_per_chunk")
    assert setting is not None
    layers, vpp = pins.get("layers"), pins.get("vpp", 1)
    if layers is None:
        pins["recompute_layers"] = "any"
        return
    chunks = launch.value("stages")
    most = max(chunks or [size // vpp for size in layers])
    if count > most:
        setting.refuse(f"is more than {most}; {FEWER}")
    pp = len(layers)
    if chunks:
        taken = [min(count, size) for size in chunks]
        pins["recompute_layers"] = _of_ranks(launch, taken, pp)
    else:
        pins["recompute_layers"] = [min(count * vpp, size) for size in layers]
