"""Precision, sharding and offload in the options of Megatron-LM and Bridge."""

from __future__ import annotations

from meshwright.imports.launch import Launch
from meshwright.imports.settings.setting import Setting, Settings, number_of

SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""Words of `--data-parallel-sharding-strategy`, and the ZeRO stages that they are."""

STATE_TYPES = {
    "bf16": "bf16", "fp32": "fp32", "torch.bfloat16": "bf16", "torch.float32": "fp32",
}  # fmt: skip
"""Words for the types of an optimizer's moments that can be priced."""


def say_sharding(settings: Settings, launch: Launch, *, is_complete: bool) -> None:
    """Say what is sharded over data-parallel ranks, and over how many of them."""
    fsdp = settings.is_on("use_megatron_fsdp", "use_custom_fsdp")
    torch_fsdp = settings.is_on("use_torch_fsdp2")
    optimizer = settings.flag("use_distributed_optimizer")
    strategy = settings.word(SHARDING, "data_parallel_sharding_strategy")
    if torch_fsdp:
        stays = settings.is_on("torch_fsdp2_no_reshard_after_forward")
        launch.say("zero", 2 if stays else 3, torch_fsdp)
    elif fsdp:
        stage, own = strategy or (0, fsdp)
        launch.say("zero", stage, own)
    elif optimizer:
        launch.say("zero", 1 if optimizer[0] else 0, optimizer[1])
    elif is_complete:
        launch.say("zero", 0)
    if strategy and strategy[0] and not fsdp:
        launch.changes_nothing(strategy[1], "Megatron-FSDP is not used")
    replicas = settings.count("num_distributed_optimizer_instances")
    if replicas and launch.value("zero"):
        launch.say("dp_replicate", *replicas)
    elif replicas and replicas[0] > 1:
        launch.changes_nothing(replicas[1], "the optimizer is not sharded")


def say_offload(settings: Settings, launch: Launch, *, is_complete: bool) -> None:
    """Say whether the optimizer lives on the host."""
    own = settings.is_on("optimizer_cpu_offload")
    share = settings.get("optimizer_offload_fraction")
    if own is not None and share is not None and number_of(share) == 0:
        launch.say("offload", "none", share)
    elif own is not None:
        launch.say("offload", "optimizer", own)
        if share is not None:
            launch.say("training.offload_fraction", number_of(share), share)
    elif is_complete:
        launch.say("offload", "none")
        if share is not None and share.written.startswith("-"):
            launch.changes_nothing(share, "nothing is offloaded")


def say_precision(settings: Settings, launch: Launch, *, is_complete: bool) -> None:
    """Say the precision of matmuls, and in which gradients are added up."""
    eight = _eight_bits(settings)
    half, brain = settings.is_on("fp16"), settings.is_on("bf16")
    if half and brain:
        half.refuse(f"contradicts {brain} ({brain.where}); accepted: one of them")
    if eight:
        launch.say("precision", *eight)
    elif half or brain:
        launch.say("precision", "fp16" if half else "bf16", half or brain)
    elif is_complete:
        launch.say("precision", "fp32")
    narrow = settings.is_on("grad_reduce_in_bf16")
    wide = settings.flag("grad_reduce_in_fp32")
    if narrow:
        launch.say("training.gradients", "bf16", narrow)
    elif wide:
        launch.say("training.gradients", "fp32" if wide[0] else "bf16", wide[1])
    elif is_complete and launch.value("precision") in ("bf16", "fp8"):
        launch.say("training.gradients", "fp32")


def say_small_state(settings: Settings, launch: Launch) -> None:
    """Say which state takes fewer bytes than usual."""
    moments = settings.word(STATE_TYPES, "exp_avg_dtype")
    if moments:
        launch.say("training.moments", *moments)
        settings.skip("exp_avg_sq_dtype", "use_precision_aware_optimizer")
    primary = settings.flag("mixed_precision.fp8_param_gather", "fp8_param_gather")
    if primary:
        is_primary, setting = primary
        launch.say(
            "training.fp8_weights", "primary" if is_primary else "copies", setting
        )


def _eight_bits(settings: Settings) -> tuple[str, Setting] | None:
    own = settings.get("fp8_format", "fp8")
    if own is not None and own.value not in (None, False):
        return settings.word({"hybrid": "fp8", "e4m3": "fp8"}, own.name)
    short = settings.is_on("fp8_hybrid") or settings.is_on("fp8_e4m3")
    return ("fp8", short) if short else None
