"""Kernels, exchanges of messages and hidden traffic in the words of Megatron."""

from __future__ import annotations

from meshwright.imports.launch import Launch
from meshwright.imports.settings.setting import Settings

OPTIMIZERS = {"adam": "adamw", "sgd": "sgd", "muon": "muon"}

ATTENTION = {
    "flash": "flash2", "fused": "cudnn", "auto": "flash", "unfused": "plain",
    "local": "plain",
}  # fmt: skip
"""Words of `--attention-backend`, and the kernels of attention that they are."""

DISPATCHES = {"alltoall": "alltoall", "allgather": "alltoall", "flex": "deepep"}
"""Words of `--moe-token-dispatcher-type`, and the nearest dispatch that is priced."""

EXCHANGES = {"p2p": "ring", "all_gather": "gather", "a2a": "ulysses"}
"""Words of `--cp-comm-type`, and the exchange of context that they are."""

OVERLAP = {
    "overlap_grad_reduce": "gradients",
    "overlap_param_gather": "parameters",
    "tp_comm_overlap": "tp",
    "overlap_moe_expert_parallel_comm": "ep",
}
"""Options of traffic that hides, off unless given, and fields of `training.overlap`."""


UNFUSED = {
    "no_rope_fusion": "rope",
    "no_bias_swiglu_fusion": "activation",
    "no_masked_softmax_fusion": "softmax",
    "no_bias_dropout_fusion": "dropout",
}
"""Options that make several kernels of one, and what `training.fused` calls it."""


def say_overlap(settings: Settings, launch: Launch, *, is_complete: bool) -> None:
    """Say which traffic hides behind compute."""
    for name, kind in OVERLAP.items():
        if found := settings.flag(name):
            launch.say(f"training.overlap.{kind}", *found)
        elif is_complete and kind in ("gradients", "parameters"):
            launch.say(f"training.overlap.{kind}", False)
    if own := settings.is_on("no_overlap_p2p_communication"):
        launch.say("training.overlap.pp", False, own)
    if found := settings.flag("overlap_p2p_comm"):
        launch.say("training.overlap.pp", *found)


def say_kernels(settings: Settings, launch: Launch) -> None:
    """Say which kernels, exchanges and optimizer run."""
    optimizer = settings.get("optimizer")
    if optimizer is not None and optimizer.value in OPTIMIZERS:
        launch.say("training.optimizer", OPTIMIZERS[optimizer.value], optimizer)
    elif optimizer is not None:
        launch.is_not_judged(optimizer, "the optimizer of the spec is priced")
    if found := settings.word(DISPATCHES, "moe_token_dispatcher_type"):
        launch.say("training.expert_dispatch", *found)
    if own := settings.is_on("moe_enable_deepep"):
        launch.say("training.expert_dispatch", "deepep", own)
    _say_exchange(settings, launch)
    _say_activations(settings, launch)
    if found := settings.word(ATTENTION, "attention_backend"):
        launch.say("training.attention", *found)
    if own := settings.is_on("use_flash_attn"):
        launch.say("training.attention", "flash", own)
    for name, kind in UNFUSED.items():
        if own := settings.is_on(name):
            launch.say(f"training.fused.{kind}", False, own)
    fused = settings.flag("cross_entropy_loss_fusion")
    if fused and launch.framework == "megatron":
        launch.say("training.fused.loss", *fused)


def _say_exchange(settings: Settings, launch: Launch) -> None:
    """Say how ranks of a sequence exchange it, if all layers do so in one way."""
    own = settings.get("cp_comm_type")
    if own is None or own.value is None:
        return
    words = own.value if isinstance(own.value, list) else [own.value]
    first, *others = words or [""]
    kind = EXCHANGES.get(str(first))
    if kind is not None and all(word == first for word in others):
        launch.say("training.context_exchange", kind, own)
    else:
        launch.is_not_judged(own, "one exchange of all layers is priced")


def _say_activations(settings: Settings, launch: Launch) -> None:
    """Say where saved activations lie, if not whole on the GPU that made them."""
    if own := settings.is_on("distribute_saved_activations"):
        launch.say("training.partition_activations", True, own)
    _say_offloaded_activations(settings, launch)


def _say_offloaded_activations(settings: Settings, launch: Launch) -> None:
    """Say how many layers leave their activations to the host, where any do.

    The number alone switches the arguments of Megatron-LM on, not those of the core.
    """
    found = settings.count("cpu_offloading_num_layers", least=0)
    switch = settings.flag("cpu_offloading")
    if found is None or found[0] == 0:
        return
    if switch is not None and not switch[0]:
        launch.changes_nothing(found[1], "cpu_offloading is off")
        return
    launch.say("training.offload_activations", *found)
