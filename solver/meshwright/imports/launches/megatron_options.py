"""Options of Megatron Core on the model, precision, sharding, offload and kernels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshwright import catalog
from meshwright.imports.launches.launch import FURTHER, FieldValue, Launch
from meshwright.imports.launches.settings import OPTIONS, Setting, Settings

NAMES = OPTIONS["megatron_model"]

SHARDING: Mapping[str, int] = NAMES["sharding"]
OPTIMIZERS: Mapping[str, str] = NAMES["kernels"]["training.optimizer"]["words"]
"""Words that exports write too, and what they mean."""

_PATTERN = re.compile(r"(?:(\[0\])(?:\*(\d{1,5}))?\+)?\[1\]\*(\d{1,5})")


def read_model(settings: Settings, launch: Launch, *, is_complete: bool) -> None:
    """Read the shape of the model, as far as the options give it.

    Args:
        settings: The options.
        launch: Gets the values.
        is_complete: Whether an option that is not given has the framework's default,
            if there is a model at all.
    """
    is_complete &= "hidden_size" in settings
    latent = settings.is_on("multi_latent_attention")
    settings.skip(*NAMES["skipped"])
    launch.read(settings, NAMES["shape"] | NAMES["details"])
    settings.skip(*(row["count"] for row in NAMES["latent"].values()))
    if latent or not is_complete:
        launch.read(settings, NAMES["latent"])
    launch.read(settings, NAMES["block"], is_whole=is_complete)
    _read_heads(settings, launch, latent, is_complete)
    _read_biases(settings, launch, is_complete)
    _read_positions(settings, launch, is_complete)
    if is_complete:
        _read_width(launch)
    if "model.moe.n_experts" in launch.values:
        _read_model_experts(settings, launch, is_complete)
    _read_hub(settings, launch)
    _read_scaling(settings, launch, latent)


def _read_hub(settings: Settings, launch: Launch) -> None:
    """Read the name of a model on the hub; the model, where no option has its sizes."""
    hub = settings.get("from_hf_pretrained")
    if hub is not None and isinstance(hub.value, str):
        is_named = "model.n_layers" not in launch.values
        is_named &= catalog.meant(catalog.MODELS, hub.value) is not None
        launch.set("model" if is_named else "model.details.hub", hub.value, hub)
        if is_named and "mtp_num_layers" not in settings:
            # Providers of the hub's models train those of its checkpoint.
            count = launch.bundled_fields.get("details", {}).get("mtp_layers")
            launch.put(FURTHER, count and (count, hub))


STRETCHED = [row["number"] for row in NAMES["yarn"].values()]


def _read_scaling(settings: Settings, launch: Launch, latent: Setting | None) -> None:
    """Read how rotary positions are stretched."""
    stretch = "model.details.rope_scaling"
    form = settings.get("rope_type")
    settings.skip("rope_scaling_factor", *STRETCHED)
    named = settings.get("rope_scaling")
    is_word = named is not None and str(named.value) in NAMES["stretches"]
    if not is_word and (setting := settings.is_on("use_rope_scaling", "rope_scaling")):
        launch.set(f"{stretch}.form", "llama3", setting)
        launch.put(f"{stretch}.factor", settings.number("rope_scaling_factor"), 8.0)
        launch.set(f"{stretch}.original_positions", 8192)
    elif latent is not None and form is not None and form.value == "yarn":
        launch.set(f"{stretch}.form", "yarn", form)
        launch.set(f"{stretch}.original_positions", 4096)
        launch.read(settings, NAMES["yarn"])


def _read_heads(
    settings: Settings, launch: Launch, latent: Setting | None, is_complete: bool
) -> None:
    width = settings.count("kv_channels")
    if latent is None and width:
        launch.set("model.head_dim", *width)
    of_deepspeed = settings.count("num_key_value_heads")  # Megatron-DeepSpeed's option
    groups = of_deepspeed or settings.count("num_query_groups")
    is_on = of_deepspeed or settings.is_on("group_query_attention")
    is_grouped = is_on or not is_complete
    if latent is None and groups and (is_grouped or "-" not in groups[1].written):
        launch.set("model.n_kv_heads", *groups)
    elif latent is None and groups:
        launch.changes_nothing(groups[1], "--group-query-attention is not given")
    elif is_complete and (heads := launch.value("model.n_heads")):
        launch.set("model.n_kv_heads", heads)
    normed = settings.flag("qk_layernorm")
    if normed and latent is None:
        launch.set("model.qk_norm", *normed)
    elif latent is not None and not (normed and normed[0]) and is_complete:
        why = "latent vectors count with their norms, as with --qk-layernorm"
        launch.is_not_judged(normed[1] if normed else latent, why)


def _read_biases(settings: Settings, launch: Launch, is_complete: bool) -> None:
    """Read which matrices have biases, and whether values are dropped."""
    bare = settings.is_on("disable_bias_linear")
    with_bias = settings.flag("add_bias_linear")
    of_heads = settings.is_on("add_qkv_bias")
    found = bare or (with_bias and with_bias[1])
    if found or is_complete:
        has_all = not bare and (with_bias is None or with_bias[0])
        word = "all" if has_all else "qkv" if of_heads else "none"
        launch.set("model.bias", word, found)
    settings.skip("add_bias_linear", "add_qkv_bias")
    both = map(settings.number, ("attention_dropout", "hidden_dropout"))
    shares = sorted(filter(None, both), key=lambda share: share[0] <= 0)
    if shares:
        launch.set("model.dropout", shares[0][0] > 0, shares[0][1])
    elif is_complete:
        launch.set("model.dropout", True)


def _read_positions(settings: Settings, launch: Launch, is_complete: bool) -> None:
    kind = settings.word(NAMES["positions"], "position_embedding_type")
    if kind and kind[1].value == "alibi":
        launch.set("model.alibi", True, kind[1])
    rotary = settings.is_on("use_rotary_position_embeddings")
    most = settings.count("max_position_embeddings")
    is_learned = kind[0] if kind else is_complete and rotary is None
    if kind and not is_learned:
        launch.set("model.learned_positions", 0, kind[1])
    elif rotary:
        launch.set("model.learned_positions", 0, rotary)
    elif is_learned and most:
        launch.set("model.learned_positions", *most)


def _read_width(launch: Launch) -> None:
    """Set the inner width that Megatron-LM takes where none is given."""
    width = launch.value("model.d_model")
    if width is not None and "model.d_ff" not in launch.values:
        is_gated = launch.value("model.gated_mlp")
        inner = int(4 * width * 2 / 3 / 64) * 64 if is_gated else 4 * width
        launch.set("model.d_ff", inner)


def _read_model_experts(settings: Settings, launch: Launch, is_complete: bool) -> None:
    if is_complete:
        launch.set("model.moe.top_k", launch.value("model.moe.top_k") or 2)
        inner = launch.value("model.moe.d_ff") or launch.value("model.d_ff")
        launch.set("model.moe.d_ff", inner)
    pattern = settings.get("moe_layer_freq")
    if pattern is not None and pattern.value is not None:
        launch.set("model.moe.first_dense_layers", _dense_layers(pattern), pattern)
    launch.read(settings, NAMES["routing"])


def _dense_layers(setting: Setting) -> int:
    """Return the leading layers without experts.

    Raises:
        SpecError: layers with and without experts alternate.
    """
    value: Any = setting.value
    if isinstance(value, list) and all(layer in (0, 1) for layer in value):
        dense = value.index(1) if 1 in value else len(value)
        if 0 not in value[dense:]:
            return dense
    text = str(value).replace(" ", "").strip("()")
    if text == "1":
        return 0
    found = _PATTERN.fullmatch(text)
    if found is None:
        setting.refuse("expected layers without experts first, such as ([0]*3+[1]*58)")
    return int(found[2] or 1) if found[1] else 0


def read_overlap(settings: Settings, launch: Launch, *, is_complete: bool) -> None:
    """Read which traffic hides; see `read_sharding` for the ZeRO stage."""
    launch.read(settings, NAMES["overlap"], is_whole=is_complete)
    for kind in NAMES["always_hides"].get(launch.value("zero"), ()):
        launch.values[f"training.overlap.{kind}"] = FieldValue(True)


def read_sharding(settings: Settings, launch: Launch, *, is_complete: bool) -> None:
    """Read the state that data-parallel ranks shard, and the number of replicas."""
    fsdp = settings.is_on("use_megatron_fsdp", "use_custom_fsdp")
    torch_fsdp = settings.is_on("use_torch_fsdp2")
    optimizer = settings.flag("use_distributed_optimizer")
    strategy = settings.word(SHARDING, "data_parallel_sharding_strategy")
    if torch_fsdp:
        stays = settings.is_on("torch_fsdp2_no_reshard_after_forward")
        launch.set("zero", 2 if stays else 3, torch_fsdp)
    elif fsdp:
        stage, setting = strategy or (0, fsdp)
        launch.set("zero", stage, setting)
    elif optimizer:
        launch.set("zero", 1 if optimizer[0] else 0, optimizer[1])
    elif is_complete:
        launch.set("zero", 0)
    if strategy and strategy[0] and not fsdp:
        launch.changes_nothing(strategy[1], "Megatron-FSDP is not used")
    replicas = settings.count("num_distributed_optimizer_instances")
    if replicas and launch.value("zero"):
        launch.set("dp_replicate", *replicas)
    elif replicas and replicas[0] > 1:
        launch.changes_nothing(replicas[1], "the optimizer is not sharded")


def read_offload(settings: Settings, launch: Launch, *, is_complete: bool) -> None:
    """Read whether the optimizer lives on the host."""
    setting = settings.is_on("optimizer_cpu_offload")
    share = settings.number("optimizer_offload_fraction")
    if setting and share and share[0] == 0:
        launch.set("offload", "none", share[1])
    elif setting:
        launch.set("offload", "optimizer", setting)
        launch.put("training.offload_fraction", share)
    elif is_complete:
        launch.set("offload", "none")
        if share and share[1].written.startswith("-"):
            launch.changes_nothing(share[1], "nothing is offloaded")


def read_precision(settings: Settings, launch: Launch, *, is_complete: bool) -> None:
    """Read the precision of matmuls, and in which gradients are added up."""
    eight = _eight_bits(settings)
    half, brain = settings.is_on("fp16"), settings.is_on("bf16")
    if half and brain:
        half.refuse(f"contradicts {brain} ({brain.where}); accepted: one of them")
    if eight:
        launch.set("precision", *eight)
    elif half or brain:
        launch.set("precision", "fp16" if half else "bf16", half or brain)
    elif is_complete:
        launch.set("precision", "fp32")
    settings.skip("megatron_fsdp_main_grads_dtype")
    if launch.value("zero") in (2, 3):
        launch.read(settings, NAMES["sums_of_shards"])
    if launch.value("training.gradients") is None:
        launch.read(settings, NAMES["sums"])
    if is_complete and launch.value("precision") in ("bf16", "fp8"):
        launch.set("training.gradients", "fp32")


def read_small_state(settings: Settings, launch: Launch) -> None:
    """Read the state that takes fewer bytes than usual.

    The precision-aware optimizer keeps of fp32 weights what bf16 weights lack, unless
    it is told otherwise or lies in host memory (optimizer_config.py).
    """
    aware = settings.is_on("use_precision_aware_optimizer")
    keeps = settings.flag("store_param_remainders")
    is_whole = (
        settings.is_on("optimizer_cpu_offload") or "main_params_dtype" in settings
    )
    has_rest = (keeps is None or keeps[0]) and launch.value("precision") == "bf16"
    if aware and has_rest and not is_whole:
        launch.set("training.master_weights", "remainders", aware)
    launch.read(settings, NAMES["state"])
    if launch.value("training.moments") is not None:
        settings.skip("exp_avg_sq_dtype")


def _eight_bits(settings: Settings) -> tuple[str, Setting] | None:
    setting = settings.get("fp8_format", "fp8")
    if setting is not None and setting.value not in (None, False):
        return settings.word({"hybrid": "fp8", "e4m3": "fp8"}, setting.name)
    short = settings.is_on("fp8_hybrid") or settings.is_on("fp8_e4m3")
    return ("fp8", short) if short else None


def read_kernels(settings: Settings, launch: Launch) -> None:
    """Read the kernels, the exchanges and the optimizer."""
    launch.read(settings, NAMES["kernels"])
    _read_exchange(settings, launch)
    _read_offloaded_activations(settings, launch)
    if not _read_picking(settings, launch):
        launch.read(settings, NAMES["attention"])
    if setting := settings.is_on("use_flash_attn"):
        if "training.attention" in launch.values:
            launch.changes_nothing(setting, "the attention backend says it")
        else:
            launch.set("training.attention", "flash", setting)
    _read_graphs(settings, launch)
    fused = settings.flag("cross_entropy_loss_fusion")
    if fused and launch.framework == "megatron":
        launch.set("training.fused.loss", *fused)


def _read_picking(settings: Settings, launch: Launch) -> bool:
    """Read the loss of an indexer, and whether kernels pick tokens for attention.

    What is not given is off in Megatron Core (core d98e8a6, transformer_config.py), but
    on in models of the hub (Megatron Bridge 067f987, glm5_bridge.py). Return whether
    the kernel of attention is read.
    """
    share, coefficient = settings.number("dsa_indexer_loss_coeff") or (None, None)
    over_picks = settings.flag("dsa_indexer_use_sparse_loss")
    kernels = settings.word(NAMES["picking"], "dsa_kernel_backend")
    settings.skip(*NAMES["of_indexer"])
    is_bare = "dsa_indexer_n_heads" in settings
    is_bare &= "from_hf_pretrained" not in settings
    is_off = is_bare if share is None else not share
    if is_off:
        launch.set("training.indexer_loss", "none", coefficient)
    elif over_picks is not None or is_bare:
        is_over_picks = over_picks is not None and over_picks[0]
        setting = over_picks[1] if over_picks is not None else coefficient
        word = "picked" if is_over_picks else "all"
        launch.set("training.indexer_loss", word, setting)
    if kernels is None and not is_bare:
        return False
    backend = settings.get("attention_backend")
    is_plain = backend is not None and str(backend.value) == "unfused"
    word, found = kernels or ("plain", None)
    launch.set("training.attention", "plain" if is_plain else word, found)
    return True


WHOLE = {"full", "full_iteration"}
"""Modules of a CUDA graph that are all there are."""


def _read_graphs(settings: Settings, launch: Launch) -> None:
    """Read which kernels CUDA graphs replay: all, all but those of experts, or none."""
    kind = settings.get("cuda_graph_impl")
    scope = settings.get("cuda_graph_modules", "cuda_graph_scope")
    if kind is None:
        if scope is not None and scope.value:
            launch.changes_nothing(scope, "no cuda_graph_impl is in the file")
        return
    if str(kind.value).lower() in ("none", "false"):
        launch.set("training.cuda_graphs", False, kind)
        if scope is not None and scope.value:
            launch.changes_nothing(scope, "cuda_graph_impl is none")
        return
    value = "full" if scope is None or not scope.value else scope.value
    words = {str(word) for word in (value if isinstance(value, list) else [value])}
    if words & WHOLE or str(kind.value) == "full_iteration":
        launch.set("training.cuda_graphs", True, scope or kind)
    elif "attn" in words:
        launch.set("training.cuda_graphs", "outside_experts", scope)
    else:
        launch.is_not_judged(scope or kind, "the graphs of the spec are priced")


def _read_exchange(settings: Settings, launch: Launch) -> None:
    """Read how ranks of a sequence exchange it, if all layers do so in one way."""
    setting = settings.get("cp_comm_type")
    if setting is None or setting.value is None:
        return
    words = setting.value if isinstance(setting.value, list) else [setting.value]
    first, *others = words or [""]
    kind = NAMES["exchanges"].get(str(first))
    if kind is not None and all(word == first for word in others):
        launch.set("training.context_exchange", kind, setting)
    else:
        launch.is_not_judged(setting, "one exchange of all layers is priced")


def _read_offloaded_activations(settings: Settings, launch: Launch) -> None:
    """Read how many layers leave their activations to the host, where any do.

    The number alone switches the arguments of Megatron-LM on, not those of the core.
    """
    found = settings.count("cpu_offloading_num_layers", least=0)
    switch = settings.flag("cpu_offloading")
    if found is None or found[0] == 0:
        return
    if switch is not None and not switch[0]:
        launch.changes_nothing(found[1], "cpu_offloading is off")
        return
    launch.set("training.offload_activations", *found)
